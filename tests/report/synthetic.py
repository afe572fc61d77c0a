"""Made-up results over all suites: none of these numbers was measured."""

import json
import math
import random

from megagp.report import paper

ODD = 'odd <b>&"name"</b> _x_ $1 | 50%'
MACHINE = {"cpu": "an example", "cores": 2, "memory_bytes": 16_000_000_000, "sets": ["avx2"]}
RESULT = {
    "settings": {"ard": False},
    "status": "done",
    "reason": None,
    "n_train": 1000,
    "n_test": 300,
    "d": 3,
    "subset": None,
    "rmse": 0.25,
    "nll": 0.5,
    "coverage": 0.94,
    "calibration": [[0.25, 0.2], [0.5, 0.45], [0.95, 0.94]],
    "seconds": {"train": 2.0, "precompute": 0.5, "predict": 0.01},
    "memory_bytes": 3e8,
    "partitions": 1,
    "kernel_evaluations": 10**9,
    "hyperparameters": {"noise_variance": 0.01, "outputscale": 1.0, "lengthscale": [0.5, 2, 30]},
    "residuals": [1.0, 0.1, None, 0.001],
    "trace": None,
    "x": None,
    "warnings": [],
    "machine": MACHINE,
    "versions": {"python": "3.11", "megagp": "0.1.0"},
    "git": "abc1234",
    "started": "2026-01-31T12:00:00Z",
    "finished": "2026-01-31T12:10:00Z",
}


def record(suite, dataset, method, seed=0, **other):
    return {"suite": suite, "dataset": dataset, "method": method, "seed": seed, **RESULT, **other}


def write(folder, records):
    folder.mkdir(parents=True, exist_ok=True)
    for suite in {record["suite"] for record in records}:
        lines = [json.dumps(record) for record in records if record["suite"] == suite]
        (folder / f"{suite}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def everything():
    """Every suite and method; failures, subsets, stand-ins, NaN, odd names."""
    draw = random.Random(0)
    found = []
    for suite in ("table1", "table3", "table5"):
        for dataset in ("pol", "bike", "kin40k"):
            known = paper.DATASETS[dataset]
            for method in ("exact", "exact-paper", "sgpr", "svgp", "lightgbm", "own-method"):
                for seed in range(3):
                    sizes = {"n_train": known.n, "d": known.d}
                    rmse = draw.uniform(0.05, 0.5)
                    seconds = {"train": 1e-6 * known.n**2, "precompute": 0.0, "predict": 0.02}
                    found.append(
                        record(suite, dataset, method, seed, **sizes, rmse=rmse, seconds=seconds)
                    )
    found += [
        record("table1", "houseelectric", "exact", n_train=50_000, d=11, subset=50_000),
        record("table1", "gebco_kg_2m", "exact", n_train=50_000, d=2, subset=50_000),
        record("table1", ODD, "exact", warnings=["<script>alert(1)</script>"]),
        record("table1", "protein", "exact", rmse=math.nan, nll=None),
        record("table1", "slice", "exact", status="skipped", reason="no <file> at hand"),
        record("table3", "protein", "sgpr", status="failed", reason="out of memory"),
        record("smoke", "robot_arm:3000", "exact"),
        record("mine", "pol", "exact", seconds=None, hyperparameters=None, residuals=None),
    ]
    trace = [{"seconds": 1.0 * i, "step": i, "rmse": 1 / i, "nll": None} for i in range(1, 9)]
    found += [record("fig1", "kin40k", m, trace=trace) for m in ("exact", "exact-adam")]
    for workers in (1, 2):
        seconds = {"train": 10 / workers}
        found.append(record("fig2", "kin40k", "exact", x=workers, seconds=seconds))
    found.append(record("fig3", "bike", "exact"))
    for m in (16, 64, 256):
        found += [record("fig3", "bike", method, x=m, rmse=1 / m) for method in ("sgpr", "svgp")]
    for n in (1000, 2000, 4000):
        seconds = {"train": 1e-6 * n**2, "precompute": 0.0}
        found.append(record("fig4", "kin40k", "exact", x=n, subset=n, n_train=n, seconds=seconds))
    found.append(record("fig5", "houseelectric", "exact", x=100, subset=50_000, trace=trace))
    return found
