"""Iterations to a residual of 0.01 by rank of the preconditioner and by precision.

    python benchmarks/solvers.py [--quick] [--output results/solvers.json]

Hyperparameters are given, near learned ones, or learned (ARD) by the default fit. What is in
float32 at rank 1,000, one thing after the other:

- nothing;
- the entries of K;
- and the vectors that K is multiplied by, with sums across tiles of 256 columns in float64;
- and sums along a row;
- and the preconditioner, as in libraries that compute in float32 throughout.

megagp itself has entries and sums within a tile in float32: the line of that rank.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from megagp import GPRegressor, KernelOperator, datasets, kernels
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
from megagp.solvers import Product, pcg

Given: TypeAlias = tuple[float, float, float]

# Data set, points, Matérn-3/2 lengthscale, outputscale, noise; or the floor under the noise, where
# all of them are learned, with a lengthscale for each input.
CASES: list[tuple[str, int, Given | float]] = [
    ("kin40k", 25_600, (3.5, 1.2, 0.01)),
    ("protein", 29_267, (0.4, 0.8, 0.2)),
    ("houseelectric", 30_000, (3.0, 2.0, 0.1)),
    ("houseelectric", 30_000, 0.1),
    ("houseelectric", 15_000, 0.0004),
    ("houseelectric", 30_000, 0.0001),
    ("gebco_kg_2m", 30_000, (0.3, 1.0, 0.05)),
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
TILE = 256


def load(name: str, n: int) -> tuple[Tensor, Tensor]:
    X, y = datasets.load(name)
    rows = np.random.default_rng(0).permutation(len(X))[:n]
    X, y = np.asarray(X[rows], dtype=np.float64), np.asarray(y[rows], dtype=np.float64)
    scale = X.std(0)
    X = (X - X.mean(0)) / np.where(scale == 0, 1, scale)
    return torch.from_numpy(X), torch.from_numpy((y - y.mean()) / y.std())[:, None]


def problem(name: str, n: int, given: Given | float) -> tuple[Covariance, Tensor]:
    """K̂ and what it is solved for: y, at learned hyperparameters without the mean."""
    X, Y = load(name, n)
    if isinstance(given, tuple):
        lengthscale, outputscale, variance = given
        operator = KernelOperator(X, kernels.Matern32(lengthscale, outputscale))
        return Covariance(operator, torch.full((len(X),), variance, dtype=torch.float64)), Y
    model = GPRegressor(random_state=0, inputs="standard", noise_floor=given).fit(
        X.numpy(), Y[:, 0].numpy()
    )
    found = model.posterior_
    K_hat = Covariance(KernelOperator(found.X, found.kernel), found.noise)
    return K_hat, K_hat.precise().matmul(found.weights)


def products(K_hat: Covariance) -> dict[str, Product]:
    """K̂ V with ever more in float32."""
    n = len(K_hat)
    rows = [slice(i, min(i + 1024, n)) for i in range(0, n, 1024)]
    K = torch.empty(n, n, dtype=torch.float32)
    for i in rows:
        K[i] = K_hat.operator.block(i, None)

    def entries(V: Tensor) -> Tensor:
        return torch.cat([K[i].double() @ V for i in rows])

    def vectors(V: Tensor) -> Tensor:
        total = torch.zeros(n, V.shape[1], dtype=torch.float64)
        for j in range(0, n, TILE):
            total += (K[:, j : j + TILE] @ V[j : j + TILE].float()).double()
        return total

    def sums(V: Tensor) -> Tensor:
        return (K @ V.float()).double()

    def with_noise(product: Product, V: Tensor) -> Tensor:
        return product(V) + K_hat.noise[:, None] * V

    plain = {"entries": entries, "vectors, tiles in float64": vectors, "sums along a row": sums}
    found = {label: partial(with_noise, product) for label, product in plain.items()}
    return {"nothing": K_hat.precise().matmul, **found}


def make(K_hat: Covariance, rank: int, neighbours: int) -> Preconditioner | None:
    if not rank:
        return None
    rng = np.random.default_rng(0)
    pivots = random_pivots(K_hat.operator, rank, rng)
    if not neighbours:
        return PivotedCholesky(K_hat, pivots)
    points = metric_features(K_hat.operator.kernel, K_hat.operator.X)
    return FullScale(K_hat, pivots, nearest_predecessors(points, neighbours, pivots, rng))


def in_float32(P: PivotedCholesky) -> Product:
    """P⁻¹ R = (R - L A⁻¹ Lᵀ N⁻¹ R) / N with every step in float32."""
    L, A, N = P.L.float(), P._A.float(), P.noise.float()[:, None]

    def solve(R: Tensor) -> Tensor:
        R = R.float()
        return ((R - L @ torch.cholesky_solve(L.T @ (R / N), A)) / N).double()

    return solve


def iterations(
    K_hat: Covariance, product: Product, Y: Tensor, precondition: Product | None
) -> tuple[str, float, float]:
    """How many, what is left of Y in float64, and seconds."""
    start = time.perf_counter()
    found = pcg(product, Y, precondition=precondition, rtol=0.01, max_iter=MAX_ITER)
    seconds = time.perf_counter() - start
    count = str(int(found.iterations[0])) if found.converged else f"> {int(found.iterations[0])}"
    residual = (Y - K_hat.precise().matmul(found.x)).norm() / Y.norm()
    return count, float(residual), seconds


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
    for name, n, given in CASES:
        K_hat, Y = problem(name, n // 3 if options.quick else n, given)
        case = {"set": name, "n": len(K_hat), "noise": float(K_hat.noise.median())}
        case["kernel"] = repr(K_hat.operator.kernel)
        print(f"{name}, n = {len(K_hat)}, noise {case['noise']:.2g}", case["kernel"], flush=True)
        for rank, neighbours in PRECONDITIONERS:
            start = time.perf_counter()
            P = make(K_hat, rank, neighbours)
            setup = time.perf_counter() - start
            apply = None if P is None else P.solve
            count, residual, seconds = iterations(K_hat, K_hat.matmul, Y, apply)
            print(
                f"  rank {rank:5d}, {neighbours:2d} neighbours: {count:>6} iterations, residual "
                f"{residual:.2g}, setup {setup:.1f} s, solve {seconds:.1f} s",
                flush=True,
            )
            results.append(
                {**case, "rank": rank, "neighbours": neighbours}
                | {"iterations": count, "residual": residual}
                | {"setup_seconds": setup, "solve_seconds": seconds}
            )
            if (rank, neighbours) != (1000, 0):
                continue
            assert isinstance(P, PivotedCholesky)
            ways = {label: (product, P.solve) for label, product in products(K_hat).items()}
            ways["the preconditioner"] = ways["sums along a row"][0], in_float32(P)
            for label, (product, apply) in ways.items():
                count, residual, _ = iterations(K_hat, product, Y, apply)
                print(f"    float32: {label}: {count} iterations, residual {residual:.2g}")
                results.append(
                    {**case, "rank": rank, "float32": label}
                    | {"iterations": count, "residual": residual}
                )
    record = {"machine": facts(), "iterations": results, "crossover": crossover()}
    options.output.parent.mkdir(exist_ok=True)
    options.output.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
