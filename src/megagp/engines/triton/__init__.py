"""Fused products and gradients on CUDA devices, in Triton.

engine   the verbs of an engine: features, slots, waves of panel pairs
pairs    which panel pairs are visited, and the bound on what is skipped
kernels  what runs on the device; imported when it is needed, for Triton is optional
"""

from megagp.engines.triton.engine import TritonEngine

__all__ = ["TritonEngine"]
