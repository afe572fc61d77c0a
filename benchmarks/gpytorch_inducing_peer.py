"""GPyTorch's SGPR and SVGP with the paper's settings, on data, inducing points to start from and
minibatches that approximate.py chose. Runs in an environment of its own, so it imports nothing of
megagp.

    python benchmarks/gpytorch_inducing_peer.py data.npz sgpr|svgp steps-or-epochs result.json
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time

import gpytorch
import numpy as np
import torch

BATCH = 1024


def kernel():
    return gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5))


class SGPR(gpytorch.models.ExactGP):
    def __init__(self, X, y, Z, likelihood):
        super().__init__(X, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.InducingPointKernel(
            kernel(), inducing_points=Z, likelihood=likelihood
        )

    def forward(self, X):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))


class SVGP(gpytorch.models.ApproximateGP):
    def __init__(self, Z):
        q = gpytorch.variational.CholeskyVariationalDistribution(len(Z))
        super().__init__(
            gpytorch.variational.VariationalStrategy(self, Z, q, learn_inducing_locations=True)
        )
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = kernel()

    def forward(self, X):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))


def train_sgpr(X, y, Z, seed, steps):
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = SGPR(X, y, Z, likelihood)
    model.train(), likelihood.train()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        optimiser.zero_grad()
        loss = -marginal(model(X), y)
        loss.backward()
        optimiser.step()
        times.append(time.perf_counter() - begin)
    return model, likelihood, times


def train_svgp(X, y, Z, seed, epochs):
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = SVGP(Z)
    model.train(), likelihood.train()
    optimiser = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
    marginal = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(X))
    times = []
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        for rows in torch.from_numpy(rng.permutation(len(X))).split(BATCH):
            begin = time.perf_counter()
            optimiser.zero_grad()
            loss = -marginal(model(X[rows]), y[rows])
            loss.backward()
            optimiser.step()
            times.append(time.perf_counter() - begin)
    return model, likelihood, times


def run(method, count, data):
    X, y, X_test, y_test, Z = (
        torch.from_numpy(data[name]).float()
        for name in ("X", "y", "X_test", "y_test", f"Z_{method}")
    )
    torch.manual_seed(0)
    begin = time.perf_counter()
    train = train_sgpr if method == "sgpr" else train_svgp
    model, likelihood, times = train(X, y, Z, int(data["seed"]), count)
    trained = time.perf_counter()
    model.eval(), likelihood.eval()
    means, variances = [], []
    with torch.no_grad():
        for chunk in X_test.split(1000):
            found = likelihood(model(chunk))
            means.append(found.mean)
            variances.append(found.variance)
    predicted = time.perf_counter()
    mean, variance = torch.cat(means), torch.cat(variances)
    error = (mean - y_test) ** 2
    nll = 0.5 * (error / variance + variance.log() + math.log(2 * math.pi)).mean()
    return {
        "rmse": float(error.mean().sqrt()),
        "nll": float(nll),
        "coverage": float((error <= 1.959964**2 * variance).float().mean()),
        "fit_seconds": trained - begin,
        "step_seconds": sum(times) / len(times),
        "predict_seconds": predicted - trained,
        "noise_variance": likelihood.noise.item(),
    }


def main() -> None:
    path, method, count, result = sys.argv[1:]
    try:
        found: dict[str, object] = dict(run(method, int(count), dict(np.load(path))))
    except Exception as error:  # a peer that stops is a result
        found = {"error": f"{type(error).__name__}: {error}"[:300]}
    found["peak_memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found["version"] = gpytorch.__version__
    with open(result, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
