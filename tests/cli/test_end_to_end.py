"""The commands with the real estimator, from table to predictions."""

import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from typer.testing import CliRunner

import megagp
from megagp.cli.app import app
from megagp.datasets import robot_arm
from megagp.kernels import RationalQuadratic
from megagp.tables import Writer, read

NAMES = ["base", "elbow", "wrist"]


def run(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table, and a model fitted to it."""
    folder = tmp_path_factory.mktemp("model")
    X, y = robot_arm(300, 3)
    with Writer(folder / "train.csv", ["reach", *NAMES]) as out:
        out.write(y[:200], *X[:200].T)
    with Writer(folder / "new.parquet", [*NAMES[::-1], "reach"]) as out:
        out.write(*X[200:].T[::-1], y[200:])
    run("fit", folder / "train.csv", "--target", "reach", "-o", folder / "arm.mgp", "-q")
    return folder


def test_predictions_are_those_of_the_model_and_good(folder):
    result = run("predict", folder / "arm.mgp", folder / "new.parquet", "-o", folder / "out.csv")
    assert "'reach' is the model's target" in result.stderr
    found = read(folder / "out.csv", ["mean", "std"])
    X, y = robot_arm(300, 3)
    mean, std = megagp.load(folder / "arm.mgp").predict(X[200:], return_std=True)
    np.testing.assert_allclose(found, np.stack([mean, std], axis=1), rtol=1e-12)
    assert np.sqrt(np.mean((found[:, 0] - y[200:]) ** 2)) < 0.25
    assert np.mean(np.abs(found[:, 0] - y[200:]) < 1.96 * found[:, 1]) > 0.8


def test_model_and_info_know_where_they_come_from(folder):
    model = megagp.load(folder / "arm.mgp")
    assert model.extra_["features"] == NAMES
    assert model.extra_["target"] == "reach"
    shown = run("info", folder / "arm.mgp").stdout
    for fragment in ["200", ", ".join(NAMES), "reach", "Matern32(", "noise variance", "likelihood"]:
        assert fragment in shown


def test_other_settings(folder):
    options = ["--kernel", "rq", "--no-ard", "--mean", "linear", "--test-fraction", 0.75]
    table = folder / "train.csv"
    result = run("fit", table, "--target", "reach", "-o", folder / "rq.mgp", "-q", *options)
    assert "150 rows held out: RMSE" in result.stdout
    fitted = megagp.load(folder / "rq.mgp")
    assert type(fitted.kernel_) is RationalQuadratic
    assert fitted.kernel_.lengthscale.ndim == 0
    assert (fitted.n_samples_, fitted.mean) == (50, "linear")


@pytest.mark.parametrize("method", ["sgpr", "svgp"])
def test_approximations(folder, method):
    model = folder / f"{method}.mgp"
    options = ["--target", "reach", "--method", method, "--inducing-points", 20]
    run("fit", folder / "train.csv", *options, "-o", model, "-q")
    assert megagp.load(model).inducing_points_.shape == (20, 3)
    rows = [line.split("│") for line in run("info", model).stdout.splitlines()]
    assert ["inducing_points", "20"] in [[c.strip() for c in row[1:3]] for row in rows]
    run("predict", model, folder / "new.parquet", "-o", folder / "out.csv", "-q")
    assert len(read(folder / "out.csv", ["mean"])) == 100


def test_inducing_points_are_not_for_the_exact_method(folder):
    command = ["fit", folder / "train.csv", "--inducing-points", 9, "-o", folder / "x.mgp"]
    result = CliRunner().invoke(app, [str(a) for a in (*command, "--target", "reach")])
    assert result.exit_code == 1
    assert "--inducing-points: expected with --method sgpr or svgp" in result.stderr


@pytest.mark.parametrize("option", [("--quality", "best"), ("--checkpoint", "run1")])
def test_what_only_the_exact_method_has(folder, option):
    command = ["fit", folder / "train.csv", "--method", "sgpr", *option, "-o", folder / "x.mgp"]
    result = CliRunner().invoke(app, [str(a) for a in (*command, "--target", "reach")])
    assert result.exit_code == 1
    assert f"{option[0]}: expected with --method exact" in result.stderr


def test_compare(folder):
    table = folder / "train.csv"
    options = ["--target", "reach", "--method", "sgpr", "--method", "exact", "-q"]
    lines = run("compare", table, *options).stdout.splitlines()
    assert lines[0] == "160 training points, 40 test points"
    assert [line.split()[0] for line in lines[1:]] == ["method", "sgpr", "exact"]


def test_demo(folder):
    result = run("demo", "--n", 100, "--joints", 2, "--plot", folder / "demo.png")
    assert "RMSE" in result.stdout
    assert (folder / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_a_file_that_is_no_model(folder):
    result = CliRunner().invoke(app, ["info", str(folder / "train.csv")])
    assert result.exit_code == 1
    assert "train.csv" in result.stderr
    assert len(result.stderr.splitlines()) <= 2


def test_ctrl_c_ends_with_one_line(folder):
    command = [sys.executable, "-m", "megagp.cli", "demo", "--n", "100000"]
    # A shell's background jobs ignore Ctrl-C, and so would what they start.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    options = {"stderr": subprocess.PIPE, "text": True, "cwd": folder, "preexec_fn": heed}
    with subprocess.Popen(command, **options) as process:
        assert "robot arm with 6 joints" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert rest.splitlines()[-1] == "megagp: interrupted"
    assert "Traceback" not in rest


def test_plan_says_what_a_fit_will_take():
    one, eight = (
        run("plan", "--n", "1_311_539", "--d", 9, "--device", "a100", "--devices", devices).stdout
        for devices in (1, 8)
    )
    assert "1,311,539 x 9 on 8 devices" in eight
    for word in ("memory per device", "partitions", "kernel evaluations", "communication"):
        assert word in eight
    assert "communication per device: 0" in one or "communication per device: none" in one
    # Underscores and exponents are numbers of points, too.
    twice = [run("plan", "--n", n, "--d", 4, "--device", "h100").stdout for n in ("1e5", "100_000")]
    assert twice[0] == twice[1]


def test_plan_for_this_machine_is_a_measurement():
    found = run("plan", "--n", "20_000", "--d", 3)
    assert "measuring this machine" in found.stderr
    assert "20,000 x 3" in found.stdout


@pytest.mark.parametrize("n", ["many", "0", "1.5"])
def test_plan_wants_a_number_of_points(n):
    result = CliRunner().invoke(app, ["plan", "--n", n, "--d", "3"])
    assert result.exit_code == 1
    assert f"--n: expected a whole number of points, got '{n}'" in result.stderr
