"""megagp against GPyTorch: same data, split, recipe and cores; and megagp's defaults.

Contenders run one after the other in processes of their own, in turns, and medians are kept.

    python benchmarks/peers.py --peer .venv-peers/bin/python [--sets pol bike] [--rounds 3]
    python benchmarks/peers.py --sets kin40k protein houseelectric --growth
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from megagp import GPRegressor, datasets
from megagp.experiments.machine import facts

HERE = Path(__file__).parent
HOUSE = 100_000  # points of HouseElectric
GROWTH = (12_500, 25_000, 50_000, 100_000)
SETTINGS = {
    "recipe": {"ard": False, "inputs": "standard"},  # the peer's model, trained our way
    "paper": {"ard": False, "inputs": "standard", "training": "paper"},  # and the peer's steps
    "shared": {"ard": False},
    "ard": {"ard": True},
    "best": {"quality": "best"},  # a lengthscale for each input as well
}


def prepare(name: str, seed: int = 0) -> dict[str, np.ndarray]:
    """64/16/20 split, whitened on the training set."""
    if name.startswith("arm"):
        n = int(name[3:])
        X, y = datasets.robot_arm(n + 2_000, joints=6, random_state=seed)
        parts = X[:n], y[:n], X[n:], y[n:]
    else:
        X, y = datasets.load(name)
        if name == "houseelectric":
            rows = np.random.default_rng(seed).permutation(len(X))[: HOUSE * 25 // 16]
            X, y = X[rows], y[rows]
        s = datasets.split(X, y, random_state=seed)
        parts = s.X_train, s.y_train, s.X_test, s.y_test
    X, y, X_test, y_test = (np.asarray(part, dtype=np.float64) for part in parts)
    centre, scale = X.mean(0), X.std(0)
    scale[scale == 0] = 1.0
    shift, size = y.mean(), y.std()
    return {
        "X": (X - centre) / scale,
        "y": (y - shift) / size,
        "X_test": (X_test - centre) / scale,
        "y_test": (y_test - shift) / size,
    }


def measure(path: str, settings: str, result: str) -> None:
    """megagp on prepared data, in this process."""
    data = dict(np.load(path))
    begin = time.perf_counter()
    model = GPRegressor(random_state=0, **json.loads(settings)).fit(data["X"], data["y"])
    fitted = time.perf_counter()
    model.predict(data["X_test"][:1], return_std=True)  # makes the cache for variances
    cached = time.perf_counter()
    mean, std = model.predict(data["X_test"], return_std=True)
    predicted = time.perf_counter()
    error = (mean - data["y_test"]) ** 2
    nll = 0.5 * (error / std**2 + np.log(2 * math.pi * std**2))
    found = {
        "rmse": float(np.sqrt(error.mean())),
        "nll": float(nll.mean()),
        "coverage": float((error <= (1.959964 * std) ** 2).mean()),
        "train_seconds": sum(p["seconds"] for p in model.diagnostics_["phases"]),
        "precompute_seconds": model.diagnostics_["precompute"]["seconds"] + cached - fitted,
        "fit_seconds": fitted - begin,
        "predict_seconds": predicted - cached,
        "noise_variance": model.noise_variance_,
        "kernel": repr(model.kernel_),
        "diagnostics": model.diagnostics_,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    Path(result).write_text(json.dumps(found))


def run(command: list[str]) -> dict[str, object]:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([*command, file.name], check=True, env=os.environ)
        return json.loads(Path(file.name).read_text())


def median(runs: list[dict]) -> dict:
    """The run with the median time of training and caches; settings are the same for all."""
    if any("error" in r for r in runs):
        return next(r for r in runs if "error" in r)
    total = [r["train_seconds"] + r["precompute_seconds"] for r in runs]
    middle = statistics.median_low(total)
    return runs[total.index(middle)]


def brief(r: dict) -> dict:
    """What of a run is kept beside the median one."""
    return {k: v for k, v in r.items() if k not in ("diagnostics", "kernel")}


def show(name: str, contender: str, r: dict) -> None:
    if "error" in r:
        print(f"{name:16} {contender:10} stopped: {r['error']}", flush=True)
        return
    fit = r["train_seconds"] + r["precompute_seconds"]
    print(
        f"{name:16} {contender:10} RMSE {r['rmse']:.4f}  NLL {r['nll']:7.3f}  train + cache "
        f"{fit:7.1f} s  predict {r['predict_seconds']:6.1f} s  noise {r['noise_variance']:.4g}  "
        f"{r['peak_memory_bytes'] / 1e9:.2f} GB",
        flush=True,
    )


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "measure":
        return measure(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", nargs="*", default=["pol", "bike", "kin40k", "protein"])
    parser.add_argument("--peer", help="Python of an environment with gpytorch")
    parser.add_argument("--peer-sets", nargs="*", default=["pol", "bike"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--growth", action="store_true", help="time and memory against n")
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS))
    parser.add_argument("--output", type=Path, default=Path("results/peers.json"))
    options = parser.parse_args()
    names = [*options.sets, *([f"arm{n}" for n in GROWTH] if options.growth else [])]
    results: dict[str, dict] = {}
    for name in names:
        contenders = ["ard"] if name.startswith(("arm", "house")) else list(options.settings)
        if name not in options.peer_sets:
            contenders = [c for c in contenders if c != "paper"]
        with tempfile.TemporaryDirectory() as folder:
            data = str(Path(folder) / "data.npz")
            np.savez(data, **prepare(name))
            commands = {
                c: [sys.executable, __file__, "measure", data, json.dumps(SETTINGS[c])]
                for c in contenders
            }
            if options.peer and name in options.peer_sets:
                commands["gpytorch"] = [options.peer, str(HERE / "gpytorch_peer.py"), data]
            rounds = options.rounds if name in options.peer_sets else 1
            runs: dict[str, list[dict]] = {c: [] for c in commands}
            for _ in range(rounds):
                for c, command in commands.items():
                    runs[c].append(run(command))
        results[name] = {
            c: {**median(r), "runs": [brief(each) for each in r]} for c, r in runs.items()
        }
        for c, r in results[name].items():
            show(name, c, r)
        ratio(name, results[name])
    kept = {"machine": facts(), "results": results}
    if options.growth:
        kept["growth"] = growth(results)
    options.output.parent.mkdir(exist_ok=True)
    options.output.write_text(json.dumps(kept, indent=1))


def ratio(name: str, found: dict[str, dict]) -> None:
    if "gpytorch" not in found or "error" in found["gpytorch"]:
        return
    seconds = {c: r["train_seconds"] + r["precompute_seconds"] for c, r in found.items()}
    for c in ("recipe", "paper"):
        if c in found:
            times = seconds["gpytorch"] / seconds[c]
            print(f"{name:16} {c}: train + cache {times:.1f} times as fast as GPyTorch", flush=True)


def growth(results: dict[str, dict]) -> dict[str, float]:
    """Exponents of time and memory in n, by least squares on logarithms."""
    found = [results[f"arm{n}"]["ard"] for n in GROWTH]
    x, exponents = np.log(GROWTH), {}
    for label, values in (
        ("fit seconds", [r["fit_seconds"] for r in found]),
        ("peak memory", [r["peak_memory_bytes"] for r in found]),
    ):
        slope = exponents[label] = float(np.polyfit(x, np.log(values), 1)[0])
        print(f"growth of {label}: n^{slope:.2f} over n = {GROWTH[0]} .. {GROWTH[-1]}", flush=True)
    return exponents


if __name__ == "__main__":
    main()
