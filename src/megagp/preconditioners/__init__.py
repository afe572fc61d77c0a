"""Stand-ins for K̂ that are cheap to invert, and how large to make them."""

from megagp.preconditioners.adaptive import AdaptivePreconditioner, Preconditioner
from megagp.preconditioners.full_scale import FullScale
from megagp.preconditioners.pivoted_cholesky import PivotedCholesky
from megagp.preconditioners.pivots import greedy_pivots, random_pivots
from megagp.preconditioners.predecessors import Predecessors, nearest_predecessors
from megagp.preconditioners.rank import choose_rank

__all__ = [
    "AdaptivePreconditioner",
    "FullScale",
    "PivotedCholesky",
    "Preconditioner",
    "Predecessors",
    "choose_rank",
    "greedy_pivots",
    "nearest_predecessors",
    "random_pivots",
]
