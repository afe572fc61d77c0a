"""What all regressors share: the scikit-learn contract around a model of whitened data."""

from __future__ import annotations

import inspect
import math
import numbers
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor
from typing_extensions import Self

from megagp import distributed
from megagp.distributed import ALONE, Ranks
from megagp.kernels import Hyperparameter, Kernel, Matern32
from megagp.normal_scores import NormalScores
from megagp.progress import Progress
from megagp.storage import (
    DAMAGED,
    PathLike,
    StorageError,
    kernel_from_json,
    kernel_to_json,
    require,
    require_tensor,
    write,
)
from megagp.training import start_lengthscale
from megagp.whitening import Whitening

Array = NDArray[np.float64]

# softplus(0): where the paper's implementation starts lengthscale, outputscale and noise.
PAPER_START = math.log(2.0)
# Parameters that a file has by themselves, or that are this process's and not the model's.
UNSAVED = ("kernel", "random_state", "verbose", "distributed", "checkpoint", "on_step")


class Regressor(MultiOutputMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Abstract: validation, whitening, shapes, progress and files.

    A regressor checks its settings, learns from whitened data, and keeps a `posterior_` that
    `_pack` turns into JSON and tensors and `_unpack` makes again.
    """

    # The posterior as JSON and tensors, and back.
    _pack: ClassVar[staticmethod[[Any], tuple[dict[str, Any], dict[str, Tensor]]]]
    _unpack: ClassVar[staticmethod[..., Any]]
    # What becomes of inputs after whitening, if anything.
    _x_scores: NormalScores | None = None
    # How hyperparameters are learned; None for regressors that know one way.
    training: str | None = None
    # Whether ranks share the work; None for regressors that have no such setting.
    distributed: bool | None = None

    kernel: Kernel | None
    ard: bool
    whiten: bool
    noise_variance: float
    noise_floor: float
    random_state: int | np.random.RandomState | None
    verbose: int

    posterior_: Any
    kernel_: Kernel
    noise_variance_: float
    log_marginal_likelihood_: float
    n_samples_: int
    n_iter_: int
    diagnostics_: dict[str, Any]

    @abstractmethod
    def predict(self, X: ArrayLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        """The mean at X (m, or m x p), and with it standard deviations of new observations."""

    @abstractmethod
    def _check_settings(self) -> None:
        """Raise ValueError or TypeError for a setting that makes no sense."""

    @classmethod
    def saved_settings(cls) -> list[str]:
        """The parameters that a file keeps under their names."""
        return [name for name in inspect.signature(cls).parameters if name not in UNSAVED]

    def save(self, path: PathLike, extra: Mapping[str, Any] | None = None) -> None:
        """Write the fitted model to one file; `extra` (plain JSON) travels with it.

        Of several ranks the first one writes.
        """
        check_is_fitted(self)
        if not self._writes():
            return
        header, tensors = self._pack(self.posterior_)
        names = getattr(self, "feature_names_in_", None)
        tensors |= {
            "x_centre": self._x_whitening.centre,
            "x_scale": self._x_whitening.scale,
            "y_centre": self._y_whitening.centre,
            "y_scale": self._y_whitening.scale,
        }
        if self._x_scores is not None:
            tensors |= {"x_knots": self._x_scores.knots, "x_scores": self._x_scores.scores}
        write(
            path,
            {
                "model": type(self).__name__,
                "posterior": header,
                "kernel": None if self.kernel is None else kernel_to_json(self.kernel),
                "settings": {name: getattr(self, name) for name in self.saved_settings()},
                "random_state": self._whole_random_state(),
                "feature_names": None if names is None else [str(name) for name in names],
                "one_output": self._one_output,
                "n_samples": self.n_samples_,
                "n_iter": self.n_iter_,
                "noise_variance": self.noise_variance_,
                "log_marginal_likelihood": self.log_marginal_likelihood_,
                "diagnostics": self.diagnostics_,
                "extra": dict(self.extra_ if extra is None else extra),
            },
            tensors,
        )

    @classmethod
    def restore(
        cls,
        header: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        kernels: Mapping[str, type[Kernel]] | None = None,
    ) -> Self:
        """The model whose file has this header and these tensors."""
        settings = require(header, "settings", dict)
        unknown = set(settings) - set(cls.saved_settings())
        if unknown:
            raise StorageError(f"settings: expected those of {cls.__name__}, got {sorted(unknown)}")
        posterior = cls._unpack(require(header, "posterior", dict), tensors, kernels)
        d, p = posterior.d, posterior.weights.shape[1]
        model = cls(
            kernel=_given_kernel(header, posterior.kernel, kernels),
            random_state=require(header, "random_state", int, type(None)),
            **settings,
        )
        model._check_settings()
        model.posterior_ = posterior
        model.kernel_ = posterior.kernel
        noise = model.noise_variance_ = float(require(header, "noise_variance", float))
        if not 0 < noise < math.inf:
            raise StorageError(
                f"noise_variance: expected a positive number, got {noise}; {DAMAGED}"
            )
        model.log_marginal_likelihood_ = float(require(header, "log_marginal_likelihood", float))
        model.diagnostics_ = require(header, "diagnostics", dict)
        model.extra_ = require(header, "extra", dict)
        model.n_samples_ = require(header, "n_samples", int)
        model.n_iter_ = require(header, "n_iter", int)
        model.n_features_in_ = d
        names = require(header, "feature_names", list, type(None))
        if names is not None:
            if len(names) != d or not all(isinstance(name, str) for name in names):
                raise StorageError(f"feature_names: expected {d} names, got {len(names)}")
            model.feature_names_in_ = np.array(names, dtype=object)
        model._one_output = require(header, "one_output", bool)
        if model._one_output and p != 1:
            raise StorageError(f"weights: expected one column, got {p}")
        model._x_whitening = _whitening(tensors, "x", d)
        model._y_whitening = _whitening(tensors, "y", p)
        if "x_knots" in tensors:
            q = len(tensors["x_knots"])
            knots = require_tensor(tensors, "x_knots", q, d)
            if not q or not bool((knots.diff(dim=0) >= 0).all()):
                raise StorageError("x_knots: expected increasing columns, got others")
            model._x_scores = NormalScores(knots, require_tensor(tensors, "x_scores", q, d))
        return model

    def _training_set(self, X: ArrayLike, y: ArrayLike) -> tuple[Tensor, Tensor]:
        """X (n x d) and Y (n x p), checked and whitened, once the settings are checked too."""
        self._check_settings()
        checked_X, checked_y = validate_data(
            self, X, y, multi_output=True, y_numeric=True, dtype=np.float64, order="C"
        )
        self._one_output = np.ndim(checked_y) == 1
        inputs = torch.from_numpy(np.array(checked_X))
        outputs = torch.from_numpy(np.array(checked_y, dtype=np.float64).reshape(len(inputs), -1))
        if not bool(outputs.isfinite().all()):
            raise ValueError("y: expected finite numbers, got NaN or infinity; drop those rows")
        self._x_whitening = Whitening.of(inputs, identity=not self.whiten)
        self._y_whitening = Whitening.of(outputs, identity=not self.whiten)
        self._x_scores = None
        self.extra_: dict[str, Any] = {}
        return self._x_whitening.apply(inputs), self._y_whitening.apply(outputs)

    def _whitened(self, X: ArrayLike) -> Tensor:
        X = validate_data(self, X, reset=False, dtype=np.float64, order="C")
        whitened = self._x_whitening.apply(torch.from_numpy(np.array(X)))
        return whitened if self._x_scores is None else self._x_scores.apply(whitened)

    def _shaped(self, values: Tensor) -> Array:
        found: Array = values.numpy()
        return found[..., 0] if self._one_output else found

    def _start_kernel(self, X: Tensor) -> Kernel:
        """A copy of the kernel to start from, that fits whitened X (n x d)."""
        d = X.shape[1]
        kernel = self._default_kernel(X) if self.kernel is None else self.kernel.copy()
        kernel.check_inputs(d)
        return kernel

    def _default_kernel(self, X: Tensor) -> Kernel:
        return Matern32(self._start_lengthscales(X))

    def _start_lengthscales(self, X: Tensor) -> Array:
        """One for each input, or one for all."""
        return np.full(X.shape[1] if self.ard else (), start_lengthscale(X))

    @property
    def _least_noise(self) -> float:
        """What the noise variance is at least; without training, one that was given holds."""
        if self.training == "none":
            return min(self.noise_variance, self.noise_floor)
        return self.noise_floor

    def _start_noise(self) -> Hyperparameter:
        return Hyperparameter("noise_variance", max(self.noise_variance, self._least_noise))

    def _ranks(self) -> Ranks:
        """Those that share the work."""
        return distributed.current() if self.distributed else ALONE

    def _writes(self) -> bool:
        """Whether this process is the one that writes files."""
        alone = self.distributed is not None and not self.distributed
        return alone or distributed.is_first()

    def _seed(self, ranks: Ranks = ALONE) -> int:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return int(ranks.agree(torch.tensor(seed)))

    def _whole_random_state(self) -> int | None:
        """The seed, if it is a number, which alone a file can hold."""
        seed = self.random_state
        return int(seed) if isinstance(seed, numbers.Integral) else None

    def _in_units_of_y(self, log_likelihood: float) -> float:
        """The log likelihood of all of Y from that of whitened Y."""
        return log_likelihood - self.n_samples_ * float(self._y_whitening.scale.log().sum())

    @contextmanager
    def _progress(self, ranks: Ranks = ALONE) -> Iterator[Progress]:
        progress = Progress(self.verbose if ranks.first else 0)
        try:
            yield progress
        finally:
            progress.finish()

    def _check_kernel(self) -> None:
        if self.kernel is not None and not isinstance(self.kernel, Kernel):
            raise TypeError(
                f"kernel: expected a megagp kernel or None, got {type(self.kernel).__name__}; "
                "make one with megagp.kernels"
            )

    def _check_positive(self, names: Sequence[str], optional: bool = False) -> None:
        for name in names:
            value = getattr(self, name)
            if value is None and optional:
                continue
            if not (isinstance(value, numbers.Real) and 0 < float(value) < math.inf):
                alternative = " or None" if optional else ""
                raise ValueError(f"{name}: expected a positive number{alternative}, got {value!r}")

    def _check_whole(self, names: Sequence[str], least: int = 1, optional: bool = False) -> None:
        for name in names:
            value = getattr(self, name)
            if value is None and optional:
                continue
            if not (isinstance(value, numbers.Integral) and int(value) >= least):
                alternative = " or None" if optional else ""
                raise ValueError(
                    f"{name}: expected a whole number >= {least}{alternative}, got {value!r}"
                )


def _given_kernel(
    header: Mapping[str, Any], learned: Kernel, kernels: Mapping[str, type[Kernel]] | None
) -> Kernel | None:
    """The kernel that training started from, None for the default."""
    if "kernel" not in header:  # files had the learned one alone
        return learned.copy()
    document = require(header, "kernel", dict, type(None))
    return None if document is None else kernel_from_json(document, kernels)


def _whitening(tensors: Mapping[str, Tensor], name: str, columns: int) -> Whitening:
    """That of inputs, "x", or outputs, "y"."""
    centre = require_tensor(tensors, f"{name}_centre", columns)
    scale = require_tensor(tensors, f"{name}_scale", columns)
    if not bool((centre.isfinite() & scale.isfinite() & (scale > 0)).all()):
        raise StorageError(
            f"{name}_centre, {name}_scale: expected finite numbers, scales positive, got others; "
            f"{DAMAGED}"
        )
    return Whitening(centre, scale)


def one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    """The value, if it is one of those allowed."""
    if value not in allowed:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value
