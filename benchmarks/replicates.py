"""Rows with the same inputs: how many there are, what noise they show, and what merging them gains.

    python benchmarks/replicates.py [--sets keggdirected keggundirected] [--floor-only]
        [--quality best]

The floor is a bound that no prediction from these inputs can beat: where rows share their inputs,
the variance of y among them is there whatever is predicted (counted as 0 for rows without equals).
The fit is timed as it comes, and with inputs moved by a part in ten million so that none are equal.
Its squared error is taken apart: test rows that share their inputs with training rows, and what the
mean of those rows would leave of them; other test rows, and the five worst among them.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from megagp import GPRegressor
from megagp.datasets import Split
from megagp.experiments.worker import prepare
from megagp.scores import score

# Squares among rows of a place that are no more than roundoff of their mean.
NO_NOISE = 1e-20


def floor(X: np.ndarray, y: np.ndarray) -> str:
    """Places, the share of rows that have equals, and the least RMSE in the units of y."""
    _, place, rows = np.unique(X, axis=0, return_inverse=True, return_counts=True)
    place = place.reshape(-1)
    mean = np.bincount(place, y) / rows
    squares = np.bincount(place, (y - mean[place]) ** 2)
    several = rows > 1
    # Unbiased for each place: r rows with the variance q / (r - 1).
    lost = (squares[several] * rows[several] / (rows[several] - 1)).sum() / len(y)
    noisy = (squares[several] > NO_NOISE).sum()
    return (
        f"{len(y):,} training rows at {len(rows):,} places, {several[place].mean():.0%} with "
        f"equals; of {several.sum():,} places with several rows {noisy:,} differ in y; no RMSE "
        f"below {np.sqrt(lost):.4f}"
    )


def shares(data: Split, error: np.ndarray) -> str:
    """Where the mean squared error of the test rows comes from."""
    both = np.concatenate([data.X_train, data.X_test])
    _, place = np.unique(both, axis=0, return_inverse=True)
    known, asked = np.split(place.reshape(-1), [len(data.X_train)])
    rows = np.bincount(known, minlength=len(both))
    mean = np.bincount(known, data.y_train, minlength=len(both)) / np.maximum(rows, 1)
    equal, n = rows[asked] > 0, len(error)
    others = np.sort(error[~equal] ** 2)
    return (
        f"mean squared error: {(error[equal] ** 2).sum() / n:.5f} from the {equal.mean():.0%} of "
        f"test rows with equals ({((data.y_test - mean[asked])[equal] ** 2).sum() / n:.5f} by the "
        f"mean of those), {others.sum() / n:.5f} from others, {others[-5:].sum() / n:.5f} from the "
        "five worst"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", nargs="*", default=["keggdirected", "keggundirected"])
    parser.add_argument("--floor-only", action="store_true", help="fit nothing")
    parser.add_argument("--quality", default="usual", help="of the fits: usual or best")
    options = parser.parse_args()
    for name in options.sets:
        data = prepare(name, 0, None)
        X, y = data.X_train, data.y_train
        print(f"{name}: {floor(X, y)}", flush=True)
        if options.floor_only:
            continue
        moved = X * (1 + 1e-7 * np.random.default_rng(0).standard_normal(X.shape))
        moved += 1e-7 * np.random.default_rng(1).standard_normal(X.shape)
        for label, inputs in (("merged", X), ("apart", moved)):
            begin = time.perf_counter()
            model = GPRegressor(random_state=0, quality=options.quality).fit(inputs, y)
            seconds = time.perf_counter() - begin
            mean, std = model.predict(data.X_test, return_std=True)
            found = score(data.y_test, mean, std)
            print(
                f"  {label}: {len(model.posterior_.X):,} points, fit {seconds:.0f} s, RMSE "
                f"{found.rmse:.4f}, NLL {found.nll:.3f}\n    {shares(data, data.y_test - mean)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
