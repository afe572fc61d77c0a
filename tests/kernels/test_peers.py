"""The kernels against scikit-learn's, which share neither code nor authors."""

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import kernels as sk

from megagp import KernelOperator
from megagp.kernels import (
    RBF,
    Constant,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
)

ARD = [0.5, 1.0, 2.0]

# name: d, ours, theirs
PEERS = {
    "matern12": (3, Matern12(0.7, 1.3), 1.3 * sk.Matern(0.7, nu=0.5)),
    "matern32": (3, Matern32(0.7, 1.3), 1.3 * sk.Matern(0.7, nu=1.5)),
    "matern52": (3, Matern52(0.7, 1.3), 1.3 * sk.Matern(0.7, nu=2.5)),
    "matern52-ard": (3, Matern52(ARD), sk.Matern(ARD, nu=2.5)),
    "rbf": (3, RBF(0.7, 1.3), 1.3 * sk.RBF(0.7)),
    "rbf-ard": (3, RBF(ARD), sk.RBF(ARD)),
    "rational-quadratic": (
        3,
        RationalQuadratic(0.7, 1.3, 0.6),
        1.3 * sk.RationalQuadratic(0.7, alpha=0.6),
    ),
    "periodic": (1, Periodic(0.9, 1.3, 2.5), 1.3 * sk.ExpSineSquared(0.9, periodicity=2.5)),
    "linear": (3, Linear(1.0, 1.3), 1.3 * sk.DotProduct(sigma_0=0.0)),
    "linear-offset": (3, Linear() + Constant(0.49), sk.DotProduct(sigma_0=0.7)),
    "constant": (2, Constant(1.7), sk.ConstantKernel(1.7)),
    "sum": (3, RBF(0.7) + 2.0 * Matern32(ARD), sk.RBF(0.7) + 2.0 * sk.Matern(ARD, nu=1.5)),
    "product": (3, RBF(0.7) * Matern32(), sk.RBF(0.7) * sk.Matern(nu=1.5)),
}


def points(n, d, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


@pytest.mark.parametrize("case", PEERS)
def test_the_same_matrix(case):
    d, ours, theirs = PEERS[case]
    X, Z = points(30, d), points(20, d, 1)
    K = ours.evaluate(torch.as_tensor(X), torch.as_tensor(Z))
    np.testing.assert_allclose(K, theirs(X, Z), rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(ours.diagonal(torch.as_tensor(X)), theirs.diag(X), rtol=1e-12)


@pytest.mark.parametrize("case", PEERS)
def test_the_same_products(case):
    d, ours, theirs = PEERS[case]
    X, V = points(300, d), points(300, 2, 2)
    operator = KernelOperator(X, ours, dtype="float64")
    expected = theirs(X) @ V
    atol = 1e-11 * np.abs(expected).max()
    np.testing.assert_allclose(operator.matmul(V), expected, rtol=0, atol=atol)


# name of the hyperparameter in scikit-learn -> ours
NAMES = {"length_scale": "lengthscale", "alpha": "alpha", "periodicity": "period"}


@pytest.mark.parametrize("case", ["matern12", "matern32", "matern52-ard", "rbf-ard", "periodic"])
@pytest.mark.parametrize("engine", ["native", "tiles"])
def test_the_same_gradient(case, engine):
    d, ours, theirs = PEERS[case]
    if isinstance(theirs, sk.Product):
        scale, theirs = theirs.k1.constant_value, theirs.k2
    else:
        scale = 1.0
    X, U, W = points(40, d), points(40, 2, 1), points(40, 2, 2)
    _, by_log = theirs(X, eval_gradient=True)
    found = KernelOperator(X, ours, engine=engine, dtype="float64").gradient(U, W)
    # Theirs are by the logarithm, in one array in the order of their hyperparameters.
    column = 0
    for h in theirs.hyperparameters:
        ours_by_log = (found[NAMES[h.name]] * ours[NAMES[h.name]]).reshape(-1)
        for value in ours_by_log:
            expected = scale * np.sum(U @ W.T * by_log[:, :, column])
            assert value.item() == pytest.approx(expected, rel=1e-6, abs=1e-8)
            column += 1
    assert column == by_log.shape[2]
