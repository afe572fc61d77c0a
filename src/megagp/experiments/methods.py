"""What is compared: exact GPs, the paper's approximations, and gradient boosting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from megagp.datasets import Split
from megagp.datasets.splits import Array
from megagp.estimators import GPRegressor, Regressor, SGPRegressor, SVGPRegressor
from megagp.estimators.base import PAPER_START
from megagp.experiments.run import METHODS
from megagp.experiments.suites import ADAM
from megagp.kernels import Kernel, Matern32
from megagp.planning import partitions
from megagp.training import Listener

# The paper keeps the noise of this set above 0.1, "to regularize".
PAPER_FLOORS = {"houseelectric": 0.1}
# Trees at most, and how many may pass without a gain on the validation part.
TREES, PATIENCE = 10_000, 100

Predict: TypeAlias = Callable[[Array], tuple[Array, Array]]


@dataclass(frozen=True)
class Fitted:
    """What predicts (means and standard deviations), and facts that the record takes over.

    precompute: seconds of the fit that prepared predictions. model: a regressor, if it is one.
    """

    predict: Predict
    precompute: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    model: Regressor | None = None


def fit(
    method: str,
    dataset: str,
    data: Split,
    seed: int,
    settings: Mapping[str, Any],
    on_step: Listener | None = None,
) -> Fitted:
    """Train the method on the training part; only boosting looks at the validation part."""
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    if method == "lightgbm":
        return _boosting(data, seed, settings)
    model = regressor(method, dataset, data.X_train.shape[1], seed, settings)
    if on_step is not None and isinstance(model, GPRegressor):
        model.set_params(on_step=on_step)
    model.fit(data.X_train, data.y_train)
    precompute = model.diagnostics_.get("precompute", {})
    return Fitted(
        lambda X: model.predict(X, return_std=True),  # type: ignore[arg-type,return-value]
        precompute.get("seconds"),
        _facts(model, len(data.X_train)),
        model,
    )


def regressor(
    method: str, dataset: str, d: int, seed: int, settings: Mapping[str, Any]
) -> GPRegressor | SGPRegressor | SVGPRegressor:
    """The estimator of a method, with these settings on top of its own."""
    given = {"random_state": seed, **settings}
    if method == "exact":
        return GPRegressor(**given)
    if method == "exact-best":
        return GPRegressor(**{"quality": "best", **given})
    if method == "exact-adam":
        return GPRegressor(**{**ADAM, **given})
    own: dict[str, Any] = {"kernel": _paper_kernel(d, ard=bool(given.get("ard", True)))}
    if method == "exact-paper":
        if dataset in PAPER_FLOORS:
            own["noise_floor"] = PAPER_FLOORS[dataset]
        return GPRegressor.paper(**{**own, **given})
    return (SGPRegressor if method == "sgpr" else SVGPRegressor).paper(**{**own, **given})


def _paper_kernel(d: int, ard: bool) -> Kernel:
    return Matern32([PAPER_START] * d if ard else PAPER_START, PAPER_START)


def _facts(model: Regressor, n: int) -> dict[str, Any]:
    found: dict[str, Any] = {"hyperparameters": _hyperparameters(model)}
    if isinstance(model, GPRegressor):
        last = model.diagnostics_["precompute"]
        legs = [*model.diagnostics_["phases"], last]
        found["partitions"] = partitions(n)
        found["kernel_evaluations"] = sum(leg["kernel_evaluations"] for leg in legs)
        found["residuals"] = last["history"]
    return found


def _hyperparameters(model: Regressor) -> dict[str, Any]:
    kernel = model.kernel_
    found: dict[str, Any] = {"noise_variance": model.noise_variance_}
    if isinstance(model, GPRegressor):
        found |= {"inputs": model.inputs_, "noise_model": model.noise_model_}
        found["calibrated"] = model.calibration_
    for name in ("outputscale", "lengthscale"):
        value = getattr(kernel, name, None)
        found[name] = None if value is None else value.detach().tolist()
    if isinstance(found["lengthscale"], float):
        found["lengthscale"] = [found["lengthscale"]]
    return found


def _boosting(data: Split, seed: int, settings: Mapping[str, Any]) -> Fitted:
    """LightGBM, stopped by the validation part, whose residuals give one variance for all."""
    try:
        import lightgbm  # an optional dependency
    except ModuleNotFoundError:
        raise ValueError(
            "lightgbm: expected the package, got none; pip install 'megagp[lightgbm]'"
        ) from None
    given = {"objective": "regression", "learning_rate": 0.05, "verbose": -1, "seed": seed}
    model = lightgbm.train(
        {**given, **settings},
        lightgbm.Dataset(data.X_train, data.y_train),
        num_boost_round=TREES,
        valid_sets=[lightgbm.Dataset(data.X_val, data.y_val)],
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
    )
    residual = data.y_val - model.predict(data.X_val)
    std = math.sqrt(float(np.mean(residual**2)))
    return Fitted(lambda X: (np.asarray(model.predict(X)), np.full(len(X), std)))
