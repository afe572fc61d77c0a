"""What the tolerance on probes does to the likelihood and its gradient, and how many iterations it
takes: HouseElectric at hyperparameters that training came to.

    python benchmarks/probe_tolerance.py [--points 30000]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from megagp import datasets
from megagp.covariance import Covariance
from megagp.kernels import Matern32
from megagp.likelihood import stochastic
from megagp.operator import KernelOperator
from megagp.preconditioners import AdaptivePreconditioner

LOG_LENGTHSCALES = (3.81, 1.75, 2.78, 2.92, 5.66, 2.51, 3.4, 0.41, 2.11, 2.99, 2.27)
OUTPUTSCALE, NOISE = 2.357, 1.09e-4
TOLERANCES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=30_000)
    n = parser.parse_args().points
    X, y = datasets.load("houseelectric")
    s = datasets.split(X, y, random_state=0)
    X, y = (np.asarray(part[:n], dtype=np.float64) for part in (s.X_train, s.y_train))
    A = torch.from_numpy((X - X.mean(0)) / X.std(0))
    Y = torch.from_numpy((y - y.mean()) / y.std())[:, None]
    H = torch.ones_like(Y)
    kernel = Matern32(np.exp(LOG_LENGTHSCALES), OUTPUTSCALE)
    K_hat = Covariance(
        KernelOperator(A, kernel, dtype="float64"), torch.full((n,), NOISE, dtype=torch.float64)
    )
    P = AdaptivePreconditioner(
        rank=400, pivoting="random", neighbours=12, budget=1 << 29, seed=0
    ).make(K_hat, 6)
    print("tolerance  iterations  value        gradient, largest difference of 13")
    exact = start = None
    for tolerance in TOLERANCES:
        probes = torch.Generator().manual_seed(0)
        at = stochastic(
            K_hat, Y, H, P, probes, probes=4, rtol=0.01, probe_rtol=tolerance, start=start
        )
        start = at.solutions
        found = at.value / n, torch.cat([g.reshape(-1) for g in at.gradient.values()]) / n
        exact = found if exact is None else exact
        value, gradient = found[0] - exact[0], float((found[1] - exact[1]).abs().max())
        print(f"{tolerance:9}  {int(at.solve.iterations[-1]):10}  {value:+.6f}    {gradient:.5f}")
    print(f"standard error of the value: {at.standard_error / n:.4f}")
    print(f"largest derivative: {float(exact[1].abs().max()):.4f}")


if __name__ == "__main__":
    main()
