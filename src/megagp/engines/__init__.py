"""How K(X, Z) V, a block of K and the gradient contraction are computed.

base      the contract: an Engine prepares points and a kernel; what it prepared has the verbs
tiles     plain torch: any device, any kernel; the reference
native    fused SIMD on CPU cores
cached    K kept in memory, where a budget allows it
ordering  neighbours in space as neighbours in memory
"""

from megagp.engines.base import WHOLE, Engine, Gradient, Prepared, Share, Statistics, Support
from megagp.engines.cached import Cached
from megagp.engines.native import NativeEngine, instruction_sets
from megagp.engines.tiles import TilesEngine

__all__ = [
    "WHOLE",
    "Cached",
    "Engine",
    "Gradient",
    "NativeEngine",
    "Prepared",
    "Share",
    "Statistics",
    "Support",
    "TilesEngine",
    "instruction_sets",
]
