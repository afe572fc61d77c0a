"""Exact Gaussian-process regression for data that has outgrown Cholesky."""

import os
from typing import TYPE_CHECKING

# torch's idle threads otherwise spin on the cores that ours need, which hurts most on a busy
# machine. But where one small operation follows another, going to sleep at once costs five times
# what they take: some 10 microseconds of waiting bridge that (GNU's runtime, which torch brings).
# It counts if torch is not loaded yet, and a value that is set stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "5000")

__all__ = [
    "Comparison",
    "GPRegressor",
    "KernelOperator",
    "SGPRegressor",
    "SVGPRegressor",
    "compare",
    "datasets",
    "distributed",
    "engines",
    "kernels",
    "load",
]

if TYPE_CHECKING:
    from megagp import datasets, distributed, engines, kernels
    from megagp.comparison import Comparison, compare
    from megagp.estimators import GPRegressor, SGPRegressor, SVGPRegressor
    from megagp.loading import load
    from megagp.operator import KernelOperator
else:
    # Imported when first asked for: torch and scikit-learn take seconds, which `megagp --help`
    # need not wait for. Type checkers do not see this, and so still find misspelt names.
    import importlib

    _HOMES = {
        "Comparison": "comparison",
        "GPRegressor": "estimators",
        "KernelOperator": "operator",
        "SGPRegressor": "estimators",
        "SVGPRegressor": "estimators",
        "compare": "comparison",
        "load": "loading",
    }

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'megagp' has no attribute {name!r}")
        home = importlib.import_module(f"megagp.{_HOMES.get(name, name)}")
        return getattr(home, name) if name in _HOMES else home

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
