"""How good a model would be if training stopped here: test error over steps and seconds."""

from __future__ import annotations

import time
from typing import Any

from megagp.datasets import Split
from megagp.estimators import GPRegressor
from megagp.scores import score
from megagp.training import Step

# Steps to look at: each costs a solve on all training points. The last one always is.
LOOKS = frozenset((1, 2, 3, 4, 5, 7, 10, 13, 16, 20, 25, 30, 40, 50, 60, 70, 80, 90, 100))


class Recorder:
    """Hears of every step of training, and keeps the hyperparameters with the time."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, Step]] = []
        self._start = time.perf_counter()

    def __call__(self, step: Step) -> None:
        self.steps.append((time.perf_counter() - self._start, step))


def trace(recorder: Recorder, model: GPRegressor, data: Split) -> list[dict[str, Any]]:
    """Test scores of the exact GP on all training points, with the hyperparameters of each step.

    seconds: of training, up to that step; what the scores cost is not in them, nor the solve
    behind predictions. step counts through all phases. The training is over by now: nothing
    of this finds its way back.
    """
    found = []
    for number, (seconds, step) in enumerate(recorder.steps, start=1):
        if number not in LOOKS and number != len(recorder.steps):
            continue
        settings = {**model.get_params(deep=False), "training": "none", "on_step": None}
        settings |= {"kernel": step.kernel, "noise_variance": step.noise_variance}
        settings["place_variance"] = step.place_variance or None
        settings["inputs"] = model.inputs_  # a kernel that is given would take them as they are
        then = GPRegressor(**settings).fit(data.X_train, data.y_train)
        mean, std = then.predict(data.X_test, return_std=True)
        scores = score(data.y_test, mean, std)
        found.append(
            {
                "seconds": seconds,
                "step": number,
                "rmse": scores.rmse,
                "nll": scores.nll,
                "phase": step.phase,
                "points": step.points,
            }
        )
    return found
