"""Bounds and predictions of GPyTorch's SGPR and SVGP at equal hyperparameters, if installed."""

import warnings

import numpy as np
import pytest
import torch

from megagp.approximate.cross import CrossCovariance
from megagp.approximate.factor import factorise
from megagp.approximate.posterior import InducingPosterior
from megagp.approximate.sgpr import collapse, moments
from megagp.approximate.svgp import Batch, Variational, stochastic_bound, whitened
from megagp.kernels import Matern32
from megagp.likelihood import Trend

gpytorch = pytest.importorskip("gpytorch")

N, M, D, NOISE, SHARE = 80, 9, 2, 0.05, 1e-8
LENGTHSCALE, OUTPUTSCALE = 0.8, 1.3


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own
        yield


def data():
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.uniform(-2, 2, size=(N, D)))
    return X, (2 * X[:, 0]).sin() + 0.1 * torch.from_numpy(rng.standard_normal(N))


def their_kernel():
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5))
    kernel.outputscale, kernel.base_kernel.lengthscale = OUTPUTSCALE, LENGTHSCALE
    return kernel


def their_likelihood():
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = NOISE
    return likelihood.double()


def posterior(cross, L, weights, R):
    nothing = torch.zeros(0, 1, dtype=torch.float64), torch.zeros(0, 0, dtype=torch.float64)
    empty = torch.zeros(M, 0, dtype=torch.float64)
    return InducingPosterior(cross.Z, cross.kernel, "zero", Trend(*nothing), weights, empty, L, R)


def test_sgpr():
    X, y = data()
    Z, X_new = X[:M] + 0.1, X[-20:] + 0.05
    likelihood = their_likelihood()

    class Model(gpytorch.models.ExactGP):
        def __init__(self):
            super().__init__(X, y, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.InducingPointKernel(
                their_kernel(), inducing_points=Z.clone(), likelihood=likelihood
            )

        def forward(self, X):
            mean, covariance = self.mean_module(X), self.covar_module(X)
            return gpytorch.distributions.MultivariateNormal(mean, covariance)

    model = Model().double()
    model.train()
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    expected = N * marginal(model(X), y).item()
    cross = CrossCovariance(Matern32(LENGTHSCALE, OUTPUTSCALE), Z)
    factor = factorise(cross.square(), SHARE)
    found = collapse(moments(cross.over(X), y[:, None], factor), N, 1, NOISE)
    assert found.value == pytest.approx(expected, rel=1e-5)
    model.eval(), likelihood.eval()
    # By default it predicts with FITC's diagonal, another model than the one it was trained as.
    with torch.no_grad(), gpytorch.settings.sgpr_diagonal_correction(False):
        theirs = model(X_new)
    ours = posterior(cross, found.factor.L, found.weights, found.R)
    np.testing.assert_allclose(ours.predict(X_new)[:, 0], theirs.mean, atol=1e-5)


def test_svgp():
    X, y = data()
    Z, X_new = X[:M] + 0.1, X[-20:] + 0.05
    rng = np.random.default_rng(1)
    mu = torch.from_numpy(rng.standard_normal((M, 1)))
    root = torch.from_numpy(np.tril(0.1 * rng.standard_normal((M, M))) + 0.5 * np.eye(M))

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self):
            q = gpytorch.variational.CholeskyVariationalDistribution(M)
            jitter = SHARE * OUTPUTSCALE
            strategy = gpytorch.variational.VariationalStrategy(
                self, Z.clone(), q, learn_inducing_locations=True, jitter_val=jitter
            )
            super().__init__(strategy)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = their_kernel()

        def forward(self, X):
            mean, covariance = self.mean_module(X), self.covar_module(X)
            return gpytorch.distributions.MultivariateNormal(mean, covariance)

    model, likelihood = Model().double(), their_likelihood()
    model.train()
    model(X)  # the first call sets q to the prior
    q = model.variational_strategy._variational_distribution
    with torch.no_grad():
        q.variational_mean.copy_(mu[:, 0])
        q.chol_variational_covar.copy_(root)
    elbo = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=5 * N)
    expected = 5 * N * elbo(model(X), y).item()
    cross = CrossCovariance(Matern32(LENGTHSCALE, OUTPUTSCALE), Z)
    tiles = cross.over(X)
    start = whitened(tiles, SHARE)
    batch = Batch(X, y[:, None], 5 * N)
    found = stochastic_bound(start, batch, NOISE, Variational(mu, root.T))
    assert found.value == pytest.approx(expected, rel=1e-5)
    model.eval()
    with torch.no_grad():
        theirs = model(X_new)
    ours = posterior(cross, torch.linalg.inv(start.W), start.W.T @ mu, root.T)
    np.testing.assert_allclose(ours.predict(X_new)[:, 0], theirs.mean, atol=1e-5)
    np.testing.assert_allclose(ours.variance(X_new), theirs.variance, atol=1e-5)
