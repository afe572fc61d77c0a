"""A model back from its file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from megagp.estimators import SAVED_SETTINGS, GPRegressor
from megagp.kernels import Kernel
from megagp.posterior import unpack
from megagp.storage import PathLike, StorageError, read, require, require_tensor
from megagp.whitening import Whitening


def load(path: PathLike, kernels: Mapping[str, type[Kernel]] | None = None) -> GPRegressor:
    """The model that `GPRegressor.save` wrote; nothing in the file is executed.

    kernels: your own kernel classes by name, if the model has one.
    """
    header, tensors = read(path)
    try:
        return _rebuilt(header, tensors, kernels)
    except StorageError:
        raise
    except (ValueError, TypeError, KeyError) as error:
        raise StorageError(
            f"{path}: expected a model, got one that contradicts itself: {error}"
        ) from error


def _rebuilt(
    header: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    kernels: Mapping[str, type[Kernel]] | None,
) -> GPRegressor:
    if require(header, "model", str) != "GPRegressor":
        raise StorageError(f"model: expected 'GPRegressor', got {header['model']!r}")
    settings = require(header, "settings", dict)
    unknown = set(settings) - set(SAVED_SETTINGS)
    if unknown:
        raise StorageError(f"settings: expected those of GPRegressor, got {sorted(unknown)}")
    posterior = unpack(require(header, "posterior", dict), tensors, kernels)
    d, p = posterior.X.shape[1], posterior.weights.shape[1]
    model = GPRegressor(
        kernel=posterior.kernel.copy(),
        random_state=require(header, "random_state", int, type(None)),
        **settings,
    )
    model._check_settings()
    model.posterior_ = posterior
    model.kernel_ = posterior.kernel
    model.noise_variance_ = float(require(header, "noise_variance", float))
    model.log_marginal_likelihood_ = float(require(header, "log_marginal_likelihood", float))
    model.diagnostics_ = require(header, "diagnostics", dict)
    model.extra_ = require(header, "extra", dict)
    model.n_samples_, model.n_features_in_ = len(posterior.X), d
    phases = model.diagnostics_.get("phases", [])
    model.n_iter_ = max(1, sum(int(phase["evaluations"]) for phase in phases))
    names = require(header, "feature_names", list, type(None))
    if names is not None:
        if len(names) != d or not all(isinstance(name, str) for name in names):
            raise StorageError(f"feature_names: expected {d} names, got {len(names)}")
        model.feature_names_in_ = np.array(names, dtype=object)
    model._one_output = require(header, "one_output", bool)
    if model._one_output and p != 1:
        raise StorageError(f"weights: expected one column, got {p}")
    model._x_whitening = Whitening(
        require_tensor(tensors, "x_centre", d), require_tensor(tensors, "x_scale", d)
    )
    model._y_whitening = Whitening(
        require_tensor(tensors, "y_centre", p), require_tensor(tensors, "y_scale", p)
    )
    return model
