"""One run, in a process of its own: python -m megagp.experiments.worker.

The run comes as a line of JSON on stdin, its record goes to the file that the line names. When
stdin ends, whoever asked for the run is gone, and so is this process.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from megagp import distributed
from megagp.datasets import Split, split
from megagp.estimators import GPRegressor
from megagp.experiments.data import load
from megagp.experiments.machine import circumstances, now
from megagp.experiments.methods import fit
from megagp.experiments.run import DONE, Record, Run
from megagp.experiments.suites import TRACED
from megagp.experiments.trace import Recorder, trace
from megagp.memory import MemoryWatch
from megagp.scores import coverage, score
from megagp.whitening import Whitening

# New points whose means and deviations are timed, as in the paper's table.
TIMED = 1000
# Test points of a run on a subset, at most: they tell an RMSE to half a percent.
SUBSET_TEST = 20_000
NOMINAL = (*(p / 20 for p in range(1, 20)), 0.99)


def measure(run: Run) -> Record:
    """Fit, predict and score; the record of a run that is done."""
    started = now()
    data = prepare(run.dataset, run.seed, run.subset)
    settings = {name: value for name, value in run.settings.items() if name != "workers"}
    recorder = Recorder() if run.suite in TRACED else None
    with warnings.catch_warnings(record=True) as caught, MemoryWatch() as memory:
        warnings.simplefilter("always")
        begin = time.perf_counter()
        fitted = fit(run.method, run.dataset, data, run.seed, settings, recorder)
        trained = time.perf_counter()
        # Caches that the first prediction makes belong to the precomputation.
        fitted.predict(data.X_test[:1])
        cached = time.perf_counter()
        fitted.predict(data.X_test[:TIMED])
        predicted = time.perf_counter()
        mean, std = fitted.predict(data.X_test)
    precompute = fitted.precompute or 0.0
    scores = score(data.y_test, mean, std)
    observed = coverage((data.y_test - mean) / std, np.array(NOMINAL))
    steps = None
    if recorder is not None and isinstance(fitted.model, GPRegressor):
        steps = trace(recorder, fitted.model, data)
    return run.record(
        DONE,
        n_train=len(data.X_train),
        n_test=len(data.X_test),
        d=data.X_train.shape[1],
        rmse=scores.rmse,
        nll=scores.nll,
        coverage=scores.coverage,
        calibration=[[p, float(share)] for p, share in zip(NOMINAL, observed, strict=True)],
        seconds={
            "train": trained - begin - precompute,
            "precompute": precompute + cached - trained,
            "predict": predicted - cached,
        },
        memory_bytes=memory.most,
        trace=steps,
        warnings=list(dict.fromkeys(str(w.message) for w in caught)),
        **fitted.facts,
        **circumstances(started),
    )


def prepare(dataset: str, seed: int, subset: int | None) -> Split:
    """64 / 16 / 20 %, in units of the training part's standard deviations from its means.

    subset: training points to keep of the 64 %; of the test points, SUBSET_TEST are then enough.
    """
    whole = split(*load(dataset), random_state=seed)
    if subset is not None and subset < len(whole.X_train):
        # The split has shuffled them.
        whole = whole._replace(
            X_train=whole.X_train[:subset],
            y_train=whole.y_train[:subset],
            X_test=whole.X_test[:SUBSET_TEST],
            y_test=whole.y_test[:SUBSET_TEST],
        )
    parts = [torch.from_numpy(np.ascontiguousarray(part, dtype=np.float64)) for part in whole]
    of_X, of_y = Whitening.of(parts[0]), Whitening.of(parts[1][:, None])
    white = [
        (of_X.apply(part) if part.ndim == 2 else of_y.apply(part[:, None])[:, 0]).numpy()
        for part in parts
    ]
    return Split(*white)


def main() -> None:
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with_stdin, daemon=True).start()
    if "WORLD_SIZE" in os.environ:
        distributed.join()
        torch.set_num_threads(1)  # a rank is one core here, whatever there is
    record = measure(Run(**order["run"]))
    if distributed.is_first():
        Path(order["output"]).write_text(json.dumps(record, allow_nan=False))


def end_with_stdin() -> None:
    """End this process when stdin does, from a thread of its own."""
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
