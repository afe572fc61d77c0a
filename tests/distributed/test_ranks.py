"""Several gloo ranks against one process: the same numbers, the same decisions, few bytes."""

import subprocess
import sys

import numpy as np
import pytest

import ranks
import reference
from distributed import programs

SIZES = [2, 3, 5]


@pytest.fixture(scope="module")
def alone():
    """What one process finds; started like a rank, so that it has one thread as well."""
    return ranks.run(1, programs.everything, 1)[0]


@pytest.fixture(scope="module", params=SIZES)
def together(request):
    """What `size` ranks found, by program; each size is started once."""
    return ranks.run(request.param, programs.everything, request.param)


def compare(found, expected, **tolerance):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name.startswith("iterations"):
            # Roundoff may cost iterations; but they are the same on all ranks.
            np.testing.assert_allclose(found[name], value, atol=3, rtol=0.05, err_msg=name)
        elif not name.startswith(("bytes", "rows")):
            np.testing.assert_allclose(found[name], value, err_msg=name, **tolerance)


def same_on_all(results, program):
    for other in results[1:]:
        for name, value in results[0][program].items():
            if not name.startswith("rows"):
                np.testing.assert_array_equal(other[program][name], value, err_msg=name)


def test_one_process_has_the_reference_product(alone):
    X, y = programs.data(2049)
    V = np.stack([y, np.cos(y)], axis=1)
    dense = reference.matrix(programs.kernel(), X, X)
    np.testing.assert_allclose(alone["products"]["product 2049"], dense @ V, atol=2e-3)


def test_products_and_gradients(alone, together):
    compare(together[0]["products"], alone["products"], rtol=1e-9, atol=1e-9)
    same_on_all(together, "products")


def test_a_product_sends_n_t_doubles(together):
    for n in (2049, 700, 1, 2, 4):
        assert together[0]["products"][f"bytes {n}"] == 8 * n * 2
    for size_of in together:
        # P⁻¹R: k doubles per column, and a gather of the rows that a rank has, padded
        rows = max(result["solves"]["rows 900"] for result in together)
        assert size_of["solves"]["bytes 900"] == 8 * (40 + rows)


@pytest.mark.parametrize("program", ["solves", "uneven"])
def test_pivots_preconditioner_likelihood_and_solves(alone, together, program):
    compare(together[0][program], alone["solves"], rtol=1e-6, atol=1e-7)
    same_on_all(together, program)


def test_the_rows_of_the_preconditioner_are_shared_out(together):
    size = len(together)
    even = [result["solves"]["rows 900"] for result in together]
    uneven = [result["uneven"]["rows 900"] for result in together]
    assert sum(even) == sum(uneven) == 900
    assert max(even) - min(even) <= 2
    assert uneven[-1] == pytest.approx(
        900 * (3 * size - 2) / sum(1 + 3 * r for r in range(size)), abs=1
    )


def test_rows_are_gathered_where_they_belong(together):
    for result in together:
        assert all(result["gathers"].values()), result["gathers"]


def test_fits_and_predictions(alone, together):
    compare(together[0]["fits"], alone["fits"], rtol=1e-5, atol=1e-6)
    same_on_all(together, "fits")


def test_ranks_with_memory_of_different_sizes(alone, together):
    compare(together[0]["kept"], alone["kept"], rtol=1e-4, atol=1e-5)
    same_on_all(together, "kept")


def test_noise_that_varies(alone, together):
    assert alone["varying"]["varies"] == alone["varying"]["calibrated"] == 1.0
    # Noise follows from solves to a residual of 0.01, and roundoff may end them elsewhere.
    compare(together[0]["varying"], alone["varying"], rtol=1e-3, atol=1e-4)
    same_on_all(together, "varying")


def test_effects_of_places(alone, together):
    assert alone["effects"]["place variance"] > 0
    compare(together[0]["effects"], alone["effects"], rtol=1e-3, atol=1e-4)
    same_on_all(together, "effects")


def test_choice_of_inputs(alone, together):
    assert (alone["represented"]["clear"], alone["represented"]["error"]) == (1, 1.0)
    compare(together[0]["represented"], alone["represented"], rtol=1e-5, atol=1e-6)
    same_on_all(together, "represented")


def test_sgpr(alone, together):
    steps = {name for name in alone["sparse"] if name.startswith("adam")}
    found, expected = (
        [{k: v for k, v in of["sparse"].items() if (k in steps) == single} for single in (0, 1)]
        for of in (together[0], alone)
    )
    compare(found[0], expected[0], rtol=1e-5, atol=1e-6)
    # Adam's steps are float32, whose sums depend on how rows are shared out.
    compare(found[1], expected[1], rtol=1e-4, atol=2e-5)
    same_on_all(together, "sparse")


def test_a_step_of_sgpr_sends_sums_of_m_by_m(together):
    # K(Z, X) K(X, Z), K(Z, X) [y, 1], their squares and a trace; the derivative by Z, lengthscales
    # and outputscale; the two factors of rank 0, with the little that describes them.
    m, d, columns = 20, 3, 2
    sums = m * m + m * columns + columns**2 + 1 + (m * d + d + 1)
    for result in together:
        assert 0 <= result["sparse"]["bytes 900"] - 8 * (sums + 2 * m * m) < 1000


def test_where_rank_0_has_no_factor_none_has(together):
    for result in together:
        assert np.isfinite(result["no factor"]["losses"]).tolist() == [True, False, True]
        lbfgs, adam, none = result["no factor"]["messages"]
        assert "expected a finite likelihood" in lbfgs
        assert lbfgs == adam
        assert "no factor" in none
    assert [result["no factor"]["calls"] for result in together] == [3] + [0] * (len(together) - 1)


def test_without_a_seed_ranks_agree_on_one(together):
    assert len({result["unseeded"] for result in together}) == 1


def test_different_data_is_an_error_on_every_rank(together):
    for result in together:
        assert "y: expected the same data on all" in result["different"]


def test_what_rank_0_reads_or_fails_to_read_reaches_all(together):
    X, y = programs.data(6)
    for result in together:
        np.testing.assert_array_equal(result["broadcasts"]["X"], X)
        np.testing.assert_array_equal(result["broadcasts"]["y"], y)
        assert "no such table" in result["broadcasts"]["messages"][0]


def test_ranks_may_work_apart(together):
    assert len({result["apart"] for result in together}) == len(together)


def test_one_process_does_not_import_the_group():
    program = (
        "import sys, numpy as np, megagp\n"
        "X = np.random.default_rng(0).normal(size=(30, 2))\n"
        "megagp.GPRegressor(random_state=0).fit(X, X[:, 0]).predict(X, return_std=True)\n"
        "assert 'megagp.distributed.group' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
