"""Multiply by a kernel matrix that would not fit in memory, differentiate through it, check it."""

from __future__ import annotations

import resource
import sys
import time

import numpy as np
import torch

from megagp import KernelOperator, kernels

# ru_maxrss is in kilobytes, on macOS in bytes.
PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT / 2**20


def main() -> None:
    rng = np.random.default_rng(0)
    n, d = 100_000, 9
    X = rng.standard_normal((n, d))
    v = rng.standard_normal(n)
    kernel = kernels.Matern32(lengthscale=[1.5] * d, outputscale=2.0)
    op = KernelOperator(X, kernel)
    print(f"{op}\nengine    {op.engine}")

    before = peak_megabytes()
    start = time.perf_counter()
    Kv = op.matmul(v)
    seconds = time.perf_counter() - start
    print(f"K @ v     {seconds:.2f} s, {n * n / seconds / 1e9:.1f} billion pairs a second")
    print(
        f"memory    {peak_megabytes() - before:.0f} MB more for the product; "
        f"K itself would take {n * n * 4 / 2**30:.0f} GB in float32"
    )

    rows = rng.choice(n, 200, replace=False)
    exact = KernelOperator(X[rows], kernel, Z=X, engine="tiles", dtype="float64").matmul(v)
    error = float((Kv[rows] - exact).abs().max() / Kv.abs().max())
    print(f"accuracy  200 rows against float64: largest error {error:.1e} of the largest entry")

    start = time.perf_counter()
    gradient = op.gradient(v, v)
    print(
        f"gradient  of v'Kv by {d} lengthscales and the outputscale: "
        f"{time.perf_counter() - start:.2f} s"
    )
    print("          by lengthscale " + " ".join(f"{g:.0f}" for g in gradient["lengthscale"]))

    centres = rng.uniform(0, 1, (60, 3))
    clustered = centres[rng.integers(0, 60, n)] + 0.02 * rng.standard_normal((n, 3))
    short = KernelOperator(clustered, kernels.Matern32(lengthscale=0.01))
    start = time.perf_counter()
    short.matmul(v)
    print(
        f"culling   clustered 3-d data, short lengthscale: {time.perf_counter() - start:.2f} s, "
        f"{short.statistics.culled_fraction:.0%} of the tiles skipped, "
        f"at a cost of at most {short.statistics.culling_bound:.0e} in the norm of K"
    )
    torch.set_num_threads(1)  # the same bits from any number of threads
    same = torch.equal(op.matmul(v), Kv)
    print(f"threads   one instead of several gives {'the same bits' if same else 'OTHER BITS'}")


if __name__ == "__main__":
    main()
