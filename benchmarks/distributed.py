"""Two single-threaded ranks against one, and what a model of that says about many.

python benchmarks/distributed.py [--n 50000] [--rounds 3] [--output results/distributed.json]

Each contender is a set of processes, one thread each, connected by gloo over the loopback; one and
two ranks take turns and the best of the rounds is kept. "work" is the time of a rank's own share of
a symmetric product, "sum" that of joining them.

The model of a product is  pair n² / (2 W) + point n + link 16 n t (W - 1) / W + hop 2 (W - 1),
a ring over W workers, with `pair` and `point` fitted to the products of one rank at several n, and
`link` (seconds per byte) and `hop` (seconds) to sums of several sizes over two ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from megagp import GPRegressor, KernelOperator, SGPRegressor, datasets, distributed
from megagp.experiments.machine import facts
from megagp.kernels import Matern32

DIMENSIONS, COLUMNS = 9, 12  # y, the constant mean and ten probes
STEPS = 5  # of SGPR
SIZES = (0.25, 0.5, 1.0)  # of n, for the model
SUMS = (10_000, 100_000, 1_000_000, 4_000_000)  # doubles
WORKERS, POINTS = (1, 8, 64, 512), (1_000_000, 10_000_000)
# Seconds per byte and per hop of a network that ranks on different machines might have.
NETWORK = {"link": 8 / 10e9, "hop": 50e-6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip-fit", action="store_true", help="products and sums only")
    parser.add_argument("--output", type=Path, default=Path("results/distributed.json"))
    parser.add_argument("--as-rank", nargs=2, metavar=("WHAT", "N"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        run_as_rank(options.as_rank[0], int(options.as_rank[1]))
        return
    found: dict[str, Any] = {"machine": facts(), "n": options.n}
    found["product"] = compare("product", options.n, options.rounds)
    if not options.skip_fit:
        found["fit"] = compare("fit", options.n, options.rounds)
        found["sgpr"] = compare("sgpr", options.n, options.rounds)
    found["growth"] = [
        {"n": int(options.n * share), **best("product", int(options.n * share), 1, options.rounds)}
        for share in SIZES
    ]
    found["sums"] = best("sums", 0, 2, options.rounds)
    found["model"] = fit_model(found["growth"], found["sums"])
    found["forecast"] = forecast(found["model"])
    options.output.parent.mkdir(exist_ok=True)
    options.output.write_text(json.dumps(found, indent=1))


def compare(what: str, n: int, rounds: int) -> dict[str, Any]:
    """The best times of one and of two ranks, in turns."""
    times: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    for _ in range(rounds):
        for size, runs in times.items():
            runs.append(launch(what, n, size))
    one, two = (min(runs, key=lambda run: run["total"]) for runs in times.values())
    ratio = one["total"] / two["total"]
    print(f"{what}, n = {n:,}: 1 rank {describe(one)}; 2 ranks {describe(two)}: {ratio:.2f}x")
    return {"one": one, "two": two, "ratio": ratio}


def describe(run: dict[str, float]) -> str:
    parts = [f"{name} {run[name]:.2f} s" for name in ("work", "sum") if name in run]
    parts += [f"{run[name]} {name}" for name in ("evaluations", "iterations") if name in run]
    return f"{run['total']:.2f} s" + (f" ({', '.join(parts)})" if parts else "")


def best(what: str, n: int, size: int, rounds: int) -> dict[str, float]:
    """By entry, the least of several runs."""
    runs = [launch(what, n, size) for _ in range(rounds)]
    return {name: min(run[name] for run in runs) for name in runs[0]}


def launch(what: str, n: int, size: int) -> dict[str, float]:
    """Run it on so many ranks; what the slowest of them measured."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, __file__, "--as-rank", what, str(n)]
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    lines = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"{what}: a rank of {size} failed; its error is above")
    found = [json.loads(line.splitlines()[-1]) for line in lines]
    return {name: max(run[name] for run in found) for name in found[0]}


def run_as_rank(what: str, n: int) -> None:
    torch.set_num_threads(1)
    ranks = distributed.join()
    measured = {"product": product, "fit": fit, "sgpr": sgpr, "sums": sums}[what](ranks, n)
    print(json.dumps(measured))


def product(ranks: distributed.Ranks, n: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, DIMENSIONS))
    V = torch.from_numpy(rng.standard_normal((n, COLUMNS)))
    operator = KernelOperator(X, Matern32([1.5] * DIMENSIONS), ranks=ranks)
    operator.matmul(V)
    runs = []
    for _ in range(3):
        start = time.perf_counter()
        part = operator.matmul(V, ranks.share)
        middle = time.perf_counter()
        ranks.sum(part)
        end = time.perf_counter()
        runs.append({"total": end - start, "work": middle - start, "sum": end - middle})
    return min(runs, key=lambda run: run["total"])


def fit(ranks: distributed.Ranks, n: int) -> dict[str, float]:
    X, y = datasets.robot_arm(n, joints=6, random_state=0)
    start = time.perf_counter()
    model = GPRegressor(random_state=0).fit(X, y)
    total = time.perf_counter() - start
    # Roundoff may send a search another way: how much each had to do.
    phases = model.diagnostics_["phases"]
    work = {name: phases[-1][name] for name in ("evaluations", "iterations")}
    return {"total": total, **work}


def sgpr(ranks: distributed.Ranks, n: int) -> dict[str, float]:
    """Some steps of SGPR with 512 inducing points, and what else a fit does."""
    X, y = datasets.robot_arm(n, joints=6, random_state=0)
    model = SGPRegressor(inducing_start="random", training="adam", steps=STEPS, random_state=0)
    start = time.perf_counter()
    model.fit(X, y)
    return {"total": time.perf_counter() - start, "evaluations": model.n_iter_}


def sums(ranks: distributed.Ranks, n: int) -> dict[str, float]:
    """Seconds of a sum over the ranks, by the number of doubles."""
    found = {}
    for size in SUMS:
        T = torch.zeros(size, dtype=torch.float64)
        times = []
        for _ in range(8):
            ranks.agree(torch.zeros(1))  # all start together
            start = time.perf_counter()
            ranks.sum(T)
            times.append(time.perf_counter() - start)
        found[str(size)] = min(times)
    return found


def fit_model(growth: list[dict[str, float]], sums: dict[str, float]) -> dict[str, float]:
    """Least squares on relative errors: every measurement counts alike."""
    n = np.array([run["n"] for run in growth], dtype=float)
    seconds = np.array([run["work"] for run in growth])
    A = np.stack([n**2 / 2, n], axis=1)
    pair, point = nonnegative(A, seconds)
    doubles, times = np.array([float(k) for k in sums]), np.array(list(sums.values()))
    # Over W = 2 a ring sends 16 (W - 1) / W = 8 bytes a double each way, in 2 (W - 1) = 2 hops.
    B = np.stack([8 * doubles, np.full_like(doubles, 2.0)], axis=1)
    link, hop = nonnegative(B, times)
    model = {"pair": pair, "point": point, "link": link, "hop": hop}
    print("model:", ", ".join(f"{name} {value:.3g} s" for name, value in model.items()))
    return model


def nonnegative(A: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """The two coefficients; one that comes out negative is left out."""
    A = A / b[:, None]
    one = np.ones(len(b))
    x = np.linalg.lstsq(A, one, rcond=None)[0]
    for i in range(2):
        if x[i] < 0:
            x = np.zeros(2)
            x[1 - i] = A[:, 1 - i] @ one / (A[:, 1 - i] @ A[:, 1 - i])
    return float(x[0]), float(x[1])


def forecast(model: dict[str, float]) -> list[dict[str, float]]:
    """Seconds of a product for many workers, over the network of NETWORK."""
    rows = []
    print("       n  workers  product      sum  speed-up  (forecast)")
    for n in POINTS:
        for workers in WORKERS:
            work = model["pair"] * n**2 / 2 / workers + model["point"] * n
            wire = NETWORK["link"] * 16 * n * COLUMNS * (workers - 1) / workers
            wire += NETWORK["hop"] * 2 * (workers - 1)
            total = work + wire
            gain = (model["pair"] * n**2 / 2 + model["point"] * n) / total
            rows.append({"n": n, "workers": workers, "product": total, "sum": wire, "gain": gain})
            print(f"{n:8.0e}  {workers:7}  {total:7.4g}  {wire:7.3g}  {gain:8.1f}")
    return rows


if __name__ == "__main__":
    main()
