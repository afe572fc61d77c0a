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


def heard(
    parameters: Parameters, theta: Vector, gradient: Vector, spread: Vector
) -> tuple[Vector, float]:
    """θ with mute inputs made heard, and how much lower the loss should be, to first order in s.

    Those alone for which ∂L/∂s says so. spread: the variance of each input.
    """
    found, promised = theta.copy(), 0.0
    for block in parameters.per_input():
        size = block.stop - block.start
        s = np.exp(-2 * theta[block]) * (spread if len(spread) == size else np.ones(size))
        least = SHARE * s.sum() / size
        mute = (s > 0) & (s < least) & (gradient[block] > 0)
        found[block][mute] += 0.5 * np.log(s[mute] / least)
        promised += float((0.5 * gradient[block][mute] * (least / s[mute] - 1)).sum())
    return parameters.clip(found), promised
