"""GPyTorch with the paper's recipe, on data that peers.py prepared. Runs in an environment of
its own, so it imports nothing of megagp.

    python benchmarks/gpytorch_peer.py data.npz result.json
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from contextlib import ExitStack

import gpytorch
import numpy as np
import torch

PRETRAIN = 10_000


class Model(gpytorch.models.ExactGP):
    def __init__(self, X, y, likelihood):
        super().__init__(X, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5))

    def forward(self, X):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))


def settings(stack: ExitStack) -> None:
    """The paper's: rank 100, CG tolerance 1 in training and 0.01 in prediction, no Cholesky."""
    s = gpytorch.settings
    for context in (
        s.max_preconditioner_size(100),
        s.min_preconditioning_size(1),
        s.cg_tolerance(1.0),
        s.eval_cg_tolerance(0.01),
        s.max_cg_iterations(1000),
        s.max_cholesky_size(0),
        s.fast_pred_var(),
    ):
        stack.enter_context(context)


def train(model, likelihood, optimiser, steps) -> None:
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    X, y = model.train_inputs[0], model.train_targets

    def closure():
        optimiser.zero_grad()
        loss = -marginal(model(X), y)
        loss.backward()
        return loss

    for _ in range(steps):
        optimiser.step(closure)


def run(X, y, X_test, y_test) -> dict[str, float]:
    torch.manual_seed(0)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    subset = torch.randperm(len(X))[:PRETRAIN]
    model = Model(X[subset], y[subset], likelihood)
    begin = time.perf_counter()
    model.train(), likelihood.train()
    train(model, likelihood, torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=10), 1)
    train(model, likelihood, torch.optim.Adam(model.parameters(), lr=0.1), 10)
    model.set_train_data(X, y, strict=False)
    train(model, likelihood, torch.optim.Adam(model.parameters(), lr=0.1), 3)
    trained = time.perf_counter()
    model.eval(), likelihood.eval()
    with torch.no_grad():
        _ = likelihood(model(X_test[:10])).variance  # fills the caches
        cached = time.perf_counter()
        means, variances = [], []
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
        "train_seconds": trained - begin,
        "precompute_seconds": cached - trained,
        "predict_seconds": predicted - cached,
        "lengthscale": model.covar_module.base_kernel.lengthscale.item(),
        "outputscale": model.covar_module.outputscale.item(),
        "noise_variance": likelihood.noise.item(),
    }


def main() -> None:
    data = {k: torch.from_numpy(v).float() for k, v in np.load(sys.argv[1]).items()}
    with ExitStack() as stack:
        settings(stack)
        try:
            found: dict[str, object] = dict(run(**data))
        except Exception as error:  # a peer that stops is a result
            found = {"error": f"{type(error).__name__}: {error}"[:300]}
    found["peak_memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found["version"] = gpytorch.__version__
    with open(sys.argv[2], "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
