"""SGPR and SVGP at the paper's settings against GPyTorch: same data, split and cores; and defaults.

Contenders run one after the other in processes of their own. GPyTorch gets the inducing points that
the paper's settings start from, and the order of the minibatches, so that chance tells no two
apart. "step" is the mean time of a step of training, by the wall clock.

    python benchmarks/approximate.py [--peer .venv-peers/bin/python] [--sets pol bike]
    python benchmarks/approximate.py --methods sgpr --settings paper --steps 5    # steps alone
    python benchmarks/approximate.py --memory
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from peers import prepare, run

from megagp import SGPRegressor, SVGPRegressor
from megagp.approximate import CollapsedLoss, InducingParameters, choose_inducing
from megagp.datasets import robot_arm
from megagp.experiments.machine import facts
from megagp.kernels import Hyperparameter
from megagp.mean import basis
from megagp.scores import score

HERE = Path(__file__).parent
REGRESSORS = {"sgpr": SGPRegressor, "svgp": SVGPRegressor}
LARGE = ((1_000_000, 512), (50_000, 4096))
# Shared lengthscale, averages over three splits (Wang et al. 2019, Table 1): RMSE, its standard
# deviation, NLL.
PAPER = {
    ("pol", "sgpr"): (0.217, 0.002, -0.094),
    ("pol", "svgp"): (0.215, 0.002, -0.001),
    ("bike", "sgpr"): (0.362, 0.004, 0.291),
    ("bike", "svgp"): (0.303, 0.004, 0.272),
    ("kin40k", "sgpr"): (0.273, 0.025, 0.087),
    ("kin40k", "svgp"): (0.268, 0.022, 0.236),
    ("protein", "sgpr"): (0.656, 0.010, 0.970),
    ("protein", "svgp"): (0.668, 0.005, 1.035),
}


def chances(X: np.ndarray, random_state: int) -> dict[str, np.ndarray]:
    """What the paper's settings draw: where inducing points start, and the seed of minibatches."""
    found = {"random_state": np.array(random_state)}
    for method, kind in REGRESSORS.items():
        model = kind.paper(random_state=random_state)
        found["seed"] = np.array(model._seed())
        count, start = model.inducing_points, model.inducing_start
        Z = choose_inducing(torch.from_numpy(X), model.kernel, count, start, int(found["seed"]))
        found[f"Z_{method}"] = Z.numpy()
    return found


def measure(path: str, method: str, preset: str, steps: str, result: str) -> None:
    """One of ours on prepared data, in this process."""
    data = dict(np.load(path))
    kind = REGRESSORS[method]
    random_state = int(data["random_state"])
    model = (kind.paper if preset == "paper" else kind)(random_state=random_state)
    if int(steps):
        model.set_params(**{"steps" if method == "sgpr" else "epochs": int(steps)})
    last = method == "svgp" and preset == "paper"
    if last:  # the last pass is made apart, for scores without it
        model.set_params(polish=False)
    begin = time.perf_counter()
    model.fit(data["X"], data["y"])
    fitted = time.perf_counter()
    mean, std = model.predict(data["X_test"], return_std=True)
    predicted = time.perf_counter()
    found = score(data["y_test"], mean, std)._asdict()
    training = model.diagnostics_["phases"][1]
    found |= {
        "fit_seconds": fitted - begin,
        "step_seconds": training["seconds"] / training["steps"],
        "predict_seconds": predicted - fitted,
        "noise_variance": model.noise_variance_,
        "bound": model.log_marginal_likelihood_,
        "diagnostics": model.diagnostics_,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    if last:
        trained = {name: found[name] for name in ("rmse", "nll", "coverage")}
        found |= {"without polish": trained, **polished(model, data)}
    Path(result).write_text(json.dumps(found))


def polished(model: SVGPRegressor, data: dict[str, np.ndarray]) -> dict[str, float]:
    """Scores of the same hyperparameters and inducing points with `polish=True`."""
    X = model._whitened(data["X"])
    Y = model._y_whitening.apply(torch.from_numpy(data["y"][:, None]))
    noise = Hyperparameter("noise_variance", model.noise_variance_)
    parameters = InducingParameters(
        model.kernel_, noise, model.noise_floor, model.posterior_.Z, learn_inducing=False
    )
    at = CollapsedLoss(X, Y, basis(X, model.mean), parameters, model.jitter).evaluate()[0]
    model._keep(at, parameters)
    return score(data["y_test"], *model.predict(data["X_test"], return_std=True))._asdict()


def large(n: str, m: str, result: str) -> None:
    """Time of a step and memory where n or m is large."""
    X, y = robot_arm(int(n), joints=6)
    model = SGPRegressor(
        inducing_points=int(m), inducing_start="random", training="adam", steps=2, random_state=0
    ).fit(X, y)
    model.predict(X[:100_000], return_std=True)
    training = model.diagnostics_["phases"][1]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = {"step_seconds": training["seconds"] / training["steps"], "peak_memory_bytes": peak}
    Path(result).write_text(json.dumps(found))


def show(name: str, method: str, contender: str, r: dict) -> None:
    if "error" in r:
        print(f"{name:8} {method} {contender:9} stopped: {r['error']}", flush=True)
        return
    print(
        f"{name:8} {method} {contender:9} RMSE {r['rmse']:.4f}  NLL {r['nll']:7.3f}  "
        f"in 95 % {100 * r['coverage']:.1f}  step {1e3 * r['step_seconds']:7.1f} ms  "
        f"fit {r['fit_seconds']:6.1f} s  predict {r['predict_seconds']:5.2f} s  "
        f"{r['peak_memory_bytes'] / 1e9:.2f} GB",
        flush=True,
    )
    if "without polish" in r:
        rough = r["without polish"]
        print(f"{name:8} {method} unpolished RMSE {rough['rmse']:.4f}  NLL {rough['nll']:7.3f}")


def contest(options: argparse.Namespace) -> dict[str, dict]:
    results: dict[str, dict] = {}
    for name in options.sets:
        with tempfile.TemporaryDirectory() as folder:
            data = str(Path(folder) / "data.npz")
            prepared = prepare(name)
            np.savez(data, **prepared, **chances(prepared["X"], options.random_state))
            for method in options.methods:
                steps = str(options.steps)
                commands = {
                    s: [sys.executable, __file__, "measure", data, method, s, steps]
                    for s in options.settings
                }
                if options.peer:
                    peer = str(HERE / "gpytorch_inducing_peer.py")
                    count = str(options.steps or 100)
                    commands["gpytorch"] = [options.peer, peer, data, method, count]
                found = {c: run(command) for c, command in commands.items()}
                for contender, r in found.items():
                    show(name, method, contender, r)
                if (name, method) in PAPER:
                    rmse, deviation, nll = PAPER[name, method]
                    print(f"{name:8} {method} reported  RMSE {rmse} +- {deviation}  NLL {nll}")
                results[f"{name} {method}"] = found
    return results


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "measure":
        return measure(*sys.argv[2:])
    if len(sys.argv) > 1 and sys.argv[1] == "large":
        return large(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", nargs="*", default=["pol", "bike", "kin40k", "protein"])
    parser.add_argument("--methods", nargs="*", default=["sgpr", "svgp"])
    parser.add_argument("--settings", nargs="*", default=["paper", "default"])
    parser.add_argument("--steps", type=int, default=0, help="steps or epochs; 0 for the settings'")
    parser.add_argument("--random-state", type=int, default=0, help="of starts and minibatches")
    parser.add_argument("--peer", help="Python of an environment with gpytorch")
    parser.add_argument("--memory", action="store_true", help="large n and large m alone")
    parser.add_argument("--output", type=Path, default=Path("results/approximate.json"))
    options = parser.parse_args()
    if options.memory:
        results = {}
        for n, m in LARGE:
            r = run([sys.executable, __file__, "large", str(n), str(m)])
            results[f"n {n} m {m}"] = r
            peak = r["peak_memory_bytes"] / 1e9
            print(f"n = {n}, m = {m}: {r['step_seconds']:.1f} s a step, peak {peak:.2f} GB")
    else:
        results = contest(options)
    options.output.parent.mkdir(exist_ok=True)
    options.output.write_text(json.dumps({"machine": facts(), "results": results}, indent=1))


if __name__ == "__main__":
    main()
