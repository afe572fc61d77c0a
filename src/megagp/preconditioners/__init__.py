"""Stand-ins for K̂ that are cheap to invert, and how large to make them."""

from megagp.preconditioners.adaptive import AdaptivePreconditioner
from megagp.preconditioners.pivoted_cholesky import PivotedCholesky
from megagp.preconditioners.pivots import greedy_pivots, random_pivots
from megagp.preconditioners.rank import choose_rank

__all__ = [
    "AdaptivePreconditioner",
    "PivotedCholesky",
    "choose_rank",
    "greedy_pivots",
    "random_pivots",
]
