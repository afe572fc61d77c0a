"""The two bounds as dense float64, written from the papers; differentiable by torch autograd."""

import math

import torch


def square(kernel, Z, share):
    K = kernel.evaluate(Z, Z)
    return K + share * kernel.diagonal(Z).mean() * torch.eye(len(Z), dtype=K.dtype)


def collapsed(kernel, noise, X, Y, H, Z, share):
    """log N(Y; H β, Q + σ²I) - tr(K - Q) / 2σ², Q = K_nm K_mm⁻¹ K_mn (Titsias 2009, eq. 9)."""
    n, p = Y.shape
    cross = kernel.evaluate(Z, X)
    Q = cross.T @ torch.linalg.solve(square(kernel, Z, share), cross)
    Q_hat = Q + noise * torch.eye(n, dtype=Q.dtype)
    inverse = torch.linalg.inv(Q_hat)
    beta = torch.linalg.lstsq(H.T @ inverse @ H, H.T @ inverse @ Y).solution
    e = Y - H @ beta
    likelihood = -0.5 * (
        (e * (inverse @ e)).sum() + p * torch.logdet(Q_hat) + n * p * math.log(2 * math.pi)
    )
    return likelihood - p * (kernel.diagonal(X).sum() - Q.trace()) / (2 * noise)


def stochastic(kernel, noise, X, errors, Z, mu, root, n, share):
    """Expected log likelihood of a batch, scaled to n rows, minus KL(q ‖ prior), u = L v."""
    b, p = errors.shape
    L = torch.linalg.cholesky(square(kernel, Z, share))
    A = torch.linalg.inv(L) @ kernel.evaluate(Z, X)
    S = root @ root.T
    variance = kernel.diagonal(X) - (A * A).sum(0) + (A * (S @ A)).sum(0)
    squares = (errors - A.T @ mu).square().sum() + p * variance.sum()
    fit = -0.5 * (b * p * torch.log(2 * math.pi * noise) + squares / noise)
    divergence = 0.5 * (p * (S.trace() - len(Z) - torch.logdet(S)) + mu.square().sum())
    return n / b * fit - divergence
