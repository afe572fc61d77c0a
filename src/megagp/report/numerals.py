"""Numbers as people read them."""

from __future__ import annotations

import math

from megagp.report.entries import Number
from megagp.report.paper import DAY, HOUR, MINUTE, Value

NONE = "—"
NOT_FINITE = "not finite"
MINUS = "\u2212"
# Size of a unit, and the least time that is given in it.
UNITS = ((DAY, 2 * DAY, "d"), (HOUR, 2 * HOUR, "h"), (MINUTE, 10 * MINUTE, "min"), (1.0, 1.0, "s"))


def rmse(value: Number | Value | None) -> str:
    """Mean ± sd to three decimals as in the paper, more for means below 0.01."""
    places = 3
    if value is not None and 0 < abs(value.mean) < 0.01:
        places = min(1 - math.floor(math.log10(abs(value.mean))), 9)
    return _fixed(value, places)


def nll(value: Number | Value | None) -> str:
    """Mean ± sd to three decimals."""
    return _fixed(value, 3)


def share(value: Number | None) -> str:
    """A share as a percentage."""
    if value is None:
        return NONE
    return f"{_spread(value, 0.01, 1)} %" if math.isfinite(value.mean) else NOT_FINITE


def duration(value: Number | Value | None) -> str:
    """Mean ± sd with three digits, in the unit that suits the mean."""
    if value is None:
        return NONE
    if not math.isfinite(value.mean):
        return NOT_FINITE
    if value.mean == 0:  # there was nothing to do
        return NONE
    size, unit = next(
        ((size, unit) for size, least, unit in UNITS if value.mean >= least), (1e-3, "ms")
    )
    digits = 1 if unit == "ms" else 2
    places = min(max(0, digits - math.floor(math.log10(value.mean / size))), digits)
    return f"{_spread(value, size, places)} {unit}"


def count(value: Number | None) -> str:
    """A whole number, or one with three digits and a power of ten."""
    if value is None:
        return NONE
    if not math.isfinite(value.mean):
        return NOT_FINITE
    return (
        f"{value.mean:,.0f}"
        if abs(value.mean) < 1e6
        else f"{value.mean:.2e}".replace("e+", "e").replace("e0", "e")
    )


def small(value: Number | None) -> str:
    """Two digits, wherever the point is."""
    if value is None:
        return NONE
    return f"{value.mean:.2g}" if math.isfinite(value.mean) else NOT_FINITE


def memory(value: Number | None) -> str:
    if value is None:
        return NONE
    if not math.isfinite(value.mean):
        return NOT_FINITE
    for size, unit in ((1e9, "GB"), (1e6, "MB")):
        if value.mean >= size:
            return f"{value.mean / size:.3g} {unit}"
    return f"{value.mean / 1e3:.3g} kB"


def plain(value: float) -> str:
    """Without trailing zeros, thousands apart."""
    return f"{value:,.0f}" if value == round(value) else f"{value:,.4g}"


def _fixed(value: Number | Value | None, places: int) -> str:
    if value is None:
        return NONE
    return _spread(value, 1.0, places) if math.isfinite(value.mean) else NOT_FINITE


def _spread(value: Number | Value, size: float, places: int) -> str:
    mean = f"{value.mean / size:,.{places}f}".replace("-", MINUS)
    if value.sd is None or not math.isfinite(value.sd):
        return mean
    return f"{mean} ± {value.sd / size:,.{places}f}"
