"""How K(X, Z) V, a block of K and the gradient contraction are computed.

base      the contract: an Engine prepares points and a kernel; what it prepared has the verbs
tiles     plain torch: any device, any kernel; the reference
native    fused SIMD on CPU cores
triton    fused on CUDA devices
cached    K kept in memory, where a budget allows it
keeping   when it should be, and the budget
sparse    the core's products of sparse rows, for preconditioners
ordering  neighbours in space as neighbours in memory
choice    which of them runs a case, and why
"""

from megagp.engines.base import WHOLE, Engine, Gradient, Prepared, Share, Statistics, Support
from megagp.engines.cached import Cached
from megagp.engines.choice import choose
from megagp.engines.keeping import keeping_budget
from megagp.engines.native import NativeEngine, instruction_sets
from megagp.engines.sparse import SparseRows
from megagp.engines.tiles import TilesEngine
from megagp.engines.triton import TritonEngine

__all__ = [
    "WHOLE",
    "Cached",
    "Engine",
    "Gradient",
    "NativeEngine",
    "Prepared",
    "Share",
    "SparseRows",
    "Statistics",
    "Support",
    "TilesEngine",
    "TritonEngine",
    "choose",
    "instruction_sets",
    "keeping_budget",
]
