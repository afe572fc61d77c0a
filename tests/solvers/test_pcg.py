"""PCG: solutions against numpy.linalg.solve, and whether what it claims is true."""

import numpy as np
import pytest
import torch

from megagp.solvers import Status, pcg
from megagp.solvers.pcg import PATIENCE, RECOMPUTE


def spd(n, condition, seed=0):
    """A symmetric positive definite matrix with eigenvalues from 1 down to 1 / condition."""
    Q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))
    return torch.from_numpy((Q * np.geomspace(1, 1 / condition, n)) @ Q.T)


def right_hand_sides(n, t, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, t)))


def product(A):
    return lambda V: A @ V


def relative_residual(A, X, B):
    return ((B - A @ X).norm(dim=0) / B.norm(dim=0)).numpy()


def deflation(A):
    """The inverse of the upper half of the spectrum, 1 elsewhere, scaled to join."""
    values, Q = np.linalg.eigh(A.numpy())
    values = np.maximum(values, np.median(values))
    return torch.from_numpy((Q / values) @ Q.T)


PRECONDITIONERS = {
    "none": lambda A: None,
    "identity": lambda A: lambda R: R,  # the very tensor it was given
    "jacobi": lambda A: lambda R: R / A.diagonal()[:, None],
    "deflation": lambda A: product(deflation(A)),
    "exact": lambda A: product(torch.from_numpy(np.linalg.inv(A.numpy()))),
}


@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("name", PRECONDITIONERS)
@pytest.mark.parametrize(("n", "t"), [(1, 1), (2, 1), (60, 1), (60, 33)])
def test_solves(name, condition, n, t):
    A, B = spd(n, condition), right_hand_sides(n, t)
    result = pcg(product(A), B, precondition=PRECONDITIONERS[name](A), rtol=1e-10, max_iter=5000)
    assert result.converged
    assert relative_residual(A, result.x, B).max() <= 1.1e-10
    expected = np.linalg.solve(A.numpy(), B.numpy())
    scale = np.linalg.norm(expected, axis=0)
    assert (np.linalg.norm(result.x.numpy() - expected, axis=0) / scale).max() < 1e-10 * condition
    np.testing.assert_allclose(result.residual, relative_residual(A, result.x, B), rtol=1e-3)
    if name == "exact":
        assert int(result.iterations.max()) <= 3


@pytest.mark.parametrize("name", ["none", "identity", "jacobi"])
def test_an_identity_costs_no_iterations(name):
    A, B = spd(80, 1e2), right_hand_sides(80, 2)
    plain = pcg(product(A), B, rtol=1e-8)
    other = pcg(product(A), B, precondition=PRECONDITIONERS[name](A), rtol=1e-8)
    assert int(other.iterations.max()) <= 1.1 * int(plain.iterations.max())


def test_at_most_n_iterations_on_few_distinct_eigenvalues():
    """CG ends after as many iterations as A has distinct eigenvalues."""
    Q, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(50, 50)))
    A = torch.from_numpy((Q * np.repeat([1.0, 2.0, 7.0, 30.0, 31.0], 10)) @ Q.T)
    result = pcg(product(A), right_hand_sides(50, 3), rtol=1e-9)
    assert result.converged
    assert int(result.iterations.max()) <= 5


def test_each_column_has_its_tolerance():
    A, B = spd(120, 1e4), right_hand_sides(120, 1).repeat(1, 4)
    rtol = torch.tensor([0.5, 1e-2, 1e-5, 1e-9], dtype=torch.float64)
    result = pcg(product(A), B, rtol=rtol, max_iter=3000)
    assert result.converged
    found = relative_residual(A, result.x, B)
    assert (found <= 1.05 * rtol.numpy()).all()
    assert (np.diff(result.iterations.numpy()) > 0).all()
    # Each stopped when it was done and not with the last.
    assert found[0] > 1e-2


def test_dropped_columns_keep_their_solution_and_cost_nothing():
    A = spd(120, 50.0)
    B = right_hand_sides(120, 3)
    widths = []

    def counted(V):
        widths.append(V.shape[1])
        return A @ V

    rtol = torch.tensor([0.9, 1e-6, 1e-6], dtype=torch.float64)
    together = pcg(counted, B, rtol=rtol, max_iter=3000)
    alone = pcg(product(A), B[:, :1], rtol=0.9)
    assert 0 < int(alone.iterations) < RECOMPUTE
    torch.testing.assert_close(together.x[:, :1], alone.x, rtol=1e-10, atol=1e-12)
    assert int(together.iterations[0]) == int(alone.iterations[0])
    assert {2, 3} <= set(widths)
    assert sum(widths) == together.products
    alpha = together.coefficients.alpha
    assert alpha[: together.iterations[0], 0].isfinite().all()
    assert alpha[together.iterations[0] :, 0].isnan().all()


@pytest.mark.parametrize("min_iter", [0, 5])
def test_zero_right_hand_sides(min_iter):
    A, B = spd(40, 1e2), right_hand_sides(40, 3)
    B[:, 1] = 0
    result = pcg(product(A), B, rtol=1e-8, min_iter=min_iter)
    assert result.converged
    assert not result.x[:, 1].any()
    assert int(result.iterations[1]) == 0
    assert float(result.residual[1]) == 0
    assert relative_residual(A, result.x[:, [0, 2]], B[:, [0, 2]]).max() <= 1e-8
    assert pcg(product(A), torch.zeros_like(B), rtol=1e-8, min_iter=min_iter).converged


def test_no_right_hand_sides():
    result = pcg(product(spd(5, 10.0)), torch.zeros(5, 0, dtype=torch.float64))
    assert result.converged
    assert result.x.shape == (5, 0)
    assert result.products == 0


@pytest.mark.parametrize("scale", [1e-100, 1e-12, 1.0, 1e12, 1e100])
def test_scale_of_the_right_hand_side_does_not_matter(scale):
    A, B = spd(40, 1e2), right_hand_sides(40, 2)
    result, plain = pcg(product(A), scale * B, rtol=1e-8), pcg(product(A), B, rtol=1e-8)
    assert result.converged
    torch.testing.assert_close(result.x / scale, plain.x, rtol=1e-6, atol=0)


def test_warm_start():
    A, B = spd(80, 1e3), right_hand_sides(80, 3)
    exact = torch.linalg.solve(A, B)
    result = pcg(product(A), B, rtol=1e-8, x0=exact)
    assert result.converged
    assert not result.iterations.any()
    torch.testing.assert_close(result.x, exact, rtol=0, atol=0)
    near = exact + 1e-5 * right_hand_sides(80, 3, seed=3)
    before = near.clone()
    from_near = pcg(product(A), B, rtol=1e-8, x0=near)
    assert torch.equal(near, before)
    assert relative_residual(A, from_near.x, B).max() <= 1.05e-8
    cold = pcg(product(A), B, rtol=1e-8)
    assert (from_near.iterations < cold.iterations).all()


def test_max_iter_tells_the_true_residual():
    A, B = spd(200, 1e6), right_hand_sides(200, 2)
    result = pcg(product(A), B, rtol=1e-10, max_iter=7)
    assert result.status == (Status.MAX_ITER,) * 2
    assert result.worst is Status.MAX_ITER
    assert result.iterations.tolist() == [7, 7]
    np.testing.assert_allclose(result.residual, relative_residual(A, result.x, B), rtol=1e-12)
    assert "raise max_iter" in result.explain(1e-10)
    # Of the column that is furthest from what was asked of it.
    asked = result.residual / torch.tensor([2.0, 3.0])
    assert f"tolerance {float(asked[1]):.2g}" in result.explain(asked)
    nothing = pcg(product(A), B, rtol=1e-10, max_iter=0)
    assert nothing.status == (Status.MAX_ITER,) * 2
    assert nothing.residual.tolist() == [1.0, 1.0]


class Drifting:
    """Products that lie once: A V for the calls before `lie`, (1 + error) A V in that one."""

    def __init__(self, A, lie, error=0.3):
        self.A, self.lie, self.error, self.calls = A, lie, error, 0

    def __call__(self, V):
        self.calls += 1
        return self.A @ V * (1 + self.error * (self.calls == self.lie))


@pytest.mark.parametrize("lie", [1, 4, 8])
def test_verification_catches_drift(lie):
    """After one false product the recurrence believes in a residual that is not there."""
    A, B = spd(60, 50.0), right_hand_sides(60, 2)
    checked = pcg(Drifting(A, lie), B, rtol=1e-6)
    assert checked.converged
    assert relative_residual(A, checked.x, B).max() <= 1.1e-6
    believed = pcg(Drifting(A, lie), B, rtol=1e-6, verify=False)
    assert believed.converged
    assert relative_residual(A, believed.x, B).max() > 1e-3


def test_verification_of_columns_done_before_max_iter():
    """A column that claimed too much is found out even if another one uses up the iterations."""
    A = torch.block_diag(torch.eye(5, dtype=torch.float64), spd(200, 1e7))
    B = torch.zeros(205, 2, dtype=torch.float64)
    B[0, 0] = 1.0  # an eigenvector: one iteration
    B[5:, 1] = right_hand_sides(200, 1)[:, 0]
    result = pcg(Drifting(A, 1), B, rtol=torch.tensor([1e-6, 1e-12]), max_iter=20)
    np.testing.assert_allclose(result.residual, relative_residual(A, result.x, B), rtol=1e-9)
    assert result.status[0] is Status.MAX_ITER
    assert float(result.residual[0]) > 0.1


@pytest.mark.parametrize("condition", [1e2, 1e3, 1e4])
@pytest.mark.parametrize("error", [1e-4, 0.01, 0.3])
def test_recomputed_at_intervals(condition, error):
    """Without verification too: drift is found at the next recomputation, and survived."""
    A, B = spd(150, condition), right_hand_sides(150, 1)
    result = pcg(Drifting(A, 3, error), B, rtol=1e-8, max_iter=5000, verify=False)
    assert int(result.iterations) > RECOMPUTE
    assert result.converged
    assert relative_residual(A, result.x, B).max() <= 1e-7
    plain = pcg(product(A), B, rtol=1e-8, max_iter=5000)
    assert int(result.iterations) <= 3 * int(plain.iterations)


def rounded(K, noise):
    """K V with K, V and the sums in float32, as most libraries have it; noise in float64."""
    return lambda V: (K.float() @ V.float()).double() + noise * V


@pytest.mark.parametrize("noise", [1e-10, 1e-7])
def test_stagnation(noise):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    K = torch.from_numpy(np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(axis=2)))
    B = torch.from_numpy(np.sin(X.sum(axis=1)) + 0.1 * rng.normal(size=200))[:, None]
    result = pcg(rounded(K, noise), B, rtol=1e-6, max_iter=5000)
    assert result.status == (Status.STAGNATED,)
    assert PATIENCE <= int(result.iterations) < 5000
    found = relative_residual(K + noise * torch.eye(200), result.x, B)
    np.testing.assert_allclose(result.residual, found, rtol=0.05)
    # Stopped where x is no longer of use, not where it is worse than none: its energy is lower.
    x = result.x
    assert float((0.5 * x * (K @ x + noise * x) - B * x).sum()) < 0
    assert "raise the noise variance" in result.explain(1e-6)


def test_noise_in_the_products_stagnates():
    """Products with fresh errors end at some residual, and x there is the best there was."""
    A, B = spd(100, 1e2), right_hand_sides(100, 2)
    generator = torch.Generator().manual_seed(0)

    def noisy(V):
        Q = A @ V
        E = torch.randn(Q.shape, generator=generator, dtype=torch.float64)
        return Q + 1e-4 * Q.norm(dim=0) * E

    result = pcg(noisy, B, rtol=1e-9, max_iter=5000)
    assert set(result.status) == {Status.STAGNATED}
    assert relative_residual(A, result.x, B).max() < 0.1
    np.testing.assert_allclose(result.residual, relative_residual(A, result.x, B), rtol=0.5)


def test_a_tolerance_below_roundoff_stagnates():
    A, B = spd(60, 1e2), right_hand_sides(60, 2)
    result = pcg(product(A), B, rtol=1e-17, max_iter=5000)
    assert result.status == (Status.STAGNATED,) * 2
    assert int(result.iterations.max()) < 2500
    assert relative_residual(A, result.x, B).max() < 1e-13


def test_breakdown_on_an_indefinite_matrix():
    A = torch.diag(torch.tensor([3.0, 2.0, 1.0, -4.0], dtype=torch.float64))
    B = torch.tensor([[1.0, 1.0, 1.0, 2.0], [1.0, 2.0, 3.0, 0.0]], dtype=torch.float64).T
    result = pcg(product(A), B, rtol=1e-8)
    assert result.status == (Status.BREAKDOWN, Status.CONVERGED)
    assert result.worst is Status.BREAKDOWN
    found = relative_residual(A, result.x, B)
    np.testing.assert_allclose(result.residual, found, atol=1e-12)
    assert found.max() <= 1.0  # zero would have that
    assert "positive definite" in result.explain(1e-8)


def test_breakdown_of_the_preconditioner():
    A, B = spd(30, 10.0), right_hand_sides(30, 1)
    result = pcg(product(A), B, precondition=lambda R: -R, rtol=1e-8)
    assert result.status == (Status.BREAKDOWN,)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("first", [1, 4])
def test_breakdown_on_numbers_that_are_not_finite(bad, first):
    A, B = spd(60, 1e3), right_hand_sides(60, 2)
    calls = 0

    def spoiled(V):
        nonlocal calls
        calls += 1
        Q = A @ V
        if calls >= first and V.shape[1] == 2:
            Q[3, 0] = bad
        return Q

    result = pcg(spoiled, B, rtol=1e-8, max_iter=500, verify=False)
    assert result.status == (Status.BREAKDOWN, Status.CONVERGED)
    assert result.x.isfinite().all()
    assert int(result.iterations[0]) == first - 1
    np.testing.assert_allclose(result.residual[0], relative_residual(A, result.x, B)[0], rtol=1e-6)
    assert relative_residual(A, result.x, B)[1] <= 1e-7


@pytest.mark.parametrize("n", [1, 3, 60])
def test_min_iter(n):
    A, B = spd(n, 20.0), right_hand_sides(n, 2)
    result = pcg(product(A), B, rtol=1.0, min_iter=10)
    assert result.converged
    # No more than there is to do: n iterations solve it to the last bit.
    expected = min(10, n)
    assert (result.iterations >= expected).all()
    assert (result.iterations <= 10).all()
    assert pcg(product(A), B, rtol=1.0).iterations.tolist() == [0, 0]


def test_callback():
    A, B = spd(60, 1e3), right_hand_sides(60, 2)
    seen = []
    result = pcg(product(A), B, rtol=1e-6, callback=lambda i, r: seen.append((i, r)))
    assert [i for i, _ in seen] == list(range(1, int(result.iterations.max()) + 1))
    assert seen[-1][1] == pytest.approx(float(result.residual.max()), rel=1e-3)
    assert all(r > 1e-6 for _, r in seen[:-1])


def test_same_bits_every_time_and_nothing_changed():
    A, B = spd(100, 1e4), right_hand_sides(100, 5)
    before = B.clone()
    first, second = (pcg(product(A), B, rtol=1e-7, max_iter=3000) for _ in range(2))
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.residual, second.residual)
    assert torch.equal(B, before)


def lanczos_matrix(alpha, beta):
    """T by the textbook, from the step sizes of one column."""
    alpha, beta = alpha.numpy(), beta.numpy()
    k = int(np.isfinite(alpha).sum())
    T = np.zeros((k, k))
    for j in range(k):
        T[j, j] = 1 / alpha[j] + (beta[j - 1] / alpha[j - 1] if j else 0)
        if j + 1 < k:
            T[j, j + 1] = T[j + 1, j] = np.sqrt(beta[j]) / alpha[j]
    return T


@pytest.mark.parametrize("name", ["none", "jacobi", "deflation"])
def test_coefficients_hold_the_spectrum(name):
    """Ritz values lie within the spectrum of P⁻¹A and reach its ends."""
    A, B = spd(80, 1e3), right_hand_sides(80, 3)
    precondition = PRECONDITIONERS[name](A)
    result = pcg(product(A), B, precondition=precondition, rtol=1e-10, max_iter=2000)
    inverse = np.eye(80) if precondition is None else precondition(torch.eye(80).double()).numpy()
    spectrum = np.sort(np.linalg.eigvals(inverse @ A.numpy()).real)
    c = result.coefficients
    for j in range(3):
        ritz = np.linalg.eigvalsh(lanczos_matrix(c.alpha[:, j], c.beta[:, j]))
        assert ritz[0] >= spectrum[0] * (1 - 1e-6)
        assert ritz[-1] <= spectrum[-1] * (1 + 1e-6)
        np.testing.assert_allclose(ritz[[0, -1]], spectrum[[0, -1]], rtol=1e-3)
        b = B[:, j].numpy()
        assert float(c.start[j]) == pytest.approx(b @ inverse @ b)


def test_a_rising_residual_is_not_stagnation():
    """On ill-conditioned A the residual exceeds 1 for long while x gets better all the time."""
    A, B = spd(300, 1e7), right_hand_sides(300, 1)
    seen = []
    result = pcg(product(A), B, rtol=0.5, max_iter=5000, callback=lambda i, r: seen.append(r))
    assert min(seen[: 5 * PATIENCE]) > 1  # the case at hand
    assert result.converged
    assert relative_residual(A, result.x, B).max() <= 1.05 * 0.5


def test_columns_stop_at_their_excess():
    """rᵀP⁻¹r is what the recurrence keeps; a tolerance of 0 leaves the end to it alone."""
    A, B = spd(80, 1e3), right_hand_sides(80, 4)
    inverse = 1 / A.diagonal()[:, None]
    excess = torch.tensor([1e-1, 1e-3, 1e-5, 1e9], dtype=torch.float64)
    result = pcg(
        product(A),
        B,
        precondition=lambda R: inverse * R,
        rtol=0.0,
        excess=excess,
        verify=False,
    )
    R = B - A @ result.x
    assert result.converged
    assert bool(((R * inverse * R).sum(0) <= 1.01 * excess).all())
    assert result.iterations[0] < result.iterations[1] < result.iterations[2]
    assert result.iterations[3] == 0


@pytest.mark.parametrize(
    "names", [{"excess": torch.ones(1)}, {"pooled": slice(0, None)}, {"smooth": True}]
)
def test_excess_pools_and_smoothing_are_not_verified(names):
    A, B = spd(10, 10.0), right_hand_sides(10, 1)
    with pytest.raises(ValueError, match="smooth: expected together with verify=False"):
        pcg(product(A), B, **names)


def test_smoothed_residuals_never_rise_and_are_those_of_what_is_found():
    A, B = spd(120, 1e5), right_hand_sides(120, 4)
    plain = pcg(product(A), B, rtol=1e-3, verify=False)
    found = pcg(product(A), B, rtol=1e-3, verify=False, smooth=True)
    assert found.converged
    assert bool((plain.history.diff(dim=0) > 0).any())  # CG's own do
    assert bool((found.history.diff(dim=0) <= 1e-12).all())
    assert bool((found.iterations < plain.iterations).any())
    assert bool((found.iterations <= plain.iterations).all())
    left = B - A @ found.x
    torch.testing.assert_close(found.R, left, rtol=0, atol=1e-9 * float(B.norm()))
    torch.testing.assert_close(found.residual, left.norm(dim=0) / B.norm(dim=0), rtol=1e-6, atol=0)


def test_smoothing_is_of_the_plain_norm():
    A, B = spd(10, 10.0), right_hand_sides(10, 1)
    with pytest.raises(ValueError, match="smooth: expected together with natural=False"):
        pcg(product(A), B, verify=False, natural=True, smooth=True)


def test_pooled_columns_end_together():
    A, B = spd(60, 1e2), right_hand_sides(60, 9)
    rtol = torch.tensor([1e-6] * 2 + [0.05] * 7, dtype=B.dtype)
    found = pcg(product(A), B, rtol=rtol, pooled=slice(2, None), verify=False)
    alone = pcg(product(A), B, rtol=rtol, verify=False)
    assert found.converged
    pool, steps = slice(2, None), int(found.iterations[2])
    assert (found.iterations[pool] == steps).all()
    together = (found.history[:, pool] / 0.05).square().mean(1)
    assert together[steps] <= 1 < together[:steps].min()
    assert alone.iterations[pool].min() < steps < alone.iterations[pool].max()
    # The others are as they would be without.
    torch.testing.assert_close(found.x[:, :2], alone.x[:, :2], rtol=1e-4, atol=1e-5)
    assert found.iterations[:2].tolist() == alone.iterations[:2].tolist()


def test_a_column_that_breaks_does_not_hold_its_pool():
    A = torch.diag(torch.linspace(1.0, 4.0, 20, dtype=torch.float64))
    A[0, 0] = -1.0
    B = right_hand_sides(20, 3)
    B[:, 0] = 0
    B[0, 0] = 1.0  # p'Ap < 0 at once
    B[0, 1:] = 0
    found = pcg(product(A), B, rtol=0.01, pooled=slice(0, None), verify=False)
    assert found.status == (Status.BREAKDOWN, Status.CONVERGED, Status.CONVERGED)
    assert found.residual[1:].square().mean().sqrt() <= 0.01


# ---- the natural measure --------------------------------------------------------------------


@pytest.mark.parametrize("started", [False, True])
def test_natural_measure_is_of_the_error_in_the_norm_of_A(started):
    rng = np.random.default_rng(0)
    Q, _ = np.linalg.qr(rng.normal(size=(60, 60)))
    A = torch.from_numpy(Q @ np.diag(np.geomspace(1e-4, 1.0, 60)) @ Q.T)
    A = 0.5 * (A + A.T)
    B = torch.from_numpy(rng.normal(size=(60, 3)))
    x = torch.linalg.solve(A, B)
    # A preconditioner within a factor 2 of A: the measure is within a factor 2 of the error's.
    inverse = torch.linalg.inv(A + 0.5 * A.diagonal().diag().clamp(max=1e-4))
    found = pcg(
        lambda V: A @ V,
        B,
        precondition=lambda R: inverse @ R,
        rtol=torch.tensor([0.1, 0.01, 1e-3], dtype=torch.float64),
        natural=True,
        verify=False,
        x0=0.5 * x if started else None,
    )
    assert found.converged
    R = B - A @ found.x
    claimed = ((R * (inverse @ R)).sum(0) / (B * (inverse @ B)).sum(0)).sqrt()
    torch.testing.assert_close(found.residual, claimed, rtol=1e-6, atol=1e-12)
    assert (claimed <= torch.tensor([0.1, 0.01, 1e-3])).all()
    error = ((found.x - x) * (A @ (found.x - x))).sum(0) / (x * (A @ x)).sum(0)
    assert (error.sqrt() <= 2 * claimed).all()
