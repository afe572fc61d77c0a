"""The commands with a stand-in for the estimator: options, tables, messages, exit codes."""

import importlib.metadata
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import megagp
from cli import fake
from megagp.cli import plot
from megagp.cli.app import app
from megagp.tables import FORMATS, Writer, column_names, read


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch, tmp_path):
    monkeypatch.setattr(megagp, "GPRegressor", fake.GPRegressor, raising=False)
    monkeypatch.setattr(megagp, "load", fake.load, raising=False)
    monkeypatch.chdir(tmp_path)


def run(*arguments):
    # Wide, so that tables do not break lines.
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})


def fails(result, *fragments, code=1):
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    assert len(result.stderr.strip().splitlines()) <= 2
    for fragment in fragments:
        assert fragment in result.stderr


@pytest.fixture
def data(tmp_path):
    """y = 2 a - b, with columns in the order b, y, a."""
    X = np.random.default_rng(0).standard_normal((40, 2))
    path = tmp_path / "data.csv"
    with Writer(path, ["b", "y", "a"]) as out:
        out.write(X[:, 1], 2 * X[:, 0] - X[:, 1], X[:, 0])
    return path


def test_fit_and_predict_match_columns_by_name(data, tmp_path):
    result = run("fit", data, "--target", "y", "-o", "m.mgp")
    assert result.exit_code == 0, result.output
    assert "read 40 rows, 2 features" in result.stderr
    assert fake.load("m.mgp").extra_["features"] == ["b", "a"]
    with Writer(tmp_path / "new.csv", ["extra", "a", "y", "b"]) as out:
        out.write(np.zeros(3), np.array([1.0, 0, 2]), np.zeros(3), np.array([0.0, 1, 3]))
    result = run("predict", "m.mgp", "new.csv", "-o", "out.csv")
    assert result.exit_code == 0, result.output
    assert "column 'y' is the model's target: ignored" in result.stderr
    assert "ignored: extra" in result.stderr
    assert column_names(tmp_path / "out.csv") == ["mean", "std"]
    found = read(tmp_path / "out.csv", ["mean", "std"])
    np.testing.assert_allclose(found, [[2, 0.5], [-1, 0.5], [1, 0.5]], atol=1e-12)


def test_missing_features_are_named(data):
    run("fit", data, "-o", "m.mgp")
    with open("new.csv", "w") as file:
        file.write("a,c\n1,2\n")
    fails(run("predict", "m.mgp", "new.csv", "-o", "out.csv"), "none named b", "the table has a, c")


def test_a_model_without_names_takes_columns_in_order(tmp_path):
    fake.GPRegressor().fit(np.eye(2), np.array([1.0, 2.0])).save("m.mgp")
    (tmp_path / "new.csv").write_text("p,q\n3,4\n")
    result = run("predict", "m.mgp", "new.csv", "-o", "out.csv")
    assert result.exit_code == 0, result.output
    assert "no names" in result.stderr
    assert read(tmp_path / "out.csv", ["mean"]).tolist() == [[11.0]]
    (tmp_path / "new.csv").write_text("p,q,r\n3,4,5\n")
    fails(run("predict", "m.mgp", "new.csv", "-o", "out.csv"), "expected 2 columns", "got 3")


@pytest.mark.parametrize("features", [3, "ab", {"a": 0, "b": 1}, [1, 2], ["a", None], ["a"], []])
def test_features_that_are_no_names(data, features):
    model = fake.GPRegressor().fit(np.eye(2), np.array([1.0, 2.0]))
    model.save("m.mgp", extra={"features": features})
    said = ["extra.features to be a list of 2 names", f"got {features!r}", "fit the model again"]
    fails(run("predict", "m.mgp", data, "-o", "out.csv"), *said)
    fails(run("info", "m.mgp"), *said)


@pytest.mark.parametrize("target", [3, ["y"], {"y": 0}])
def test_a_target_that_is_no_name_is_no_column(data, target):
    model = fake.GPRegressor().fit(np.eye(2), np.array([1.0, 2.0]))
    model.save("m.mgp", extra={"features": ["a", "b"], "target": target})
    result = run("predict", "m.mgp", data, "-o", "out.csv")
    assert result.exit_code == 0, result.output
    assert "ignored: y" in result.stderr


@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_in_and_out(tmp_path, ending):
    X = np.random.default_rng(0).standard_normal((30, 2))
    y = X @ [2.0, -1.0]
    path, out = tmp_path / f"data{ending}", tmp_path / f"out{ending}"
    if ending == ".npz":
        np.savez(path, X=X, y=y)
    else:
        with Writer(path, ["x0", "x1", "y"]) as writer:
            writer.write(X[:, 0], X[:, 1], y)
    assert run("fit", path, "-o", "m.mgp").exit_code == 0
    result = run("predict", "m.mgp", path, "-o", out)
    assert result.exit_code == 0, result.output
    if ending == ".npz":
        with np.load(out) as arrays:
            found = arrays["mean"]
    else:
        found = read(out, ["mean"])[:, 0]
    np.testing.assert_allclose(found, y, atol=1e-12)


def test_a_model_of_several_targets_is_refused(data, monkeypatch, tmp_path):
    run("fit", data, "-o", "m.mgp")
    monkeypatch.setattr(fake.GPRegressor, "predict", lambda self, X, return_std: (X, X))
    result = run("predict", "m.mgp", data, "-o", "out.csv", "-q")
    fails(result, "expected a model of one target, got one of 2")
    assert not (tmp_path / "out.csv").exists()


def test_options_reach_the_estimator(data):
    run("fit", data, "-o", "m.mgp")
    usual = {"kernel": None, "ard": True, "mean": "constant", "quality": "usual", "verbose": 1}
    assert fake.GPRegressor.made == usual
    run("fit", data, "-o", "m.mgp", "--quality", "best")
    assert fake.GPRegressor.made == {**usual, "quality": "best"}
    result = run("fit", data, "-o", "m.mgp", "--kernel", "rq", "--mean", "linear", "-q")
    assert result.output == ""
    made = fake.GPRegressor.made
    assert repr(made["kernel"]).startswith("RationalQuadratic(lengthscale=[1, 1]")
    assert (made["mean"], made["verbose"]) == ("linear", 0)
    run("fit", data, "-o", "m.mgp", "--kernel", "matern12", "--no-ard")
    assert repr(fake.GPRegressor.made["kernel"]).startswith("Matern12(lengthscale=1,")


@pytest.mark.parametrize("name", ["matern12", "matern32", "matern52", "rbf", "rq"])
def test_every_kernel_has_a_class(data, name):
    assert run("fit", data, "-o", "m.mgp", "--kernel", name).exit_code == 0
    kernel = fake.GPRegressor.made["kernel"]
    assert name == "matern32" if kernel is None else type(kernel).__name__.lower()[0] == name[0]


def test_hold_out_is_scored(data):
    result = run("fit", data, "-o", "m.mgp", "--test-fraction", 0.25)
    assert result.exit_code == 0, result.output
    assert fake.load("m.mgp").n_samples_ == 30
    # Exact predictions with std 0.5: NLL = log(0.5) + log(2 pi) / 2.
    assert "10 rows held out: RMSE" in result.stdout
    assert "NLL 0.2258" in result.stdout
    assert "100.0 % within the 95 % interval" in result.stdout


def test_info(data):
    run("fit", data, "-o", "m.mgp", "--target", "y")
    result = run("info", "m.mgp")
    assert result.exit_code == 0, result.output
    for fragment in [
        "40",
        "b, a",
        "Matern32(lengthscale=1, outputscale=1)",
        "0.25",
        "-12.5",
        "phase pretrain, Adam, seconds 1.5, loss 0.25",
        "seconds 2, status CONVERGED",
        importlib.metadata.version("torch"),
    ]:
        assert fragment in result.stdout


def test_demo(monkeypatch, tmp_path):
    result = run("demo", "--n", 50, "--plot", "arm.png")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "arm.png").read_bytes().startswith(b"\x89PNG")
    for fragment in ["pretrain, Adam", "1.5 s", "precompute", "2.0 s", "RMSE", "95 % interval"]:
        assert fragment in result.stdout


def test_demo_without_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("demo", "--n", 50)
    assert result.exit_code == 0, result.output
    assert "pip install 'megagp[plot]'" in result.stderr
    assert "RMSE" in result.stdout
    assert not list(tmp_path.iterdir())


def test_plots_of_one_point(tmp_path):
    plot.draw(tmp_path / "p.png", np.ones(1), np.ones(1), np.ones(1))
    assert (tmp_path / "p.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("content", "fragments"),
    [
        ("", ["Empty CSV"]),
        ("a,b\n1,2\n", ["target column 'y'", "got columns a, b", "--target"]),
        ("1,2\n3,4\n", ["column names"]),
        ("y\n1\n", ["features beside 'y'"]),
        ("a,y\n1,2\nred,3\n", ["'red'"]),
        ("a,y\n1,2\n,3\n", ["1 missing"]),
    ],
)
def test_bad_tables(tmp_path, content, fragments):
    (tmp_path / "data.csv").write_text(content)
    fails(run("fit", "data.csv", "-o", "m.mgp"), *fragments)
    assert not (tmp_path / "m.mgp").exists()


def test_other_mistakes(data):
    fails(run("fit", "absent.csv", "-o", "m.mgp"), "absent.csv: expected a file")
    fails(run("fit", data, "-o", "no/m.mgp"), "folder that exists")
    fails(run("predict", "absent.mgp", data, "-o", "o.csv"), "absent.mgp")
    fails(run("demo", "--n", 50, "--plot", "no/demo.png"), "folder that exists")
    run("fit", data, "-o", "m.mgp")
    fails(run("predict", "m.mgp", data, "-o", "o.txt"), "o.txt: expected a name")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["fit"],
        ["fit", "data.csv"],
        ["fit", "data.csv", "-o", "m", "--kernel", "nope"],
        ["fit", "data.csv", "-o", "m", "--test-fraction", "2"],
        ["predict", "m.mgp"],
    ],
)
def test_usage_errors_exit_with_2(arguments):
    assert run(*arguments).exit_code == 2


def test_interrupt(data, monkeypatch):
    def interrupted(self, X, y):
        raise KeyboardInterrupt

    monkeypatch.setattr(fake.GPRegressor, "fit", interrupted)
    result = run("fit", data, "-o", "m.mgp", "-q")
    assert result.exit_code == 130
    assert result.stderr == "megagp: interrupted\n"


def test_warnings_take_one_line(data, monkeypatch):
    import warnings

    def warned(self, X, return_std):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("the solve did not converge", UserWarning, stacklevel=2)
        return X[:, 0], X[:, 0]

    run("fit", data, "-o", "m.mgp")
    monkeypatch.setattr(fake.GPRegressor, "predict", warned)
    result = run("predict", "m.mgp", data, "-o", "o.csv", "-q")
    assert result.exit_code == 0, result.output
    assert result.stderr == "megagp: warning: the solve did not converge\n"


def test_mistakes_of_ours_keep_their_traceback(data, monkeypatch):
    monkeypatch.setattr(fake.GPRegressor, "fit", lambda self, X, y: 1 // 0)
    assert isinstance(run("fit", data, "-o", "m.mgp").exception, ZeroDivisionError)


def test_version_and_help():
    assert run("--version").stdout == f"megagp {importlib.metadata.version('megagp')}\n"
    assert "fit" in run("--help").stdout
    for command in ("fit", "predict", "info", "demo"):
        assert f"megagp {command}" in run(command, "--help").stdout.replace("Usage: ", "")
