"""θ of a model with inducing points: hyperparameters on a scale of their own, then Z row by row."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from megagp.kernels import Hyperparameter, Kernel
from megagp.training.parameters import Parameters, Vector

POSITIVE = ("log", "softplus")


class InducingParameters:
    """Logarithms of the free hyperparameters and the noise variance; Z (m x d) if it is learned."""

    def __init__(
        self,
        kernel: Kernel,
        noise: Hyperparameter,
        noise_floor: float,
        Z: Tensor,
        learn_inducing: bool,
    ) -> None:
        self.kernel, self.noise, self.Z = kernel, noise, Z.clone()
        self.learn_inducing = learn_inducing
        self._own = Parameters(kernel, noise, noise_floor)
        self._count = len(self._own.get())

    def get(self) -> Vector:
        own = self._own.get()
        return np.concatenate([own, self.Z.reshape(-1).numpy()]) if self.learn_inducing else own

    def set(self, theta: Vector) -> None:
        self._own.set(theta[: self._count])
        if self.learn_inducing:
            self.Z = torch.from_numpy(theta[self._count :].copy()).reshape(self.Z.shape)

    def clip(self, theta: Vector) -> Vector:
        return np.concatenate([self._own.clip(theta[: self._count]), theta[self._count :]])

    def bounds(self) -> list[tuple[float, float]]:
        """Lower and upper bound of each entry of θ."""
        own = list(zip(self._own.lower.tolist(), self._own.upper.tolist(), strict=True))
        return own + [(-np.inf, np.inf)] * (len(self.get()) - self._count)

    def gather(self, by_value: Mapping[str, Tensor], by_Z: Tensor) -> Vector:
        """Derivatives by value and by Z as one vector of derivatives by θ."""
        values = {**self.kernel.values(), "noise_variance": self.noise.value}
        by_log = {name: g * values[name].detach() for name, g in by_value.items()}
        own = self._own.gather(by_log)
        return np.concatenate([own, by_Z.reshape(-1).numpy()]) if self.learn_inducing else own


class SoftplusParameters(InducingParameters):
    """θ with u in place of the logarithm of a hyperparameter v = log(1 + exp u).

    A step of an optimiser then changes small values by a factor, as with logarithms, and large ones
    by a difference. GPyTorch does so, and with it the paper.
    """

    def get(self) -> Vector:
        return self._with_own(super().get(), _raw)

    def set(self, theta: Vector) -> None:
        super().set(self._with_own(theta, _log_value))

    def clip(self, theta: Vector) -> Vector:
        return self._with_own(super().clip(self._with_own(theta, _log_value)), _raw)

    def bounds(self) -> list[tuple[float, float]]:
        logs = super().bounds()
        low, high = (self._with_own(np.array(side), _raw) for side in zip(*logs, strict=True))
        return list(zip(low.tolist(), high.tolist(), strict=True))

    def gather(self, by_value: Mapping[str, Tensor], by_Z: Tensor) -> Vector:
        # d log v / du = (1 - exp(-v)) / v
        v = np.exp(super().get()[: self._count])
        return self._with_own(super().gather(by_value, by_Z), lambda g: g * -np.expm1(-v) / v)

    def _with_own(self, theta: Vector, change: Callable[[Vector], Vector]) -> Vector:
        """θ with what belongs to hyperparameters changed."""
        return np.concatenate([change(theta[: self._count]), theta[self._count :]])


def _raw(log_value: Vector) -> Vector:
    """u = log(exp v - 1), as v + log(1 - exp(-v)), which neither over- nor underflows."""
    v = np.exp(log_value)
    return np.asarray(v + np.log(-np.expm1(-v)))


def _log_value(raw: Vector) -> Vector:
    """log log(1 + exp u); where exp u is below roundoff, u."""
    return np.where(raw < -36, raw, np.log(np.logaddexp(0, np.maximum(raw, -36))))
