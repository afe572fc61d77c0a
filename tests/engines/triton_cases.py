"""Problems for the triton engine, and a script that solves them in Triton's interpreter.

    TRITON_INTERPRET=1 python triton_cases.py results.npz

The interpreter is chosen when Triton is imported, so the tests run this in a process of its own.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from megagp import KernelOperator
from megagp.engines import Share
from megagp.engines.triton import TritonEngine
from megagp.kernels import RBF, Constant, Kernel, Matern12, Matern32, Matern52


def ard(d):
    return np.sqrt(d) * np.linspace(0.6, 1.4, d)


def offset(X):
    return X + 1e3


def near_duplicates(X):
    X[1::2] = X[::2][: len(X[1::2])] + 1e-6
    X[5::7] = X[0]
    return X


def huge_feature(X):
    X[:, 0] *= 1e30
    return X


def plain(X):
    return X


@dataclass
class Case:
    """k(X, Z) with t right-hand sides; m None for Z = X. A panel has 256 points."""

    kernel: Kernel
    n: int
    d: int
    t: int
    m: int | None = None
    data: object = plain
    dtype: str = "float32"

    def arrays(self):
        """X, Z, V, U."""
        rng = np.random.default_rng(self.n + self.d)
        X = self.data(rng.normal(size=(self.n, self.d)))
        Z = None if self.m is None else self.data(rng.normal(size=(self.m, self.d)))
        if Z is not None:
            Z[0] = X[0]
        V = rng.normal(size=(self.m or self.n, self.t))
        return X, Z, V, rng.normal(size=(self.n, self.t))


CASES = {
    "one-point": Case(Matern32(0.7, 1.3), 1, 1, 1),
    "one-dimension": Case(Matern12(0.7, 1.3), 257, 1, 16),
    "over-a-panel": Case(Matern32(0.7, 1.3), 257, 3, 1),
    "over-a-panel-float64": Case(Matern32(ard(3), 1.3), 257, 3, 3, dtype="float64"),
    "d9": Case(Matern52(ard(9), 0.9), 70, 9, 3),
    "d9-float64": Case(Matern52(3.0, 0.9), 70, 9, 17, dtype="float64"),
    "d20": Case(Matern32(ard(20), 1.3), 60, 20, 16),
    "rbf-wide": Case(RBF(ard(9), 1.3), 3, 9, 17, m=258),
    "tall": Case(Matern12(1.1, 0.4), 258, 2, 3, m=5),
    "two-sets-d20": Case(Matern52(4.0), 20, 20, 1, m=30),
    "scaled": Case(Constant(2.5) * RBF([0.9, 0.7], 0.5, active_dims=[2, 0]), 40, 3, 2),
    "offset": Case(Matern32(ard(3)), 80, 3, 1, data=offset),
    "offset-rbf": Case(RBF(ard(9)), 80, 9, 3, data=offset),
    "near-duplicates": Case(Matern12(0.8), 80, 3, 3, data=near_duplicates),
    "near-duplicates-d9": Case(Matern32(3.0), 80, 9, 1, data=near_duplicates),
}


def solve(case):
    X, Z, V, U = case.arrays()
    operator = KernelOperator(X, case.kernel, Z, engine=TritonEngine(), dtype=case.dtype)
    yield "matmul", operator.matmul(V)
    yield "block", operator.block([len(X) - 1, 0], slice(None, None, 7))
    for name, value in operator.gradient(U, V, inputs=True).items():
        yield f"gradient {name}", value
    if Z is None:
        yield "diagonal", operator.diagonal()


def clusters():
    """Points in far clusters, in an order that scatters them; their kernel is 0 between most."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1024, 2)) + 40 * (np.arange(1024) % 4)[:, None]
    return Matern32(1.0, 2.0), X, rng.normal(size=(1024, 1))


def cull():
    kernel, X, V = clusters()
    operator = KernelOperator(X, kernel, engine=TritonEngine())
    yield "matmul", operator.matmul(V)
    found = operator.statistics
    yield "statistics", torch.tensor([found.culled_fraction, found.culling_bound]).double()


def share():
    kernel, X, V = clusters()
    X, V = torch.as_tensor(X[:300]), torch.as_tensor(V[:300])
    prepared = TritonEngine().prepare(kernel, X, None, torch.float32, 0.0)
    yield "whole", prepared.matmul(V)
    yield "again", prepared.matmul(V)
    yield "parts", sum(prepared.matmul(V, Share(i, 4)) for i in range(4))
    parts = [prepared.gradient(V, V, share=Share(i, 4)).hyperparameters for i in range(4)]
    whole = prepared.gradient(V, V).hyperparameters
    for name in whole:
        yield f"whole {name}", whole[name]
        yield f"parts {name}", sum(part[name] for part in parts)
    # One panel pair at a time instead of all at once.
    small = TritonEngine(memory_budget=1).prepare(kernel, X, None, torch.float32, 0.0)
    yield "waves", small.matmul(V)


def extremes():
    rng = np.random.default_rng(0)
    X, ones = rng.normal(size=(40, 2)), np.ones((40, 1))
    X[:, 0] *= 1e30
    X[1] = X[0]
    for kernel in (Matern12(), Matern32(), Matern52(), RBF()):
        operator = KernelOperator(X, kernel, engine=TritonEngine())
        name = type(kernel).__name__
        yield f"{name} matmul", operator.matmul(ones)
        for key, value in operator.gradient(ones, ones, inputs=True).items():
            yield f"{name} gradient {key}", value
    V = np.abs(rng.normal(size=(40, 4))) * [1e300, 1e-300, 1.0, 0.0]
    yield "columns", KernelOperator(X / 1e30, Matern32(), engine=TritonEngine()).matmul(V)


def frozen():
    X, ones = torch.ones(5, 2, dtype=torch.float64), torch.ones(5, 1, dtype=torch.float64)
    kernel = Matern32([1.0, 2.0], 3.0).freeze("lengthscale")
    gradient = KernelOperator(X, kernel, engine="triton").gradient(ones, ones)
    yield from gradient.items()


OTHERS = {"cull": cull, "share": share, "extremes": extremes, "frozen": frozen}


def main(path):
    found = {}
    for name, case in CASES.items():
        found |= {f"{name}/{key}": value.numpy() for key, value in solve(case)}
    for name, function in OTHERS.items():
        found |= {f"{name}/{key}": value.numpy() for key, value in function()}
    np.savez(path, **found)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
