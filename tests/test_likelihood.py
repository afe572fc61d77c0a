"""The likelihood and its gradient: dense against NumPy, stochastic against dense."""

import numpy as np
import pytest
import torch

import reference
from megagp import KernelOperator
from megagp.covariance import Covariance
from megagp.kernels import (
    RBF,
    Hyperparameter,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
)
from megagp.likelihood import dense, generalised_least_squares, stochastic
from megagp.mean import MEANS, basis
from megagp.preconditioners import AdaptivePreconditioner, PivotedCholesky, random_pivots
from megagp.training.parameters import Parameters


def problem(kernel, n, noise, d=2, p=1, mean="constant", seed=0, **options):
    """(K̂, Y, H) of data that a GP like this could have made, and the same as arrays."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    variances = noise * np.ones(n)
    f = np.sin(2 * X[:, :1] + np.arange(p)) + 0.5 * X[:, -1:] ** 2 + 1
    Y = f + np.sqrt(variances)[:, None] * rng.normal(size=(n, p))
    covariance = Covariance(KernelOperator(X, kernel, **options), torch.from_numpy(variances))
    Y = torch.from_numpy(Y)
    H = basis(covariance.operator.X, mean)
    return covariance, Y, H


def arrays(covariance, Y, H):
    return covariance.noise.numpy(), covariance.operator.X.numpy(), Y.numpy(), H.numpy()


def preconditioner(covariance, rank):
    rng = np.random.default_rng(0)
    return PivotedCholesky(covariance, random_pivots(covariance.operator, rank, rng))


def estimate(covariance, Y, H, rank, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    options = {"rtol": 1e-3, "probes": 30} | options
    return stochastic(covariance, Y, H, preconditioner(covariance, rank), generator, **options)


def flat(gradient):
    return np.concatenate([np.atleast_1d(gradient[name].numpy()) for name in sorted(gradient)])


# ---- dense, against NumPy -------------------------------------------------------------------

DENSE = {
    "matern12": Matern12(0.8, 1.2),
    "matern32-ard": Matern32([0.7, 1.6], 1.2),
    "matern52": Matern52(1.1, 0.5),
    "rbf-ard": RBF([0.7, 1.6], 2.0),
    "rational-quadratic": RationalQuadratic(0.9, 1.3, 0.7),
    "sum": Matern32([0.7, 1.6]) + Linear(2.0, 0.3).freeze("lengthscale"),
    "product": 0.7 * RBF(1.2) * Periodic(1.3, period=2.5, active_dims=[0]),
}


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize("kernel", DENSE.values(), ids=DENSE)
def test_dense(kernel, mean, p):
    case = problem(kernel, 50, np.linspace(0.05, 0.5, 50), p=p, mean=mean)
    found = dense(*case)
    assert found.value == pytest.approx(reference.log_likelihood(kernel, *arrays(*case)), rel=1e-9)
    expected = reference.likelihood_gradient(kernel, *arrays(*case))
    assert found.gradient.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found.gradient[name], expected[name], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        found.trend.coefficients, reference.trend(kernel, *arrays(*case)), rtol=1e-7, atol=1e-8
    )
    assert found.standard_error == 0


@pytest.mark.parametrize("noise", [1e-6, 1e-4, 1.0, 100.0])
@pytest.mark.parametrize("n", [1, 2, 100])
def test_dense_value_over_sizes_and_noises(n, noise):
    kernel = Matern32(0.9, 1.4)
    case = problem(kernel, n, noise)
    expected = reference.log_likelihood(kernel, *arrays(*case))
    assert dense(*case).value == pytest.approx(expected, rel=1e-7, abs=1e-7)


def test_profile_likelihood_is_the_largest_over_the_mean():
    kernel = Matern32()
    covariance, Y, H = problem(kernel, 60, 0.1, mean="linear")
    best = dense(covariance, Y, H)
    beta = best.trend.coefficients
    nothing = H[:, :0]
    assert dense(covariance, Y - H @ beta, nothing).value == pytest.approx(best.value)
    for shift in np.random.default_rng(0).normal(scale=0.1, size=(5, *beta.shape)):
        moved = Y - H @ (beta + torch.from_numpy(shift))
        assert dense(covariance, moved, nothing).value < best.value


def test_outputs_are_independent():
    kernel = RBF(0.8)
    covariance, Y, H = problem(kernel, 60, 0.1, p=3)
    together = dense(covariance, Y, H)
    alone = [dense(covariance, Y[:, [j]], H) for j in range(3)]
    assert together.value == pytest.approx(sum(one.value for one in alone))
    np.testing.assert_allclose(
        flat(together.gradient), sum(flat(one.gradient) for one in alone), rtol=1e-8
    )


# ---- generalised least squares --------------------------------------------------------------


@pytest.mark.parametrize("column", [0, 1, 2])
@pytest.mark.parametrize("value", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("way", ["dense", "stochastic"])
def test_a_constant_input_under_a_linear_mean(column, value, way):
    """H has dependent columns (or one of zeros): β stays small, the fit is the same."""
    kernel = Matern32()
    covariance, Y, _ = problem(kernel, 80, 0.1, d=3)
    X = covariance.operator.X.clone()
    X[:, column] = value
    covariance = Covariance(KernelOperator(X, kernel), covariance.noise)
    H = basis(X, "linear")
    fewer = torch.cat([H[:, :1], H[:, [1 + j for j in range(3) if j != column]]], dim=1)
    if way == "dense":
        found, plain = dense(covariance, Y, H), dense(covariance, Y, fewer)
    else:
        found, plain = (estimate(covariance, Y, h, 20, rtol=1e-8) for h in (H, fewer))
    assert found.value == pytest.approx(plain.value, rel=1e-6)
    assert found.solve.converged
    assert float(found.trend.coefficients.abs().max()) < 100
    assert float(found.trend.covariance.abs().max()) < 100
    np.testing.assert_allclose(
        H @ found.trend.coefficients, fewer @ plain.trend.coefficients, atol=1e-5
    )
    if value == 0:
        assert float(found.trend.coefficients[1 + column]) == 0


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_least_squares_does_not_mind_units(scale):
    rng = np.random.default_rng(0)
    H, Y = rng.normal(size=(40, 3)), rng.normal(size=(40, 2))
    H[:, 1] *= scale
    V = np.linalg.inv(np.diag(rng.uniform(0.5, 2, 40)))
    H, Y, VH, VY = (torch.from_numpy(A) for A in (H, Y, V @ H, V @ Y))
    found = generalised_least_squares(H, Y, VH, VY)
    expected = np.linalg.solve(H.T @ VH, H.T @ VY)
    np.testing.assert_allclose(found.coefficients, expected, rtol=1e-7)
    np.testing.assert_allclose(found.covariance, np.linalg.inv(H.T @ VH), rtol=1e-6)


def test_least_squares_without_columns():
    Y = torch.ones(5, 2, dtype=torch.float64)
    found = generalised_least_squares(Y[:, :0], Y, Y[:, :0], Y)
    assert found.coefficients.shape == (0, 2)
    assert found.covariance.shape == (0, 0)


# ---- stochastic, against dense --------------------------------------------------------------

KERNELS = {
    "matern12": Matern12(1.5, 1.2),
    "matern32": Matern32(1.0),
    "matern32-ard": Matern32([0.6, 1.0, 3.0], 2.0),
    "rbf-ard": RBF([0.8, 1.0, 3.0]),
    "sum": Matern32(1.0) + 0.5 * RBF(3.0),
}


def check_value(case, rank, **options):
    """Within 4 standard errors, and within 0.5 % of the larger of |value| and n."""
    exact = dense(*case)
    found = estimate(*case, rank, **options)
    assert found.solve.converged
    assert found.standard_error > 0
    # Beside the error of the probes, that of solves, and of entries rounded to float32: ½ vᵀ ΔK v
    # with |ΔK| about 2⁻²⁴ of K, which is most of it where v is large.
    covariance, Y, _ = case
    rounding = 0.0
    if covariance.operator.dtype == torch.float32:
        size = covariance.operator.diagonal().max() * exact.weights.norm() ** 2
        rounding = 2.0**-24 * float(size)
    allowed = 4 * found.standard_error + 2e-4 * len(Y) + rounding
    assert abs(found.value - exact.value) < allowed
    assert abs(found.value - exact.value) < 0.005 * max(abs(exact.value), len(case[1]))
    np.testing.assert_allclose(
        found.trend.coefficients, exact.trend.coefficients, rtol=0.05, atol=0.01
    )


@pytest.mark.parametrize("noise", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_value(kernel, noise):
    # The variance of a probe is 2 |log P⁻¹K̂|² (Frobenius), with an eigenvalue up to K_ii / noise
    # for each point beyond the rank: 0.5 % at this n and small noise takes far more than the 10
    # probes of training, and a smaller residual for the quadratic form.
    small = {"rank": 450, "probes": 800, "rtol": 1e-4}
    check_value(problem(kernel, 500, noise, d=3), **small if noise < 0.1 else {"rank": 100})


@pytest.mark.parametrize("noise", [1e-3, 1e-1])
def test_value_at_1500(noise):
    check_value(problem(Matern32([0.6, 1.0, 3.0]), 1500, noise, d=3), 700, probes=60)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("kernel", [KERNELS["matern32-ard"], KERNELS["rbf-ard"]], ids=str)
def test_value_at_3000(kernel, noise):
    dtype = "float64" if noise == 1e-4 else "float32"  # which does not reach the tolerance there
    check_value(problem(kernel, 3000, noise, d=3, dtype=dtype), 2000, probes=200, rtol=1e-4)


def check_value_and_gradient(case, P, probes=10):
    """The mean of independent repetitions: within standard errors, and 0.5 % in the value.

    0.5 % of the larger of |value| and n, as the value may be near 0. Solves are as loose as in
    training (0.01) and entries in float32, and nothing more is allowed for that.
    """
    exact = dense(*case)
    found = [
        stochastic(*case, P, torch.Generator().manual_seed(s), probes=probes) for s in range(12)
    ]
    assert all(f.solve.converged for f in found)
    repetitions = np.sqrt(len(found))
    miss = abs(np.mean([f.value for f in found]) - exact.value)
    assert miss < 4 * np.sqrt(np.mean([f.standard_error**2 for f in found])) / repetitions
    assert miss < 0.005 * max(abs(exact.value), len(case[1]))
    draws = np.array([flat(f.gradient) for f in found])
    error = draws.std(axis=0, ddof=1) / repetitions
    # t with 11 degrees of freedom.
    assert (np.abs(draws.mean(axis=0) - flat(exact.gradient)) < 4.5 * error).all()
    # For that to mean something errors are small: a derivative is a difference of terms of about
    # n p / 2 for each of the three dimensions that a lengthscale serves.
    assert (error < 0.02 * case[1].numel()).all()


def default_preconditioner(covariance):
    """As in training: the rank from the cost model, twelve neighbours for the rest."""
    return AdaptivePreconditioner(neighbours=12).make(covariance, columns=12)


NOISES = [1e-4, 1e-2, 1.0]
FAMILIES = [Matern12, Matern32, Matern52, RBF]
LENGTHSCALES = {"shared": 1.0, "ard": [0.6, 1.0, 3.0]}


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("lengthscale", LENGTHSCALES.values(), ids=LENGTHSCALES)
@pytest.mark.parametrize("family", FAMILIES)
def test_value_and_gradient(family, lengthscale, noise):
    case = problem(family(lengthscale, 1.5), 500, noise, d=3)
    # Of RBF with little noise fifty pivots leave much: see test_value.
    probes = 20 if family is RBF and noise < 1e-3 else 10
    check_value_and_gradient(case, default_preconditioner(case[0]), probes)


@pytest.mark.parametrize("noise", NOISES)
def test_value_and_gradient_at_1500(noise):
    case = problem(Matern32(LENGTHSCALES["ard"], 1.5), 1500, noise, d=3)
    check_value_and_gradient(case, default_preconditioner(case[0]))


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("family", FAMILIES)
def test_value_and_gradient_at_3000(family, noise):
    case = problem(family(LENGTHSCALES["ard"], 1.5), 3000, noise, d=3)
    check_value_and_gradient(case, default_preconditioner(case[0]))


@pytest.mark.parametrize(
    ("kernel", "noise", "p"),
    [
        (KERNELS["matern32-ard"], 1e-4, 1),
        (KERNELS["matern32-ard"], 1.0, 2),
        (KERNELS["sum"], 0.01, 1),
        (KERNELS["rbf-ard"], 0.1, 3),
    ],
)
def test_value_and_gradient_with_pivots_alone(kernel, noise, p):
    case = problem(kernel, 500, noise, d=3, p=p)
    # As in test_value: pivots leave most of small noise to the probes.
    check_value_and_gradient(case, preconditioner(case[0], 450), 60 if noise < 1e-3 else 10)


def test_the_standard_error_is_that_of_the_value():
    """The spread of values over seeds is what the evaluation says of itself."""
    case = problem(Matern32(1.0), 200, 0.01)
    found = [estimate(*case, 30, seed=s, probes=10) for s in range(30)]
    spread = np.std([f.value for f in found], ddof=1)
    said = np.sqrt(np.mean([f.standard_error**2 for f in found]))
    assert 0.7 < spread / said < 1.4
    values = np.array([f.value for f in found])
    assert abs(values.mean() - dense(*case).value) < 4 * spread / np.sqrt(30) + 0.03


def test_many_probes_converge():
    case = problem(Matern32([0.6, 1.0, 3.0]), 200, 0.05, d=3, p=2, dtype="float64")
    exact = dense(*case)
    misses = {}
    for probes in (10, 1000):
        found = estimate(*case, 50, probes=probes, rtol=1e-6)
        misses[probes] = np.abs(flat(found.gradient) - flat(exact.gradient)).max()
        assert abs(found.value - exact.value) < 4 * found.standard_error
    assert found.standard_error < 1
    assert misses[1000] < 0.02 * np.abs(flat(exact.gradient)).max()
    assert misses[1000] < misses[10]


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_full_rank_needs_no_luck(n, mean):
    """With P = K̂ there is nothing left to estimate, in the value."""
    case = problem(Matern32(0.9), n, 0.1, mean=mean)
    exact = dense(*case)
    for min_iter in (0, 10):
        found = estimate(*case, n, rtol=1e-9, min_iter=min_iter)
        assert found.solve.converged
        assert found.value == pytest.approx(exact.value, abs=1e-3)


def test_warm_start_changes_little_and_saves_work():
    case = problem(Matern32(1.0), 300, 0.05)
    cold = estimate(*case, 20, rtol=1e-5)
    warm = estimate(*case, 20, rtol=1e-5, start=cold.solutions)
    assert warm.value == pytest.approx(cold.value, rel=1e-5)
    assert not warm.solve.iterations[:2].any()
    assert torch.equal(warm.solve.iterations[2:], cold.solve.iterations[2:])


def test_vector_noise():
    noise = np.geomspace(1e-3, 1.0, 300)
    case = problem(Matern32(1.0), 300, noise)
    exact = dense(*case)
    found = estimate(*case, 100, probes=100)
    assert abs(found.value - exact.value) < 4 * found.standard_error + 0.05
    draws = [flat(estimate(*case, 100, seed=s).gradient) for s in range(10)]
    error = np.std(draws, axis=0, ddof=1) / np.sqrt(10)
    assert (np.abs(np.mean(draws, axis=0) - flat(exact.gradient)) < 5 * error + 0.05).all()


def test_frozen_hyperparameters_have_no_gradient():
    kernel = Matern32([0.7, 1.3], 1.5).freeze("lengthscale")
    case = problem(kernel, 60, 0.1)
    exact, found = dense(*case), estimate(*case, 20)
    assert exact.gradient.keys() == found.gradient.keys() == {"outputscale", "noise_variance"}
    thawed = dense(*problem(kernel.copy().unfreeze(), 60, 0.1))
    assert thawed.gradient["outputscale"] == pytest.approx(float(exact.gradient["outputscale"]))
    kernel.freeze()
    assert dense(*case).gradient.keys() == {"noise_variance"}
    assert estimate(*case, 20).gradient.keys() == {"noise_variance"}
    kernel.unfreeze("outputscale")  # read at each call, as the values are
    assert dense(*case).gradient.keys() == {"outputscale", "noise_variance"}
    assert estimate(*case, 20).gradient.keys() == {"outputscale", "noise_variance"}


@pytest.mark.parametrize("way", ["dense", "stochastic"])
def test_tied_hyperparameters(way):
    """One kernel in two parts: the derivatives by its two names add up to that of the one."""
    shared = Matern32([0.7, 1.6])
    kernel = shared + RBF(0.5) * shared
    case = problem(kernel, 50, 0.1, dtype="float64")
    if way == "dense":
        gradient = dense(*case).gradient
    else:
        gradient = estimate(*case, 25, probes=2000, rtol=1e-8).gradient
    noise = Hyperparameter("noise_variance", 0.1)
    parameters = Parameters(kernel, noise, 1e-6)
    found = parameters.gather(gradient)
    theta, step = parameters.get(), 1e-5
    assert len(found) == len(theta) == 2 + 1 + 2 + 1
    expected = np.zeros_like(theta)
    for i in range(len(theta)):
        for sign in (1, -1):
            moved = theta.copy()
            moved[i] += sign * step
            parameters.set(moved)
            variances = np.full(50, float(noise.value))
            value = reference.log_likelihood(kernel, variances, *arrays(*case)[1:])
            expected[i] += sign * value / (2 * step)
    parameters.set(theta)
    tolerance = 1e-5 if way == "dense" else 0.05 * np.abs(expected).max()
    np.testing.assert_allclose(found, expected, atol=tolerance)


def test_same_seed_same_bits():
    case = problem(Matern32(1.0), 200, 0.05)
    first, second = (estimate(*case, 20, seed=3) for _ in range(2))
    assert first.value == second.value
    assert np.array_equal(flat(first.gradient), flat(second.gradient))
    assert estimate(*case, 20, seed=4).value != first.value


def test_probes_may_have_a_tolerance_of_their_own():
    case = problem(Matern32(1.0), 300, 0.05)
    exact = dense(*case)
    loose = estimate(*case, 50, rtol=1e-5, probe_rtol=0.1)
    tight = estimate(*case, 50, rtol=1e-5)
    assert (loose.solve.iterations[2:] < tight.solve.iterations[2:]).all()
    torch.testing.assert_close(loose.weights, tight.weights, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(loose.weights, exact.weights, atol=1e-3)
    # The probes' own error is larger than that of stopping early.
    assert abs(loose.value - tight.value) < tight.standard_error


def test_one_probe_knows_no_error():
    case = problem(Matern32(1.0), 50, 0.05)
    found = estimate(*case, 20, probes=1)
    assert found.standard_error == np.inf
    assert np.isfinite(found.value)


# ---- Y held to float64 ----------------------------------------------------------------


class Spoilt(Covariance):
    """Acts on y and 1 among thirty probes as a matrix that is not positive."""

    def matmul(self, V):
        found = super().matmul(V)
        if V.shape[1] == 32:  # all of y, 1 and thirty probes
            found[:, :2] = -V[:, :2]
        return found


@pytest.mark.parametrize("start", [False, True])
def test_y_refined_with_float64_residuals(start):
    covariance, Y, H = problem(Matern32([0.7, 1.6]), 400, 0.01, dtype="float64")
    tight = {"rtol": 1e-8, "probe_rtol": 1e-8}
    whole = estimate(covariance, Y, H, 300, **tight)
    begin = {"start": 0.9 * whole.solutions} if start else {}
    refined = estimate(covariance, Y, H, 300, precise=covariance, refine=True, **begin, **tight)
    assert (whole.refined, refined.refined) == (False, True)
    assert refined.solve.converged
    assert len(refined.solve.status) == len(whole.solve.status)
    assert refined.value == pytest.approx(whole.value, rel=1e-7)
    assert refined.standard_error == pytest.approx(whole.standard_error, rel=1e-5)
    np.testing.assert_allclose(flat(refined.gradient), flat(whole.gradient), rtol=1e-5, atol=1e-4)


def test_float32_is_refined_to_a_residual_in_float64():
    covariance, Y, H = problem(Matern32([0.7, 1.6]), 900, 1e-3)
    K_hat = covariance.operator.astype("float64").block() + torch.diag(covariance.noise)
    B = torch.cat([Y, H], dim=1)
    tight = {"rtol": 1e-7, "probe_rtol": 0.1, "precise": covariance.precise()}
    plain, refined = (
        estimate(covariance, Y, H, 300, refine=refine, max_iter=2000, **tight)
        for refine in (False, True)
    )
    away = [float((B - K_hat @ e.solutions).norm() / B.norm()) for e in (plain, refined)]
    assert refined.refined
    assert refined.solve.converged
    np.testing.assert_allclose(
        refined.solve.R[:, :2], B - K_hat @ refined.solutions, rtol=1e-6, atol=1e-9
    )
    assert away[1] < 0.1 * away[0]


def test_y_is_refined_where_only_it_fails():
    covariance, Y, H = problem(Matern32([0.7, 1.6]), 400, 0.01, dtype="float64")
    spoilt = Spoilt(covariance.operator, covariance.noise)
    tight = {"rtol": 1e-8, "probe_rtol": 1e-8}
    whole = estimate(covariance, Y, H, 300, **tight)
    assert not estimate(spoilt, Y, H, 300, **tight).solve.converged
    found = estimate(spoilt, Y, H, 300, precise=covariance, **tight)
    assert found.refined
    assert found.solve.converged
    assert found.value == pytest.approx(whole.value, rel=1e-7)
    np.testing.assert_allclose(flat(found.gradient), flat(whole.gradient), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("noise", "outputscale"), [(1e-3, 50.0), (3e-4, 50.0), (1e-2, 1.0)])
def test_what_float32_changes(noise, outputscale):
    # Wide enough for entries of all sizes, and none that would be summed as k - 1.
    covariance, Y, H = problem(Matern32(2.0, outputscale), 600, noise)
    operator, n = covariance.operator, len(Y)
    rounded = operator.matmul(torch.eye(n, dtype=torch.float64)).numpy()
    rounded = 0.5 * (rounded + rounded.T) + np.diag(covariance.noise.numpy())
    X = operator.X.numpy()
    exact = reference.matrix(operator.kernel, X, X) + np.diag(covariance.noise.numpy())
    parts = (Y.numpy(), H.numpy())
    change = abs(_log_likelihood(rounded, *parts) - _log_likelihood(exact, *parts))
    way = {"rtol": 0.01, "precise": covariance.precise()}
    found = estimate(covariance, Y, H, 300, weigh_rounding=True, **way).rounding
    # Its terms are added without their signs: a bound more than an estimate, but for what is
    # nothing at all.
    assert change <= 1.5 * found + 1e-6 * n
    assert found <= 20 * change
    assert estimate(covariance, Y, H, 300, **way).rounding == 0.0


def _log_likelihood(K_hat, Y, H):
    beta = np.linalg.solve(H.T @ np.linalg.solve(K_hat, H), H.T @ np.linalg.solve(K_hat, Y))
    e = Y - H @ beta
    quadratic, logdet = float((e * np.linalg.solve(K_hat, e)).sum()), np.linalg.slogdet(K_hat)[1]
    return -0.5 * (quadratic + logdet + len(Y) * np.log(2 * np.pi))
