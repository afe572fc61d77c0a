"""What regressors with inducing points share: predictions and files."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from typing_extensions import Self

from megagp.approximate import (
    INDUCING,
    Collapsed,
    InducingParameters,
    InducingPosterior,
    SoftplusParameters,
    choose_inducing,
    pack,
    unpack,
)
from megagp.distributed import Ranks, check_same, spread
from megagp.estimators.base import Array, Regressor, one_of
from megagp.mean import MEANS
from megagp.memory import keep_freed
from megagp.progress import Progress


class InducingRegressor(Regressor):
    """Abstract: a regressor whose posterior rests on m inducing points."""

    posterior_: InducingPosterior
    _pack, _unpack = staticmethod(pack), staticmethod(unpack)
    mean: str
    inducing_points: int
    inducing_start: str
    learn_inducing: bool
    jitter: float

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn hyperparameters and inducing points from X (n x d) and y (n, or n x p)."""
        inputs, outputs = self._training_set(X, y)
        ranks = self._ranks()
        check_same(ranks, X=inputs, y=outputs)
        with self._progress(ranks) as progress:
            self._fit_whitened(inputs, outputs, progress, ranks)
        return self

    def predict(
        self,
        X: ArrayLike,
        return_std: bool = False,
        return_cov: bool = False,
        *,
        latent: bool = False,
    ) -> Array | tuple[Array, Array]:
        """The mean at X (n', or n' x p); with it standard deviations, or the joint covariance.

        The deviations are those of a new observation; with `latent`, of the function itself.
        """
        check_is_fitted(self)
        if return_std and return_cov:
            raise ValueError(
                "return_std, return_cov: expected at most one of them, got both; the covariance "
                "has the variances on its diagonal"
            )
        X_new = self._whitened(X)
        ranks = self._ranks()
        found = spread(self.posterior_.predict, X_new, ranks)
        mean = self._shaped(self._y_whitening.undo(found))
        scale = self._y_whitening.scale
        noise = 0.0 if latent else self.noise_variance_
        if return_std:
            std = (spread(self.posterior_.variance, X_new, ranks) + noise).sqrt()
            return mean, self._shaped(std[:, None] * scale)
        if return_cov:
            C = self.posterior_.covariance(X_new)
            C.diagonal().add_(noise)
            return mean, self._shaped(C[:, :, None] * scale.square())
        return mean

    @property
    def inducing_points_(self) -> Array:
        """Z in the units of X: m x d."""
        check_is_fitted(self)
        found: Array = self._x_whitening.undo(self.posterior_.Z).numpy()
        return found

    @abstractmethod
    def _fit_whitened(self, X: Tensor, Y: Tensor, progress: Progress, ranks: Ranks) -> None:
        """Learn from whitened data, and set what is learned."""

    def _start(
        self, X: Tensor, seed: int, ranks: Ranks, positive: str = "log"
    ) -> InducingParameters:
        """Hyperparameters and inducing points to start from; positive: as in SVGPRegressor."""
        keep_freed()
        kernel = self._start_kernel(X)
        noise = self._start_noise()

        def chosen() -> tuple[dict[str, Any], dict[str, Tensor]]:
            start = self.inducing_start
            return {}, {"Z": choose_inducing(X, kernel, self.inducing_points, start, seed)}

        Z = ranks.from_first(chosen)[1]["Z"]
        kind = SoftplusParameters if positive == "softplus" else InducingParameters
        return kind(kernel, noise, self._least_noise, Z, self.learn_inducing)

    def _keep(self, at: Collapsed, parameters: InducingParameters) -> None:
        """The posterior of the collapsed bound."""
        self.posterior_ = InducingPosterior(
            Z=parameters.Z,
            kernel=parameters.kernel,
            mean=self.mean,
            trend=at.trend,
            weights=at.weights,
            trend_weights=at.trend_weights,
            L=at.factor.L,
            R=at.R,
        )

    def _check_shared(self) -> None:
        self._check_kernel()
        one_of("mean", self.mean, MEANS)
        one_of("inducing_start", self.inducing_start, INDUCING)
        self._check_positive(("noise_variance", "noise_floor", "jitter", "learning_rate"))
        self._check_whole(("inducing_points",))


def jitter_report(asked: float, largest: float, last: float) -> dict[str, float]:
    """Jitter as diagnostics show it: shares of the mean of k(z, z), and what was added at last."""
    return {"asked_share": asked, "largest_share": largest, "added": last}


def seconds_report(name: str, n: int, steps: int, seconds: float, loss: float) -> dict[str, Any]:
    """One phase as diagnostics show it."""
    finite = bool(torch.isfinite(torch.tensor(loss)))
    return {
        "phase": name,
        "points": n,
        "steps": steps,
        "seconds": seconds,
        "loss": loss if finite else None,
    }
