"""A thousand means and standard deviations, then a million, from one fitted model.

python benchmarks/many_points.py [--n 30000] [--points 1000000] [--data kin40k] [--output FILE]

Robot arms, or the first split of a set by name: then at most n training and `points` test points.

Memory is what the peak of the process rises by after the fit, caches and answers included.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import numpy as np

from megagp import GPRegressor, datasets
from megagp.datasets.splits import Array
from megagp.experiments.machine import facts
from megagp.experiments.worker import prepare

FEW, ROUNDS = 1000, 3


def peak() -> float:
    """The largest resident size of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def prepared(data: str | None, n: int, m: int) -> tuple[Array, Array, Array, Array]:
    """n training points with their targets, and m new ones with theirs, or as many as there are."""
    if data is None:
        X, y = datasets.robot_arm(n + m, joints=6, random_state=0)
        return X[:n], y[:n], X[n:], y[n:]
    whole = prepare(data, 0, None)
    return whole.X_train[:n], whole.y_train[:n], whole.X_test[:m], whole.y_test[:m]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=30_000)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--data", help="a set by name; robot arms if there is none")
    parser.add_argument("--output", type=Path, default=Path("results/many_points.json"))
    options = parser.parse_args()
    X, y, X_new, y_new = prepared(options.data, options.n, options.points)
    model = GPRegressor(random_state=0).fit(X, y)
    fitted = peak()
    begin = time.perf_counter()
    model.predict(X_new[:FEW], return_std=True)
    caches = time.perf_counter() - begin
    few = min(seconds(model, X_new[FEW * i : FEW * (i + 1)]) for i in range(1, 1 + ROUNDS))
    before = peak()
    start = time.perf_counter()
    mean, std = model.predict(X_new, return_std=True)
    many = time.perf_counter() - start
    found = {
        "machine": facts(),
        "data": options.data,
        "n": len(X),
        "points": len(X_new),
        "caches_seconds": caches,
        "few_seconds": few,
        "seconds": many,
        "fit_gb": fitted,
        "caches_gb": before,
        "peak_gb": peak(),
        "rmse": float(np.sqrt(np.mean((mean - y_new) ** 2))),
        "coverage": float(np.mean(np.abs(mean - y_new) < 1.96 * std)),
    }
    print(f"{FEW} points: {few:.2f} s, {caches:.1f} s the first time, with caches")
    print(
        f"{len(X_new)} points: {many:.0f} s, RMSE {found['rmse']:.4f}, "
        f"{100 * found['coverage']:.1f} % in the 95 % interval"
    )
    print(
        f"peak: {fitted:.2f} GB after the fit, {before:.2f} with caches, {peak():.2f} in the end, "
        f"{peak() - fitted:.2f} GB more than the fit"
    )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(found, indent=1))


def seconds(model: GPRegressor, X: np.ndarray) -> float:
    """For means and standard deviations at X."""
    start = time.perf_counter()
    model.predict(X, return_std=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
