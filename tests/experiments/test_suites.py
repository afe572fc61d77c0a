"""Which runs make up the paper's tables and figures."""

import pytest

from megagp.datasets import DATASETS
from megagp.experiments import METHODS, SUITES, runs
from megagp.experiments.data import load


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_is_a_list_of_different_runs(name):
    found = runs(name)
    assert found
    assert len({run.key for run in found}) == len(found)
    assert {run.method for run in found} <= set(METHODS)
    assert all(run.dataset in DATASETS or name == "smoke" for run in found)


def test_table1_is_the_papers():
    found = runs("table1")
    assert len(found) == 12 * 4 * 3
    assert [run.seed for run in found] == sorted(run.seed for run in found)
    assert all(run.settings == {"ard": False} for run in found if run.method != "lightgbm")
    assert all(run.settings == {} for run in found if run.method == "lightgbm")


@pytest.mark.parametrize(("view", "of"), [("table2", "table1"), ("table4", "table3")])
def test_tables_of_times_show_the_runs_of_others(view, of):
    assert runs(view, datasets=["pol"]) == runs(of, datasets=["pol"])


def test_figures_have_their_axis():
    of = {"datasets": ["pol"], "methods": ["exact", "sgpr"]}
    assert {run.x for run in runs("fig2", **of)} >= {1}
    assert [run.x for run in runs("fig3", **of)] == [None, 16, 32, 64, 128, 256, 512, 1024]
    assert all(run.settings["inducing_points"] == run.x for run in runs("fig3", **of)[1:])
    sizes = [run.subset for run in runs("fig4", **of)]
    assert sizes[:5] == [600, 1200, 2400, 4800, 9600]
    assert [run.subset for run in runs("fig4", subset=160, **of)][:5] == [10, 20, 40, 80, 160]
    (five,) = runs("fig5", datasets=["pol"])
    assert (five.x, five.settings["steps"]) == (100, 100)


def test_options_narrow_a_suite_down():
    (only,) = runs(
        "table3", datasets=["a.csv:b"], methods=["sgpr"], seeds=[4], settings={"mean": "linear"}
    )
    assert only.settings == {"ard": True, "mean": "linear"}
    assert (only.dataset, only.seed) == ("a.csv:b", 4)
    boost = {"datasets": ["pol"], "methods": ["lightgbm"], "seeds": [0]}
    (boosted,) = runs("table3", **boost, settings={"mean": "linear"})
    assert boosted.settings == {}


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match=r"suite: expected one of table1, .* got 'table9'"):
        runs("table9")
    with pytest.raises(ValueError, match=r"methods: expected some of exact, .* got 'magic'"):
        runs("table1", methods=["magic"])
    with pytest.raises(ValueError, match="robot_arm:<points>"):
        load("robot_arm:few")
