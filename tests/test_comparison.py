"""compare: one table for several methods."""

import numpy as np
import pytest

from megagp import SGPRegressor, SVGPRegressor, compare

SMALL = {
    "few": SGPRegressor(inducing_points=5, steps=10, random_state=0),
    "more": SGPRegressor(inducing_points=40, steps=10, random_state=0),
    "batches": SVGPRegressor(inducing_points=20, epochs=2, batch_size=50, random_state=0),
}


def data(n=200):
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, size=(n, 2))
    return X, np.sin(2 * X[:, 0]) * X[:, 1] + 0.1 * rng.normal(size=n)


def test_one_row_for_each_method_on_the_same_split():
    found = compare(*data(), SMALL, test_fraction=0.25)
    assert [row.method for row in found.rows] == list(SMALL)
    assert (found.n_train, found.n_test) == (150, 50)
    few, more, _ = found.rows
    assert more.rmse < few.rmse
    assert more.nll < few.nll
    for row in found.rows:
        assert 0 <= row.coverage <= 1
        assert row.fit_seconds > 0
        assert row.predict_seconds > 0
        assert row.memory_bytes is None or row.memory_bytes >= 0
    lines = str(found).splitlines()
    assert lines[0] == "150 training points, 50 test points"
    assert [line.split()[0] for line in lines[1:]] == ["method", *SMALL]
    assert found.as_dicts()[0]["rmse"] == few.rmse


def test_scores_are_those_of_the_model():
    X, y = data()
    row = compare(X, y, {"few": SMALL["few"]}).rows[0]
    again = compare(X, y, {"few": SMALL["few"]}).rows[0]
    assert (row.rmse, row.nll, row.coverage) == (again.rmse, again.nll, again.coverage)


def test_methods_by_name():
    found = compare(*data(60), ["sgpr", "exact"])
    assert [row.method for row in found.rows] == ["sgpr", "exact"]


@pytest.mark.parametrize("methods", [["kriging"], "exact", []])
def test_unknown_methods_are_refused(methods):
    with pytest.raises(ValueError, match="methods: expected"):
        compare(*data(20), methods)


def test_the_share_of_test_rows_is_checked():
    with pytest.raises(ValueError, match="test_fraction: expected"):
        compare(*data(20), SMALL, test_fraction=1.5)
