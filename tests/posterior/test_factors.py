"""Joint variances cell by cell, native and dense, against the variance given the same points."""

import numpy as np
import pytest
import torch

import reference
from megagp.engines import NativeEngine, instruction_sets
from megagp.kernels import RBF, Matern32
from megagp.posterior.cell_factors import DenseFactors, New, RowsOfF
from megagp.posterior.kept_factors import KeptFactors
from megagp.posterior.passing_factors import PassingFactors

D = 3
CASES = {
    name: kernel
    for name, kernel in reference.kernel_cases(D).items()
    if NativeEngine().supports(kernel, torch.zeros(1, D).double(), None, torch.float64).ok
}
NATIVE = [PassingFactors, KeptFactors]


class Problem:
    """Training points without pivots, some new points, and what both kinds of factors take.

    n: training points; k: pivots, n more of them; cells: their numbers of neighbours.
    """

    def __init__(self, kernel, n, k, noise_variance, neighbours, t=7, trend=0):
        rng = np.random.default_rng(n + k)
        self.kernel = kernel
        self.X = torch.from_numpy(rng.normal(size=(n, D)))
        self.P = torch.from_numpy(rng.normal(size=(k, D)))
        self.noise = torch.from_numpy(rng.uniform(noise_variance, 2 * noise_variance, n))
        self.noise_P = torch.full((k,), noise_variance, dtype=torch.float64)
        self.x = torch.from_numpy(rng.normal(size=(t * len(neighbours), D)))
        self.cell = torch.arange(len(neighbours)).repeat_interleave(t)
        self.N = [torch.from_numpy(rng.permutation(n)[:m]) for m in neighbours]
        self.Phi = torch.from_numpy(rng.normal(size=(n, trend)))
        self.phi = torch.from_numpy(rng.normal(size=(len(self.x), trend)))
        self.prior = kernel.diagonal(self.x) + self.phi.square().sum(1)
        K = torch.from_numpy(reference.matrix(kernel, self.P.numpy(), self.P.numpy()))
        self.C = torch.linalg.cholesky(K + torch.diag(self.noise_P))
        self.F = self.rows(self.X)

    def rows(self, X):
        K = torch.from_numpy(reference.matrix(self.kernel, self.P.numpy(), X.numpy()))
        return torch.linalg.solve_triangular(self.C, K, upper=False).T.contiguous()

    def factors(self, kind, budget=1 << 28, **options):
        def rows_of_F(rows):
            return RowsOfF(slice(None), self.F, rows)

        nearest = self.N.__getitem__
        return kind(
            self.kernel, self.X, self.noise, rows_of_F, nearest, budget, self.Phi, **options
        )

    def new(self, at=slice(None), B=None):
        x = self.x[at]
        return New(x, self.prior[at], self.rows(x) if B is None else B[at], self.phi[at])

    def variances(self, factors):
        return factors.variances(self.new(), self.cell)

    def given_those_points(self):
        """k(x, x) - k(x, S) K̂_SS⁻¹ k(S, x), S the pivots and the cell's points.

        Φ Φᵀ adds to covariances given the pivots: there it has rows of zeros.
        """
        found = []
        for x, phi, c in zip(self.x, self.phi, self.cell.tolist(), strict=True):
            Phi = torch.cat([self.Phi.new_zeros(len(self.P), len(phi)), self.Phi[self.N[c]]])
            Phi, phi = Phi.numpy(), phi.numpy()
            S = torch.cat([self.P, self.X[self.N[c]]]).numpy()
            K = reference.matrix(self.kernel, S, S) + Phi @ Phi.T
            K += np.diag(torch.cat([self.noise_P, self.noise[self.N[c]]]).numpy())
            k = reference.matrix(self.kernel, S, x[None].numpy())[:, 0] + Phi @ phi
            prior = reference.matrix(self.kernel, x[None].numpy(), x[None].numpy())[0, 0]
            found.append(prior + phi @ phi - k @ np.linalg.solve(K, k))
        return np.array(found)


@pytest.mark.parametrize("instruction_set", instruction_sets())
@pytest.mark.parametrize("noise_variance", [1e-4, 1.0])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", NATIVE)
def test_it_is_the_variance_given_those_points(kind, name, noise_variance, instruction_set):
    p = Problem(CASES[name], 150, 20, noise_variance, (1, 65, 130))
    found = p.variances(p.factors(kind, instruction_set=instruction_set)).numpy()
    truth, size = p.given_those_points(), float(p.prior.max())
    assert np.all(found >= truth - 1e-9 * size)
    observed = np.sqrt((found + noise_variance) / (truth + noise_variance))
    np.testing.assert_allclose(observed, 1, atol=5e-3 if kind is KeptFactors else 1e-3)


@pytest.mark.parametrize("trend", [1, 4])
@pytest.mark.parametrize("kind", [DenseFactors, *NATIVE])
def test_what_is_not_known_of_the_mean_adds_to_covariances(kind, trend):
    p = Problem(Matern32([0.5, 0.9, 1.3], 1.7), 140, 30, 0.05, (1, 33, 120), trend=trend)
    plain = Problem(Matern32([0.5, 0.9, 1.3], 1.7), 140, 30, 0.05, (1, 33, 120))
    found, truth = p.variances(p.factors(kind)).numpy(), p.given_those_points()
    assert np.all(found >= truth * (1 - 1e-9))
    np.testing.assert_allclose(found, truth, rtol=5e-3 if kind is KeptFactors else 1e-6)
    assert np.all(found > plain.given_those_points())


@pytest.mark.parametrize("k", [0, 1, 16, 33, 70])
@pytest.mark.parametrize("m", [1, 31, 32, 33, 63, 64, 65, 129])
@pytest.mark.parametrize("kind", NATIVE)
def test_odd_sizes(kind, k, m):
    p = Problem(Matern32([0.5, 0.9, 1.3], 1.7), 140, k, 0.05, (m,), t=1 + m % 5)
    found, truth = p.variances(p.factors(kind)).numpy(), p.given_those_points()
    assert np.all(found >= truth * (1 - 1e-9))
    np.testing.assert_allclose(found, truth, rtol=1e-4 if kind is KeptFactors else 1e-6)


@pytest.mark.parametrize("kind", [DenseFactors, KeptFactors])
def test_kept_factors_change_nothing(kind):
    p = Problem(Matern32(0.8), 200, 30, 1e-3, (100, 90, 120))
    kept, passing = p.factors(kind), p.factors(kind, budget=0)
    one = p.factors(kind, budget=50_000 if kind is KeptFactors else 70_000)
    first = p.variances(kept)
    assert len(kept._kept) == 3
    assert len(passing._kept) == 0
    for factors in (kept, passing, one, one):
        assert torch.equal(p.variances(factors), first)
    assert len(one._kept) == 1
    ahead = p.factors(kind)
    ahead.make([0, 1, 2])
    assert len(ahead._kept) == 3
    assert torch.equal(p.variances(ahead), first)


@pytest.mark.parametrize("t", [31, 32, 33, 70])
def test_new_points_in_several_passes(t):
    p = Problem(Matern32(0.8), 200, 30, 1e-3, (100, 90), t=t)
    np.testing.assert_allclose(
        p.variances(p.factors(KeptFactors)), p.variances(p.factors(DenseFactors)), rtol=1e-3
    )


def test_the_error_of_a_kept_factor_is_bounded():
    """ε is no less than the norm of L Lᵀ - S, and not far above its Frobenius norm."""
    m, k = 130, 20
    p = Problem(Matern32(0.8, 50.0), 150, k, 1e-4, (m,))
    factors = p.factors(KeptFactors)
    factors.make([0])
    factor = factors._kept[0]
    assert factor.dtype == np.float32
    L, epsilon = unpacked(factor, m), float(factor[-16])
    X, F = p.X[p.N[0]].numpy(), p.F[p.N[0]].numpy()
    S = reference.matrix(p.kernel, X, X) + np.diag(p.noise[p.N[0]].numpy()) - F @ F.T
    E = L @ L.T - S
    assert np.linalg.norm(E, 2) <= epsilon
    # Twice the norm, as 16 probes see it: 7 standard deviations of such an estimate.
    assert 0.5 < epsilon / (2 * np.linalg.norm(E)) < 2


def unpacked(factor, m, G=64):
    """L of a float32 factor: tiles [column][row], those of the diagonal -L⁻ᵀ."""
    blocks = -(-m // G)
    L, at = np.zeros((blocks * G, blocks * G)), 0
    for i in range(blocks):
        for j in range(i + 1):
            tile = factor[at : at + G * G].reshape(G, G).astype(np.float64)
            block = tile.T if j < i else -np.linalg.inv(tile).T
            L[i * G : (i + 1) * G, j * G : (j + 1) * G] = block
            at += G * G
    return L[:m, :m]


@pytest.mark.parametrize("kind", NATIVE)
def test_threads_and_company_change_nothing(kind):
    p = Problem(Matern32(0.8), 200, 30, 1e-3, (100, 90, 120, 64))
    B, factors = p.rows(p.x), p.factors(kind)
    whole = factors.variances(p.new(B=B), p.cell)
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            fresh = p.factors(kind)
            assert torch.equal(fresh.variances(p.new(B=B), p.cell), whole)
    finally:
        torch.set_num_threads(before)
    for i in range(0, len(p.x), 5):
        alone = factors.variances(p.new([i], B), p.cell[[i]])
        assert float(alone) == float(whole[i])


@pytest.mark.parametrize("kind", NATIVE)
def test_where_float32_is_not_enough_float64_is_used(kind):
    """A smooth kernel 10⁶ times the noise: float32 has no factor of S, or a rough one."""
    p = Problem(RBF(2.0, 100.0), 150, 0, 1e-4, (120, 130))
    factors = p.factors(kind)
    found = p.variances(factors).numpy()
    assert all(factor.dtype == np.float64 for factor in factors._kept.values())
    truth = p.given_those_points()
    np.testing.assert_allclose(np.sqrt((found + 1e-4) / (truth + 1e-4)), 1, atol=1e-3)
    assert np.array_equal(p.variances(factors).numpy(), found)


@pytest.mark.parametrize("kind", NATIVE)
def test_far_from_zero(kind):
    p = Problem(Matern32(0.8), 100, 10, 0.01, (80,))
    near = p.variances(p.factors(kind))
    p.X, p.x = p.X + 1e5, p.x + 1e5
    factors = p.factors(kind)
    far = factors.variances(p.new(B=_moved(p)), p.cell)
    np.testing.assert_allclose(far, near, rtol=1e-6)


def _moved(p):
    """Rows of F of the new points, which were moved together with all others."""
    p.x = p.x - 1e5
    rows = p.rows(p.x)
    p.x = p.x + 1e5
    return rows


@pytest.mark.parametrize("kind", [DenseFactors, *NATIVE])
def test_no_factor_at_all_is_an_error(kind):
    p = Problem(Matern32(0.8), 50, 0, 0.1, (40,))
    p.noise = -9.0 * torch.ones(50, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"noise: expected .* positive definite"):
        p.variances(p.factors(kind))
