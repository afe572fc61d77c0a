"""θ of a model with inducing points: logarithms of hyperparameters, then Z row by row."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from megagp.kernels import Hyperparameter, Kernel
from megagp.training.parameters import Parameters, Vector


class InducingParameters:
    """The free hyperparameters of a kernel, the noise variance, and Z (m x d) if it is learned."""

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
