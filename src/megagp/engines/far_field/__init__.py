"""The far field of a kernel in few dimensions, in O(n): a fast multipole method.

polynomials  a kernel between two cubes as sum of T_b(u) M[b, c] T_c(w)
tables       M for every offset between cells, with its error, as few polynomials as will do
field        a kernel and its points, ready to multiply

The product itself is native/far_driver.cpp.
"""

from megagp.engines.far_field.field import (
    MAX_DIMENSIONS,
    MAX_EXTENT,
    FarField,
    FarStatistics,
    direct_cost,
)
from megagp.engines.far_field.tables import Profile

__all__ = [
    "MAX_DIMENSIONS",
    "MAX_EXTENT",
    "FarField",
    "FarStatistics",
    "Profile",
    "direct_cost",
]
