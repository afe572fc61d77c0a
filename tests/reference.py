"""Dense float64 NumPy: what every engine must reproduce, written to be read.

The formulas here do not share a line with the package; only names and values of
hyperparameters are read from its kernels.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from megagp.kernels import (
    RBF,
    Constant,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
)

Array = NDArray[np.float64]


def matrix(kernel: Kernel, X: Array, Z: Array) -> Array:
    """K[i, j] = k(X[i], Z[j])."""
    kind = type(kernel).__name__
    if kind == "Sum":
        return sum(matrix(part, X, Z) for part in kernel.parts)
    if kind == "Product":
        return np.prod([matrix(part, X, Z) for part in kernel.parts], axis=0)
    if kernel.active_dims is not None:
        X, Z = X[:, kernel.active_dims], Z[:, kernel.active_dims]
    return FORMULAS[kind](X[:, None, :], Z[None, :, :], values(kernel))


# x is n x 1 x d and z is 1 x m x d, so that x - z holds every pair of points.
FORMULAS: dict[str, Callable[..., Array]] = {
    "Constant": lambda x, z, p: p["outputscale"] * np.ones(np.broadcast(x, z).shape[:2]),
    "Linear": lambda x, z, p: p["outputscale"] * np.sum(x * z / p["lengthscale"] ** 2, axis=2),
    "Matern12": lambda x, z, p: p["outputscale"] * np.exp(-distance(x, z, p)),
    "Matern32": lambda x, z, p: p["outputscale"] * matern32(np.sqrt(3) * distance(x, z, p)),
    "Matern52": lambda x, z, p: p["outputscale"] * matern52(np.sqrt(5) * distance(x, z, p)),
    "Periodic": lambda x, z, p: (
        p["outputscale"]
        * np.exp(
            -2 * np.sum(np.sin(np.pi * (x - z) / p["period"]) ** 2 / p["lengthscale"] ** 2, axis=2)
        )
    ),
    "RBF": lambda x, z, p: p["outputscale"] * np.exp(-0.5 * distance(x, z, p) ** 2),
    "RationalQuadratic": lambda x, z, p: (
        p["outputscale"] * (1 + distance(x, z, p) ** 2 / (2 * p["alpha"])) ** -p["alpha"]
    ),
}


def distance(x: Array, z: Array, p: dict[str, Array]) -> Array:
    return np.sqrt(np.sum(((x - z) / p["lengthscale"]) ** 2, axis=2))


def matern32(s: Array) -> Array:
    return (1 + s) * np.exp(-s)


def matern52(s: Array) -> Array:
    return (1 + s + s**2 / 3) * np.exp(-s)


def values(kernel: Kernel) -> dict[str, Array]:
    return {name: np.asarray(value.detach()) for name, value in kernel.values().items()}


def objective(kernel: Kernel, X: Array, Z: Array, U: Array, W: Array) -> float:
    """sum(U * (K @ W)), whose derivatives engines compute."""
    return float(np.sum(U * (matrix(kernel, X, Z) @ W)))


def hyperparameter_gradient(
    kernel: Kernel, X: Array, Z: Array, U: Array, W: Array, step: float = 1e-5
) -> dict[str, Array]:
    """Derivatives of the objective by central differences, for every unfrozen value."""
    gradient = {}
    for name, h in kernel.hyperparameters().items():
        if h.frozen:
            continue
        value = values(kernel)[name]
        gradient[name] = np.zeros_like(value)
        for i in np.ndindex(value.shape):
            up, down = value.copy(), value.copy()
            up[i], down[i] = value[i] * (1 + step), value[i] * (1 - step)
            rise = at(kernel, name, up, X, Z, U, W) - at(kernel, name, down, X, Z, U, W)
            gradient[name][i] = rise / (2 * step * value[i])
    return gradient


def at(kernel: Kernel, name: str, value: Array, X: Array, Z: Array, U: Array, W: Array) -> float:
    """The objective with one hyperparameter changed."""
    changed = kernel.copy()
    changed[name] = value
    return objective(changed, X, Z, U, W)


def input_gradient(f: Callable[[Array], float], X: Array, step: float = 1e-5) -> Array:
    """df / dX by central differences."""
    gradient = np.zeros_like(X)
    for i in np.ndindex(X.shape):
        up, down = X.copy(), X.copy()
        up[i] += step
        down[i] -= step
        gradient[i] = (f(up) - f(down)) / (2 * step)
    return gradient


def covariance(kernel: Kernel, noise: Array, X: Array) -> Array:
    """K̂; noise: the variance of each observation's, or the covariance of all."""
    return matrix(kernel, X, X) + (noise if noise.ndim == 2 else np.diag(noise))


def log_likelihood(kernel: Kernel, noise: Array, X: Array, Y: Array, H: Array) -> float:
    """log N(Y; H β, K + diag(noise)), summed over the columns of Y, at the β that maximises it.

    β = (Hᵀ K̂⁻¹ H)⁻¹ Hᵀ K̂⁻¹ Y, a least-squares problem after both are whitened by C⁻¹.
    """
    C = np.linalg.cholesky(covariance(kernel, noise, X))
    white_Y, white_H = np.linalg.solve(C, Y), np.linalg.solve(C, H)
    errors = white_Y - white_H @ trend(kernel, noise, X, Y, H)
    log_determinant = 2 * np.sum(np.log(np.diagonal(C)))
    n, p = Y.shape
    return float(
        -0.5 * np.sum(errors**2) - 0.5 * p * log_determinant - 0.5 * n * p * np.log(2 * np.pi)
    )


def trend(kernel: Kernel, noise: Array, X: Array, Y: Array, H: Array) -> Array:
    """β by generalised least squares; the shortest one where columns of H are dependent."""
    C = np.linalg.cholesky(covariance(kernel, noise, X))
    return np.linalg.lstsq(np.linalg.solve(C, H), np.linalg.solve(C, Y), rcond=1e-10)[0]


def likelihood_gradient(
    kernel: Kernel, noise: Array, X: Array, Y: Array, H: Array, step: float = 1e-5
) -> dict[str, Array]:
    """Derivatives of log_likelihood by logarithms, by central differences.

    "noise_variance" is the derivative by a factor common to all of `noise`.
    """
    gradient = {}
    for name, value in values(kernel).items():
        if kernel.hyperparameters()[name].frozen:
            continue
        gradient[name] = np.zeros_like(value)
        for i in np.ndindex(value.shape):
            rise = 0.0
            for sign in (1, -1):
                changed, moved = kernel.copy(), value.copy()
                moved[i] = value[i] * np.exp(sign * step)
                changed[name] = moved
                rise += sign * log_likelihood(changed, noise, X, Y, H)
            gradient[name][i] = rise / (2 * step)
    up, down = (log_likelihood(kernel, noise * np.exp(s * step), X, Y, H) for s in (1, -1))
    gradient["noise_variance"] = np.array((up - down) / (2 * step))
    return gradient


def kernel_cases(d: int) -> dict[str, Kernel]:
    """One kernel of each kind and some compositions, for points with d columns."""
    ard = np.linspace(0.6, 1.4, d)
    last = [d - 1]
    return {
        "constant": Constant(1.7),
        "linear": Linear(1.3, 0.8),
        "linear-ard": Linear(ard, 0.8),
        "matern12": Matern12(0.7, 1.3),
        "matern32": Matern32(0.7, 1.3),
        "matern32-ard": Matern32(ard, 1.3),
        "matern32-active": Matern32([0.9], 1.3, active_dims=last),
        "matern52": Matern52(0.7, 1.3),
        "periodic": Periodic(0.9, 1.3, 2.5),
        "periodic-ard": Periodic(ard, 1.3, 2.5),
        "rbf": RBF(0.7, 1.3),
        "rbf-ard": RBF(ard, 1.3),
        "rational-quadratic": RationalQuadratic(0.7, 1.3, 0.6),
        "sum": Matern12(0.7) + RBF(ard, 0.4),
        "product": Matern32(1.1) * Periodic(0.9, period=2.5, active_dims=last),
        "nested": 0.5 * (Matern52(ard) + Linear(1.2, 0.3)) * RBF(2.0, active_dims=last) + 0.1,
    }
