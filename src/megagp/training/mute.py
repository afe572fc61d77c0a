"""Inputs that a search has lost sight of, and the way back.

θ holds log ℓ for each input. By s = 1 / ℓ² the loss has ∂L/∂log ℓ = -2 s ∂L/∂s, which vanishes as
ℓ grows whatever s is worth: an input that 700 points had no use for, and whose ℓ ran off to
thousands, stays mute on 10,000 points that have. ∂L/∂s does not vanish, and is as well known as
the gradient.
"""

from __future__ import annotations

import numpy as np

from megagp.training.parameters import Parameters, Vector

# An input is mute below 1 / d times this share of the squared distance between points: raised to
# that, all d together change a distance by half a percent, and log ℓ has a derivative again.
SHARE = 0.01
# Those are heard that promise at least this share of what the most promising one does: where there
# are hundreds, the noise of ∂L/∂s promises a little for half of the useless ones.
AMONG = 0.1


def mute(parameters: Parameters, theta: Vector, spread: Vector) -> Vector:
    """What log ℓ is too large by for an input to be heard; 0 where it is heard, or is no log ℓ.

    spread: the variance of each input.
    """
    excess = np.zeros(len(theta))
    for block, columns in parameters.per_input(len(spread)):
        s = np.exp(-2 * theta[block]) * spread[columns]
        least, some = SHARE / len(s) * s.sum(), s > 0
        excess[block][some] = 0.5 * np.log(least / s[some]).clip(min=0.0)
    return excess


def heard(
    parameters: Parameters, theta: Vector, gradient: Vector, spread: Vector
) -> tuple[Vector, float]:
    """θ with mute inputs made heard, and how much lower the loss should be, to first order in s.

    Those alone for which ∂L/∂s says so, and not much less so than for another.
    """
    excess = mute(parameters, theta, spread)
    trial = parameters.clip(np.where(gradient > 0, theta - excess, theta))
    promised = np.where(excess > 0, 0.5 * gradient * np.expm1(2 * (theta - trial)), 0.0)
    best = (promised > 0) & (promised >= AMONG * promised.max(initial=0.0))
    return np.where(best, trial, theta), float(promised[best].sum())
