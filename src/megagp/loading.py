"""A model back from its file."""

from __future__ import annotations

from collections.abc import Mapping

from megagp.estimators import GPRegressor, Regressor, SGPRegressor, SVGPRegressor
from megagp.kernels import Kernel
from megagp.storage import PathLike, StorageError, read, require

MODELS: dict[str, type[Regressor]] = {
    kind.__name__: kind for kind in (GPRegressor, SGPRegressor, SVGPRegressor)
}


def load(path: PathLike, kernels: Mapping[str, type[Kernel]] | None = None) -> Regressor:
    """The model that a regressor's `save` wrote; nothing in the file is executed.

    kernels: your own kernel classes by name, if the model has one.
    """
    header, tensors = read(path)
    try:
        name = require(header, "model", str)
        if name not in MODELS:
            raise StorageError(f"model: expected one of {', '.join(MODELS)}, got {name!r}")
        return MODELS[name].restore(header, tensors, kernels)
    except StorageError:
        raise
    except (ValueError, TypeError, KeyError) as error:
        raise StorageError(
            f"{path}: expected a model, got one that contradicts itself: {error}"
        ) from error
