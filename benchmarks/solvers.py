"""Iterations to a residual of 0.01 by rank of the preconditioner and by precision.

    python benchmarks/solvers.py [--quick] [--output results/solvers.json]

Precisions: "float64" entries; "float32" entries with float64 sums across tiles (megagp);
"float32 sums": the product rounded to float32 and its row sums taken in float32, as libraries do
that compute in float32 throughout.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from megagp import KernelOperator, datasets, kernels
from megagp.covariance import Covariance
from megagp.experiments.machine import facts
from megagp.likelihood import dense, stochastic
from megagp.neighbours import metric_features
from megagp.preconditioners import (
    FullScale,
    PivotedCholesky,
    Preconditioner,
    nearest_predecessors,
    random_pivots,
)
from megagp.solvers import pcg

# Data set, points, Matérn-3/2 lengthscale (shared, or one for each column), outputscale, noise.
# Hyperparameters near those that training finds.
CASES = [
    ("kin40k", 25_600, 3.5, 1.2, 0.01),
    ("protein", 29_267, 0.4, 0.8, 0.2),
    ("houseelectric", 30_000, 3.0, 2.0, 0.1),
    ("houseelectric", 15_000, 3.0, 2.0, 0.0004),
    ("gebco_kg_2m", 30_000, 0.3, 1.0, 0.05),
]
# Rank and neighbours of the preconditioner; the paper's is (100, 0).
PRECONDITIONERS = (
    (0, 0),
    (100, 0),
    (500, 0),
    (1000, 0),
    (2000, 0),
    (100, 12),
    (300, 12),
    (1000, 12),
)
MAX_ITER = 150


def load(name: str, n: int) -> tuple[Tensor, Tensor]:
    X, y = datasets.load(name)
    rows = np.random.default_rng(0).permutation(len(X))[:n]
    X, y = np.asarray(X[rows], dtype=np.float64), np.asarray(y[rows], dtype=np.float64)
    scale = X.std(0)
    X = (X - X.mean(0)) / np.where(scale == 0, 1, scale)
    return torch.from_numpy(X), torch.from_numpy((y - y.mean()) / y.std())[:, None]


def float32_sums(operator: KernelOperator, noise: Tensor, V: Tensor) -> Tensor:
    """K̂ V with entries, vectors and sums in float32, some rows at a time."""
    V32 = V.float()
    parts = [
        operator.block(slice(i, i + 1024), None).float() @ V32
        for i in range(0, operator.shape[0], 1024)
    ]
    return (torch.cat(parts) + noise.float()[:, None] * V32).double()


def make(K_hat: Covariance, rank: int, neighbours: int) -> Preconditioner | None:
    if not rank:
        return None
    rng = np.random.default_rng(0)
    pivots = random_pivots(K_hat.operator, rank, rng)
    if not neighbours:
        return PivotedCholesky(K_hat, pivots)
    points = metric_features(K_hat.operator.kernel, K_hat.operator.X)
    return FullScale(K_hat, pivots, nearest_predecessors(points, neighbours, pivots, rng))


def iterations(product, Y: Tensor, P: Preconditioner | None) -> tuple[str, float, float]:
    start = time.perf_counter()
    apply = None if P is None else P.solve
    found = pcg(product, Y, precondition=apply, rtol=0.01, max_iter=MAX_ITER)
    seconds = time.perf_counter() - start
    residual = float(found.residual[0])
    count = str(int(found.iterations[0])) if found.converged else f"> {int(found.iterations[0])}"
    return count, residual, seconds


def crossover() -> list[dict[str, float]]:
    """Seconds of one likelihood and gradient, dense and by products, around where they meet."""
    found = []
    for n in (500, 1000, 1500, 2000, 3000):
        X, y = datasets.robot_arm(n, joints=6)
        operator = KernelOperator(X, kernels.Matern32(2.0))
        K_hat = Covariance(operator, torch.full((n,), 0.01, dtype=torch.float64))
        Y, H = torch.from_numpy(y)[:, None], torch.ones(n, 1, dtype=torch.float64)
        seconds = {}
        for label in ("dense", "products") * 3:
            start = time.perf_counter()
            if label == "dense":
                dense(K_hat, Y, H)
            else:
                P = make(K_hat, 100, 12)
                assert P is not None
                probes = torch.Generator().manual_seed(0)
                stochastic(K_hat, Y, H, P, probes, rtol=0.01, probe_rtol=0.1)
            seconds[label] = min(time.perf_counter() - start, seconds.get(label, float("inf")))
        found.append({"n": n, **seconds})
        print(f"n = {n}: dense {seconds['dense']:.3f} s, products {seconds['products']:.3f} s")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a third of the points")
    parser.add_argument("--output", type=Path, default=Path("results/solvers.json"))
    options = parser.parse_args()
    results = []
    for name, n, lengthscale, outputscale, variance in CASES:
        X, Y = load(name, n // 3 if options.quick else n)
        operator = KernelOperator(X, kernels.Matern32(lengthscale, outputscale))
        noise = torch.full((len(X),), variance, dtype=torch.float64)
        K_hat = Covariance(operator, noise)
        print(f"{name}, n = {len(X)}, noise {variance}", flush=True)
        for rank, neighbours in PRECONDITIONERS:
            start = time.perf_counter()
            P = make(K_hat, rank, neighbours)
            setup = time.perf_counter() - start
            count, residual, seconds = iterations(K_hat.matmul, Y, P)
            print(
                f"  rank {rank:5d}, {neighbours:2d} neighbours: {count:>6} iterations, residual "
                f"{residual:.2g}, setup {setup:.1f} s, solve {seconds:.1f} s",
                flush=True,
            )
            results.append(
                {"set": name, "n": len(X), "noise": variance, "rank": rank}
                | {"neighbours": neighbours, "iterations": count, "residual": residual}
                | {"setup_seconds": setup, "solve_seconds": seconds}
            )
            if (rank, neighbours) == (1000, 0):
                for label, product in (
                    ("float64", K_hat.precise().matmul),
                    ("float32 sums", partial(float32_sums, operator, noise)),
                ):
                    count, residual, seconds = iterations(product, Y, P)
                    print(f"    {label}: {count} iterations, residual {residual:.2g}", flush=True)
                    results.append(
                        {"set": name, "n": len(X), "noise": variance, "rank": rank}
                        | {"precision": label, "iterations": count, "residual": residual}
                    )
    record = {"machine": facts(), "iterations": results, "crossover": crossover()}
    options.output.parent.mkdir(exist_ok=True)
    options.output.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
