"""Adam and L-BFGS on θ, that survive steps into nowhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from scipy.optimize import lsq_linear

from megagp.training.adam import Adam
from megagp.training.mute import heard
from megagp.training.objective import Objective
from megagp.training.parameters import Parameters, Vector

# A step after which the loss is worse than the best by this much per observation (nats) is
# taken back. The probes' noise is a fraction of it.
WILD = 0.05
# L-BFGS: pairs remembered; largest change of a logarithm at the first step; trials of a step.
# Largest change at the first step with the memory of another search, at least and at most.
MEMORY = 10
FIRST = 0.5
SHORTENED = 4
SHORTER = 0.1, 0.5  # by what factor, at most and at least
CAUTIOUS, FURTHEST = 0.6, 2.0
FLATTEST = 1e-12  # share of the largest eigenvalue of an inverse Hessian that rounding leaves
IDLE = 2  # steps without a lower loss, that end a search
GAIN = 0.002  # per observation (nats), that is worth a further step
NO_START = (
    "kernel: expected a finite likelihood at the starting hyperparameters, got none; "
    "raise noise_floor, or start from other values"
)

Pair: TypeAlias = tuple[Vector, Vector]  # a step, and the change of the gradient along it
Place: TypeAlias = tuple[Vector, float, Vector]  # θ, the loss there and its gradient
Report: TypeAlias = Callable[[int, float, Vector], None]  # step, least loss so far, its θ


def adam(
    objective: Objective, steps: int, learning_rate: float, report: Report, first_draw: int = 0
) -> None:
    """Adam, with new probes at every step; leaves the hyperparameters at the best θ seen.

    After a step to a loss that is not finite, or worse than the best by WILD, it goes on from
    the best with half the rate.
    """
    bounds = objective.parameters
    theta = torch.from_numpy(bounds.clip(bounds.get()))
    optimiser = Adam([theta], learning_rate)
    loss, gradient = objective(theta.numpy().copy(), None)
    if not (np.isfinite(loss) and np.isfinite(gradient).all()):
        raise ValueError(NO_START) from objective.failure
    best = loss, theta.clone(), gradient, objective.state()
    for step in range(1, steps + 1):
        optimiser.step([torch.from_numpy(gradient)])
        theta.copy_(torch.from_numpy(bounds.clip(theta.numpy())))
        trial, slope = objective(theta.numpy().copy(), first_draw + step)
        if np.isfinite(trial) and np.isfinite(slope).all() and trial < best[0] + WILD:
            gradient = slope
            if trial < best[0]:
                best = trial, theta.clone(), slope, objective.state()
        else:
            theta.copy_(best[1])
            gradient = best[2]
            optimiser.rate /= 2
        report(step, best[0], best[1].numpy())
    objective.restore(best[3])


def lbfgs(
    objective: Objective,
    steps: int,
    report: Report,
    draw: int = 0,
    memory: list[Pair] | None = None,
    further: int = 0,
    trend: float = 0.0,
) -> None:
    """L-BFGS on one fixed set of probes, so that the loss is a function of θ.

    memory: pairs of an earlier search, on a subset say; new ones are added to it.
    further: steps that may follow, as long as each gains GAIN. trend: how far that search has moved
    a hyperparameter, at most.

    Departures from the textbook, and why:

    1. A step is taken if the loss is above the least so far by no more than its noise, which
       comes from few probes and loose solves: a search for curvature conditions would chase that.
    2. It ends when the decrease that its model promises is within the noise (of a further step:
       less than GAIN), when IDLE steps running brought none, or when a step shortened SHORTENED
       times is still not good enough (the memory of another search, or of before inputs were
       woken, is dropped first).
    3. Otherwise no hyperparameter moves by more than a factor e at a step; with the memory of
       another search by no more than CAUTIOUS or `trend` at first, and twice as far after each
       step that gained: what subsets of growing size come to often drifts, by as much from each to
       the next. Where bounds are in the way the step is that to the least of the model within
       them: what clips a step at one leaves the valley that the others were meant to follow.
    4. Inputs that it has lost sight of are looked for at the start, and when it would end
       (mute.py). A step that makes them heard may be longer, and need not gain by itself.
    5. Within a step the preconditioner keeps its pivots; after one that gained it may change, and
       then the loss to compare with is evaluated again.
    """
    bounds = objective.parameters
    theta = bounds.clip(bounds.get())
    loss, gradient = objective(theta, draw)
    if not (np.isfinite(loss) and np.isfinite(gradient).all()):
        raise ValueError(NO_START) from objective.failure
    memory = [] if memory is None else memory
    reach = max(CAUTIOUS, min(trend, FURTHEST)) if memory else 1.0
    best = loss, objective.state(), theta
    idle, woke, done = 0, False, False
    for step in range(1, steps + further + 1):
        here, worth = (theta, loss, gradient), GAIN if step > steps else 0.0
        woken = _wake(objective, here, best[0], draw, worth) if step == 1 else None
        found = woken
        if found is None and not done:
            found = _step(objective, here, best[0], memory, draw, reach, worth)
            if found is None and memory and (step == 1 or woke):
                memory.clear()
                found = _step(objective, here, best[0], memory, draw, reach, worth)
        if found is None and step > 1:
            woken = found = _wake(objective, here, best[0], draw, worth)
        if found is None:
            break
        moved, turned = found[0] - theta, found[2] - gradient
        straight = moved @ turned <= 1e-10 * np.linalg.norm(moved) * np.linalg.norm(turned)
        # A step that wakes inputs is longer than any curvature is good for.
        woke = woken is not None
        if not (woke or straight):
            memory[:] = [*memory[1 - MEMORY :], (moved, turned)]
        gained = loss - found[1]
        theta, loss, gradient = found
        if gained > 0:
            reach = min(1.0, 2 * reach)
        done = not woke and step >= steps and gained < GAIN
        last = done or step == steps + further
        if not last and loss < best[0] and objective.renewed():
            loss, gradient = objective(theta, draw, hold=True)
            best = loss, objective.state(), theta
            idle = 0
        elif loss < best[0]:
            best = loss, objective.state(), theta
            idle = 0
        else:
            idle = 0 if woke else idle + 1
        done = done or idle == IDLE
        report(step, best[0], best[2])
    objective.restore(best[1])


def _step(
    objective: Objective,
    here: Place,
    limit: float,
    memory: list[Pair],
    draw: int,
    reach: float,
    worth: float,
) -> Place | None:
    """Where the longest step that is good enough leads; None if none is worth it.

    limit: what the loss may be, but for noise. worth: the least decrease to take a step for.
    """
    theta, loss, gradient = here
    bounds, noise = objective.parameters, objective.noise_level
    worth = max(worth, noise)
    direction = _direction(bounds, theta, gradient, memory, reach)
    longest = np.abs(direction).max(initial=0.0)
    if longest == 0:
        return None
    size = min(1.0, reach / longest)
    promised = -size * (gradient @ direction)
    for _ in range(SHORTENED):
        if promised < worth:
            return None
        trial = bounds.clip(theta + size * direction)
        value, slope = objective(trial, draw, hold=True)
        finite = bool(np.isfinite(value) and np.isfinite(slope).all())
        if finite and value <= limit + noise:
            return trial, value, slope
        shorter = SHORTER[0]
        if finite:
            moved = trial - theta
            falls, rises = float(gradient @ moved), float(slope @ moved)
            shorter, promised = _least(loss, falls, value, rises)
        size *= shorter
    return None


def _wake(objective: Objective, here: Place, limit: float, draw: int, worth: float) -> Place | None:
    """Where mute inputs are heard again; None if none is worth it."""
    theta, _, gradient = here
    noise = objective.noise_level
    trial, promised = heard(objective.parameters, theta, gradient, objective.spread)
    if promised < max(worth, noise) or np.array_equal(trial, theta):
        return None
    value, slope = objective(trial, draw, hold=True)
    good = np.isfinite(value) and np.isfinite(slope).all() and value <= limit + noise
    return (trial, value, slope) if good else None


def _least(loss: float, slope: float, trial: float, trial_slope: float) -> tuple[float, float]:
    """Where on the way to a trial the loss is least, as a share of it, and how much lower.

    By the cubic through both losses with both slopes; the share within the limits of SHORTER.
    """
    a = slope + trial_slope + 2 * (loss - trial)
    b = 3 * (trial - loss) - 2 * slope - trial_slope
    root = math.sqrt(max(b * b - 3 * a * slope, 0.0))
    # The zero of 3 a u² + 2 b u + slope at which it rises.
    share = min(-slope / (b + root), SHORTER[1]) if b + root > 0 else SHORTER[1]
    return max(share, SHORTER[0]), -share * (slope + share * (b + share * a))


def _direction(
    bounds: Parameters, theta: Vector, gradient: Vector, memory: list[Pair], reach: float
) -> Vector:
    """The step p to the least of gᵀp + ½ pᵀBp, B⁻¹ = H the inverse Hessian of the memory.

    Within the bounds, if it is not so by itself when it is no longer than `reach`. With H = Q W Qᵀ
    and p = T u that is least squares in a box: ½ |W^-½QᵀT u + W^½Qᵀg|².
    """
    largest = np.abs(gradient).max(initial=0.0)
    first = FIRST * reach / largest if largest > 0 else 1.0
    step = -_newton(gradient, memory, first)
    trial = theta + step * min(1.0, reach / max(np.abs(step).max(initial=0.0), 1e-300))
    if np.array_equal(bounds.clip(trial), trial):
        return step
    H = np.column_stack([_newton(e, memory, first) for e in np.eye(len(theta))])
    W, Q = np.linalg.eigh(0.5 * (H + H.T))
    root = np.sqrt(W.clip(min=FLATTEST * W.max()))
    T, lower, upper = bounds.box(theta)
    free = lower < upper
    A, b = Q.T @ T[:, free] / root[:, None], -root * (Q.T @ gradient)
    within = lsq_linear(A, b, (lower[free], upper[free]), method="bvls")
    found: Vector = T[:, free] @ within.x
    return found


def _newton(gradient: Vector, memory: list[Pair], first: float) -> Vector:
    """The inverse Hessian of the memory times the gradient (two-loop recursion).

    first: what it is times the identity, where there is no memory.
    """
    q: Vector = gradient.copy()
    memory = [(moved, turned) for moved, turned in memory if moved @ turned > 0]
    weights = []
    for moved, turned in reversed(memory):
        a = (moved @ q) / (moved @ turned)
        q -= a * turned
        weights.append(a)
    if memory:
        moved, turned = memory[-1]
        q *= (moved @ turned) / (turned @ turned)
    else:
        q *= first
    for (moved, turned), a in zip(memory, reversed(weights), strict=True):
        q += moved * (a - (turned @ q) / (moved @ turned))
    return q
