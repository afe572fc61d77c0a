"""Rows with the same inputs as one observation: the mean of theirs, with less noise.

Rows i of one place have y_i ~ N(f, σ² s_i). With w_i = 1 / s_i, W = Σ w_i and ȳ = Σ w_i y_i / W,

Π_i N(y_i | f, σ² s_i) = N(ȳ | f, σ² / W) exp(-½ ((r - 1) log 2πσ² + Σ log s_i + log W + q / σ²))

for r rows, q = Σ w_i (y_i - ȳ)². So n places tell as much of f as all rows do, exactly, and the
likelihood of the rows follows from that of the places (Binois et al. 2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from megagp.equal_rows import distinct


@dataclass(frozen=True)
class Replicates:
    """What the rows of n places say beyond their means; n each.

    further: r - 1 for each of p outputs. logs: Σ log s_i + log W, p times. squares: q, of all
    outputs.
    """

    further: Tensor
    logs: Tensor
    squares: Tensor

    @property
    def count(self) -> int:
        """Observations that are not among the means."""
        return round(float(self.further.sum()))

    def at(self, places: Tensor | slice) -> Replicates:
        return Replicates(self.further[places], self.logs[places], self.squares[places])

    def scaled(self, factor: Tensor) -> Replicates:
        """With noise variances multiplied by n factors."""
        logs = self.logs + self.further * factor.log()
        return Replicates(self.further, logs, self.squares / factor)

    def log_density(self, noise_variance: float) -> tuple[float, float]:
        """Of the rows given the means, and its derivative by log σ²."""
        further, misfit = float(self.further.sum()), float(self.squares.sum()) / noise_variance
        constant = further * math.log(2 * math.pi * noise_variance) + float(self.logs.sum())
        return -0.5 * (constant + misfit), -0.5 * (further - misfit)


class Places(NamedTuple):
    """N rows at n places.

    first: the first row of each place, n, increasing. place: of each row, N. Y: n x p means.
    noise_scale: n, 1 / W. replicates: None if every row has a place of its own.
    """

    first: Tensor
    place: Tensor
    Y: Tensor
    noise_scale: Tensor
    replicates: Replicates | None

    def of(self, X: Tensor) -> Tensor:
        """The places among the rows of X, n x d; X itself where all are."""
        return X if self.replicates is None else X[self.first]


def places(X: Tensor, Y: Tensor, noise_scale: Tensor) -> Places:
    """X: N x d; Y: N x p; noise_scale: N, the s_i. Cost O(N (d + p)) and a sort of N numbers."""
    first, place = distinct(X)
    n, p = len(first), Y.shape[1]
    if n == len(X):
        return Places(first, place, Y, noise_scale, None)

    def summed(values: Tensor) -> Tensor:
        return torch.zeros(n, *values.shape[1:], dtype=torch.float64).index_add_(0, place, values)

    weight = 1 / noise_scale
    W, rows = summed(weight), summed(torch.ones_like(weight))
    # About the first row's: a place whose rows agree then has just that, and no squares.
    start = Y[first]
    mean = start + summed(weight[:, None] * (Y - start[place])) / W[:, None]
    squares = summed(weight * (Y - mean[place]).square().sum(1))
    logs = summed(noise_scale.log()) + W.log()
    return Places(first, place, mean, 1 / W, Replicates(p * (rows - 1), p * logs, squares))
