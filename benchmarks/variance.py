"""How far the three predicted standard deviations are from the exact one, and at what NLL and cost.

python benchmarks/variance.py [--n 8000] [--output results/variance.json]
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch

from megagp import GPRegressor, KernelOperator, datasets
from megagp.experiments.machine import facts

SETS = ("pol", "bike", "kin40k", "protein", "gebco_kg_2m", "houseelectric")
TEST = 400
# Test points of each way; solves take seconds a point where the noise is small.
METHODS = {"joint": TEST, "lanczos": TEST, "exact": 40}


def dense(model: GPRegressor, X_new: np.ndarray, scale: float) -> np.ndarray:
    """The exact standard deviation of a new observation, by Cholesky in float64.

    With the uncertainty of the constant mean: u = 1 - k K̂⁻¹ 1, variance u² / (1ᵀ K̂⁻¹ 1).
    """
    A, B = model.posterior_.X, model._whitened(X_new)
    K = KernelOperator(A, model.kernel_, dtype="float64").block()
    K.diagonal().add_(model.posterior_.noise)  # that of a mean, where rows share their inputs
    C = torch.linalg.cholesky(K)
    cross = KernelOperator(A, model.kernel_, B, dtype="float64").block()
    one = torch.ones(len(A), 1, dtype=torch.float64)
    F, g = (torch.linalg.solve_triangular(C, T, upper=False) for T in (cross, one))
    u = 1 - (F.T @ g)[:, 0]
    prior = KernelOperator(B, model.kernel_, dtype="float64").diagonal()
    variance = prior - F.square().sum(0) + u**2 / g.square().sum() + model.noise_variance_
    return variance.sqrt().numpy() * scale


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=8000)
    parser.add_argument("--sets", nargs="*", default=SETS)
    parser.add_argument("--output", type=Path, default=Path("results/variance.json"))
    options = parser.parse_args()
    results = []
    for name in options.sets:
        X, y = datasets.load(name)
        rows = np.random.default_rng(0).permutation(len(X))[: options.n + TEST]
        X, y = np.asarray(X[rows], dtype=np.float64), np.asarray(y[rows], dtype=np.float64)
        model = GPRegressor(random_state=0)
        model.fit(X[TEST:], y[TEST:])
        truth = dense(model, X[:TEST], y[TEST:].std())
        for method, count in METHODS.items():
            # Fills the cache; that of "joint" has a factor for each cell that a point lies in.
            model.predict(X[: TEST if method == "joint" else 2], return_std=True, variance=method)
            start = time.perf_counter()
            mean, std = model.predict(X[:count], return_std=True, variance=method)
            seconds = time.perf_counter() - start
            excess = std / truth[:count] - 1
            error = y[:count] - mean
            nll = 0.5 * (error / std) ** 2 + np.log(std * math.sqrt(2 * math.pi) / y[TEST:].std())
            more = 0.5 * error**2 * (std**-2 - truth[:count] ** -2) + np.log1p(excess)
            r = {
                "set": name,
                "n": len(X) - TEST,
                "method": method,
                "points": count,
                "median_excess": float(np.median(excess)),
                "largest_excess": float(excess.max()),
                "smallest_excess": float(excess.min()),
                "nll": float(nll.mean()),
                "nll_above_dense": float(more.mean()),
                "milliseconds_per_point": 1e3 * seconds / count,
            }
            results.append(r)
            print(
                f"{name:14} {method:8} excess median {100 * r['median_excess']:7.2f} %  largest "
                f"{100 * r['largest_excess']:7.2f} %  smallest {100 * r['smallest_excess']:9.2g} %"
                f"  NLL {r['nll']:.3f}, above the dense one's by {r['nll_above_dense']:.4f}  "
                f"{r['milliseconds_per_point']:.2f} ms per point",
                flush=True,
            )
    options.output.parent.mkdir(exist_ok=True)
    options.output.write_text(json.dumps({"machine": facts(), "results": results}, indent=1))


if __name__ == "__main__":
    main()
