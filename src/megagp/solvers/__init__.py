"""How K̂ x = b is solved; every solve returns its evidence."""

from megagp.solvers.cholesky import Cholesky
from megagp.solvers.pcg import PATIENCE, Callback, Product, Saver, pcg
from megagp.solvers.refinement import solve
from megagp.solvers.result import Coefficients, ConvergenceWarning, SolveResult, Status

__all__ = [
    "PATIENCE",
    "Callback",
    "Cholesky",
    "Coefficients",
    "ConvergenceWarning",
    "Product",
    "Saver",
    "SolveResult",
    "Status",
    "pcg",
    "solve",
]
