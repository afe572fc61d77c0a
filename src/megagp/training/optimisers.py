"""Adam and L-BFGS on θ, that survive steps into nowhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from scipy.optimize import minimize

from megagp.training.objective import Objective, State
from megagp.training.parameters import Vector

# A step after which the loss is worse than the best by this much per observation (nats) is
# taken back. The probes' noise is a fraction of it.
WILD = 0.05
# Evaluations that one step of L-BFGS may take on average.
TRIALS = 2
NO_START = (
    "kernel: expected a finite likelihood at the starting hyperparameters, got none; "
    "raise noise_floor, or start from other values"
)

Report: TypeAlias = Callable[[int, float], None]  # step, loss


def adam(
    objective: Objective, steps: int, learning_rate: float, report: Report, first_draw: int = 0
) -> None:
    """Adam, with new probes at every step; leaves the hyperparameters at the best θ seen.

    After a step to a loss that is not finite, or worse than the best by WILD, it goes on from
    the best with half the rate.
    """
    bounds = objective.parameters
    theta = torch.from_numpy(bounds.clip(bounds.get()))
    optimiser = torch.optim.Adam([theta], lr=learning_rate)
    loss, gradient = objective(theta.numpy().copy(), None)
    if not (np.isfinite(loss) and np.isfinite(gradient).all()):
        raise ValueError(NO_START)
    best = loss, theta.clone(), gradient, objective.state()
    for step in range(1, steps + 1):
        theta.grad = torch.from_numpy(gradient)
        with torch.no_grad():
            optimiser.step()
            theta.copy_(torch.from_numpy(bounds.clip(theta.numpy())))
        trial, slope = objective(theta.numpy().copy(), first_draw + step)
        if np.isfinite(trial) and np.isfinite(slope).all() and trial < best[0] + WILD:
            gradient = slope
            if trial < best[0]:
                best = trial, theta.clone(), slope, objective.state()
        else:
            theta.copy_(best[1])
            gradient = best[2]
            for group in optimiser.param_groups:
                group["lr"] /= 2
        report(step, best[0])
    objective.restore(best[3])


def lbfgs(objective: Objective, steps: int, report: Report, draw: int = 0) -> None:
    """L-BFGS with bounds on one fixed set of probes, so that the loss is a function of θ.

    Where the loss is not finite its line search is told a high one and shortens the step.
    """
    bounds = objective.parameters
    start = bounds.clip(bounds.get())
    best: list[tuple[float, State]] = []
    last = np.zeros_like(start)
    done = 0

    def value(theta: Vector) -> tuple[float, Vector]:
        nonlocal last
        loss, gradient = objective(theta, draw)
        if not (np.isfinite(loss) and np.isfinite(gradient).all()):
            return (best[0][0] if best else 0.0) + 10.0, last
        if not best or loss < best[0][0]:
            best[:] = [(loss, objective.state())]
        last = gradient
        return loss, gradient

    def progress(_: object) -> None:
        nonlocal done
        done += 1
        report(done, best[0][0])

    minimize(
        value,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(bounds.lower, bounds.upper, strict=True)),
        callback=progress,
        options={"maxiter": steps, "maxfun": TRIALS * steps, "maxls": 10},
    )
    if not best:
        raise ValueError(NO_START)
    objective.restore(best[0][1])
