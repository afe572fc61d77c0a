"""How fast K V is: megagp's native engine against torch in row chunks and KeOps on the CPU.

In up to three dimensions megagp evaluates near pairs and approximates far ones by polynomials,
by at most 1e-6 of the largest entry: "far" is the share of these. Below the table, the same for
a million points against a native product that evaluates every pair, timed on a share of them.

One process, contenders interleaved, best of several rounds. Rates are in pairs of the full
n x n matrix per second, so an engine that uses the symmetry of K gets credit for it.

torch is given its best chance: two ways to write the product (torch.cdist, and addmm for
the distances, with every other step in place), each at the best of twelve row-chunk sizes.
Its rows are independent, so it is timed on some of them; megagp on all, or on a share of
the tile pairs where d is large.

At the end, products that evaluate entries against products that read those of an earlier one
(`engines/keeping.py`), by the number of columns of X.

    python benchmarks/engine.py [--quick] [--output results/engine.json]
    python benchmarks/engine.py --kept    # the last table alone
"""

from __future__ import annotations

import argparse
import json
import math
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from megagp import KernelOperator, _native, kernels
from megagp.engines import NativeEngine, Share, instruction_sets
from megagp.experiments.machine import facts

CHUNKS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
USUAL_CHUNK = 1024  # what one would choose without measuring

try:
    from pykeops.torch import LazyTensor
except Exception:  # not installed, or without a compiler to build its formulas
    LazyTensor = None


@dataclass(frozen=True)
class Case:
    d: int
    t: int
    dtype: str
    target: float
    share: int = 1  # native computes one of this many shares

    def slots(self) -> float:
        """Vector operations per pair evaluated, as native/ does it, float32 with AVX-512.

        Distances: d + 1 and a minimum by products, 2 d by differences (d <= 4). The Matérn-3/2
        function of it: 16. Contraction: one for the row and one for the column for each t.
        """
        return (2 * self.d if self.d <= 4 else self.d + 2) + 16 + 2 * self.t


CASES = (
    Case(9, 1, "float32", 25),
    Case(3, 1, "float32", 25),
    Case(9, 16, "float32", 15),
    Case(90, 1, "float32", 8, share=4),
    Case(385, 1, "float32", 3, share=16),
    Case(9, 1, "float64", 8),
)


def torch_cdist(X: Tensor, V: Tensor, rows: int, chunk: int) -> None:
    out = torch.empty(rows, V.shape[1], dtype=V.dtype)
    for i in range(0, rows, chunk):
        D = torch.cdist(X[i : i + chunk], X).mul_(math.sqrt(3))
        K = torch.exp(-D).mul_(D.add_(1))
        torch.mm(K, V, out=out[i : i + chunk])


def torch_addmm(X: Tensor, V: Tensor, rows: int, chunk: int) -> None:
    out = torch.empty(rows, V.shape[1], dtype=V.dtype)
    X = X * math.sqrt(3)
    norms = X.square().sum(dim=1)
    for i in range(0, rows, chunk):
        D = torch.addmm(norms, X[i : i + chunk], X.T, alpha=-2)
        D.add_(norms[i : i + chunk, None]).clamp_(min=0).sqrt_()
        K = torch.exp(-D).mul_(D.add_(1))
        torch.mm(K, V, out=out[i : i + chunk])


def keops(X: Tensor, V: Tensor, rows: int) -> None:
    x = LazyTensor(X[:rows, None, :].contiguous())
    z = LazyTensor(X[None, :, :])
    D = math.sqrt(3) * ((x - z) ** 2).sum(-1).sqrt()
    ((1 + D) * (-D).exp()) @ V


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(case: Case, n: int, rounds: int, with_keops: bool) -> dict[str, object]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, case.d))
    V = rng.standard_normal((n, case.t))
    lengthscale = 0.5 * math.sqrt(case.d)  # typical distances of a few lengthscales
    op = KernelOperator(
        X, kernels.Matern32(lengthscale), engine="native", dtype=case.dtype, cull_tolerance=0.0
    )
    native_V = torch.from_numpy(V)
    dtype = torch.float32 if case.dtype == "float32" else torch.float64
    Xs, Vs = torch.from_numpy(X / lengthscale).to(dtype), native_V.to(dtype)
    pairs = float(n) ** 2
    rows = min(n, 2048 if case.d <= 90 else 1024)

    best: dict[str, float] = {}

    def note(name: str, time_taken: float, part: float) -> None:
        best[name] = max(best.get(name, 0.0), pairs * part / time_taken)

    forms = {"torch cdist": torch_cdist, "torch addmm": torch_addmm}
    sweep = {
        (name, chunk): seconds(lambda form=form, chunk=chunk: form(Xs, Vs, rows, chunk))
        for name, form in forms.items()
        for chunk in CHUNKS
        if chunk <= rows
    }
    chosen = {  # the three best sizes by the sweep stay in the race, and the usual one
        name: sorted(c for f, c in sweep if f == name and c != USUAL_CHUNK) for name in forms
    }
    for name in forms:
        chosen[name] = sorted(chosen[name], key=lambda c, name=name: sweep[name, c])[:3]
    op.matmul(native_V, Share(0, 64))
    keops_rows = max(64, min(n, int(4e8 / n / case.d)))
    if with_keops:
        keops(Xs, Vs, keops_rows)  # compiles
    share = Share(0, case.share)
    rate = 0.0
    for _ in range(rounds):
        rate = max(rate, fma_rate(0.1))
        note("native", seconds(lambda: op.matmul(native_V, share)), 1 / case.share)
        for name, form in forms.items():
            for chunk in chosen[name]:
                note(
                    f"{name}@{chunk}", seconds(lambda f=form, c=chunk: f(Xs, Vs, rows, c)), rows / n
                )
        note(
            f"torch addmm, usual chunk@{USUAL_CHUNK}",
            seconds(lambda: torch_addmm(Xs, Vs, rows, USUAL_CHUNK)),
            rows / n,
        )
        if with_keops:
            note("KeOps", seconds(lambda: keops(Xs, Vs, keops_rows)), keops_rows / n)

    def top(prefix: str) -> float:
        return max((r for name, r in best.items() if name.startswith(prefix)), default=0.0)

    peers = {
        "torch_cdist": top("torch cdist@"),
        "torch_addmm": top("torch addmm@"),
        "torch_usual_chunk": top("torch addmm, usual"),
        "keops": top("KeOps"),
    }
    fastest = max(peers.values())
    slots = case.slots() * best["native"] / 2  # each pair is evaluated once for both sides
    return {
        **asdict(case),
        "n": n,
        "native": best["native"],
        **peers,
        "ratio_cdist": best["native"] / max(peers["torch_cdist"], peers["keops"]),
        "ratio_fastest": best["native"] / fastest,
        "ratio_usual_chunk": best["native"] / peers["torch_usual_chunk"],
        "fma_rate": rate,
        "fma_fraction": slots / rate if case.dtype == "float32" else slots / (rate / 2),
        "far_fraction": op.statistics.far_fraction,
        "far_error": op.statistics.far_error,
        "all": best,
    }


def measure_gradient(n: int, rounds: int) -> dict[str, float]:
    """The gradient verb (ARD, d = 9, t = 16) in products of the same t."""
    rng = np.random.default_rng(0)
    X, U, W = (torch.from_numpy(rng.standard_normal((n, c))) for c in (9, 16, 16))
    op = KernelOperator(X, kernels.Matern32([1.5] * 9), engine="native", cull_tolerance=0.0)
    op.matmul(W, Share(0, 64))
    product = gradient = math.inf
    for _ in range(rounds):
        product = min(product, seconds(lambda: op.matmul(W)))
        gradient = min(gradient, seconds(lambda: op.gradient(U, W)))
    return {"product_s": product, "gradient_s": gradient, "ratio": gradient / product}


def measure_culling(n: int, rounds: int) -> dict[str, float]:
    """Clustered 3-d data, lengthscale 1 % of the extent, against the unculled product.

    Without the far field, which is as quick with culling as without.
    """
    rng = np.random.default_rng(0)
    centres = rng.uniform(0, 1, (60, 3))
    X = centres[rng.integers(0, 60, n)] + 0.02 * rng.standard_normal((n, 3))
    V = torch.from_numpy(rng.standard_normal((n, 1)))
    extent = float((X.max(axis=0) - X.min(axis=0)).max())
    k = kernels.Matern32(0.01 * extent)
    culled = KernelOperator(X, k, engine=NativeEngine(far_field=False))
    whole = KernelOperator(X, k, engine=NativeEngine(far_field=False), cull_tolerance=0.0)
    culled_s = whole_s = math.inf
    for _ in range(rounds):
        culled_s = min(culled_s, seconds(lambda: culled.matmul(V)))
        whole_s = min(whole_s, seconds(lambda: whole.matmul(V)))
    error = float((culled.matmul(V) - whole.matmul(V)).norm() / V.norm())
    return {
        "n": n,
        "culled_s": culled_s,
        "whole_s": whole_s,
        "ratio": whole_s / culled_s,
        "culled_fraction": culled.statistics.culled_fraction,
        "bound": culled.statistics.culling_bound,
        "error": error,
    }


def measure_far_field(n: int, d: int, rounds: int) -> dict[str, float]:
    """Normal data, t = 1, against a product that evaluates every pair."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    V = torch.from_numpy(rng.standard_normal((n, 1)))
    k = kernels.Matern32(0.5 * math.sqrt(d))
    far = KernelOperator(X, k, engine="native", cull_tolerance=0.0)
    every = KernelOperator(X, k, engine=NativeEngine(far_field=False), cull_tolerance=0.0)
    prepare_s = seconds(lambda: far.statistics)
    parts = max(1, int((n / 32768) ** 2))
    far_s = every_s = math.inf
    for _ in range(rounds):
        far_s = min(far_s, seconds(lambda: far.matmul(V)))
        every_s = min(every_s, parts * seconds(lambda: every.matmul(V, Share(0, parts))))
    # Some rows in float64 tell the error; the rest of V's part in it is the same.
    rows = X[:: n // 256]
    exact = KernelOperator(rows, k, X, engine="native", dtype="float64").matmul(V)
    error = float((far.matmul(V)[:: n // 256] - exact).abs().max() / exact.abs().max())
    return {
        "n": n,
        "d": d,
        "prepare_s": prepare_s,
        "far_s": far_s,
        "every_s": every_s,
        "ratio": every_s / far_s,
        "far_fraction": far.statistics.far_fraction,
        "bound": far.statistics.far_error,
        "error": error,
    }


def measure_kept(n: int, d: int, t: int, dtype: str, rounds: int) -> dict[str, float | str]:
    """Normal data: a product that evaluates, and one that reads what another evaluated."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    V = torch.from_numpy(rng.standard_normal((n, t)))
    k = kernels.Matern32(math.sqrt(d))
    evaluated, kept = (
        KernelOperator(X, k, engine=NativeEngine(far_field=False), dtype=dtype, cache_budget=b)
        for b in (0, 2**40)
    )
    kept.matmul(V)
    evaluated_s = kept_s = math.inf
    for _ in range(rounds):
        evaluated_s = min(evaluated_s, seconds(lambda: evaluated.matmul(V)))
        kept_s = min(kept_s, seconds(lambda: kept.matmul(V)))
    both = {"evaluated_s": evaluated_s, "kept_s": kept_s, "ratio": evaluated_s / kept_s}
    return {"n": n, "d": d, "t": t, "dtype": dtype, **both}


def print_kept(rounds: int) -> list[dict[str, float | str]]:
    found = []
    for d in (8, 32, 64, 90, 128, 384):
        for dtype in ("float32", "float64"):
            for t in (2, 12):
                found.append(measure_kept(8000, d, t, dtype, rounds))
                print(
                    "entries kept, n = {n:,}, d = {d}, t = {t}, {dtype}: {evaluated_s:.3f} s "
                    "evaluated, {kept_s:.3f} s read, {ratio:.1f}x".format(**found[-1]),
                    flush=True,
                )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller n, fewer rounds")
    parser.add_argument("--output", type=Path, default=Path("results/engine.json"))
    parser.add_argument("--kept", action="store_true", help="only entries kept between products")
    options = parser.parse_args()
    n, rounds = (16384, 2) if options.quick else (65536, 5)
    if options.kept:
        print_kept(rounds)
        return
    machine = facts()
    print(f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}")
    print(f"symmetric product, Matérn-3/2, n = {n:,}; rates in 1e9 pairs/s")
    header = ("d", "t", "dtype", "native", "cdist", "addmm", "usual", "KeOps")
    print(("{:>5}{:>4}{:>9}" + "{:>8}" * 5).format(*header), end="")
    print("  ratio to cdist, to fastest, to usual; target; share of FMA peak")
    results = []
    for case in CASES:
        r = measure(case, n, rounds, LazyTensor is not None and case.d <= 90)
        results.append(r)
        rates = [r[k] / 1e9 for k in ("native", "torch_cdist", "torch_addmm")]
        rates += [r["torch_usual_chunk"] / 1e9, r["keops"] / 1e9]
        print(
            f"{case.d:5d}{case.t:4d}{case.dtype:>9}" + "".join(f"{x:8.3f}" for x in rates), end=""
        )
        ratios = (r["ratio_cdist"], r["ratio_fastest"], r["ratio_usual_chunk"])
        print("  " + ", ".join(f"{x:.1f}x" for x in ratios), end="")
        far = r["far_fraction"]
        spent = f"{100 * far:.0f} % far" if far else f"{100 * r['fma_fraction']:.0f} %"
        print(f"; {case.target:g}x; {spent}", flush=True)
    gradient = measure_gradient(n, rounds)
    print("gradient, ARD, d = 9, t = 16: {ratio:.2f} products".format(**gradient))
    culling = measure_culling(4 * n if options.quick else 200_000, max(2, rounds // 2))
    print(
        "culling, clustered 3-d, n = {n:,}: {ratio:.1f}x, {culled_fraction:.1%} skipped, "
        "error {error:.1e} of |V|, bound {bound:.1e}".format(**culling)
    )
    far_field = []
    for d in (2, 3):
        far_field.append(measure_far_field(16 * n if options.quick else 1_000_000, d, 2))
        print(
            "far field, d = {d}, n = {n:,}: {far_s:.2f} s, {ratio:.0f}x, {far_fraction:.1%} far, "
            "error {error:.1e} of the largest entry, prepared in {prepare_s:.1f} s".format(
                **far_field[-1]
            )
        )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    record = {"machine": machine, "products": results, "gradient": gradient, "culling": culling}
    record |= {"far_field": far_field, "kept": print_kept(rounds)}
    options.output.write_text(json.dumps(record, indent=1))
    print(f"written to {options.output}")


def fma_rate(seconds: float = 0.3) -> float:
    """float32 multiply-adds per second that all threads together reach on independent chains."""
    rates: list[float] = []
    best = instruction_sets()[0]

    def run() -> None:
        rates.append(_native.fma_rate(best, seconds))

    threads = [threading.Thread(target=run) for _ in range(torch.get_num_threads())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rates)


if __name__ == "__main__":
    main()
