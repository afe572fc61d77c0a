"""Plain torch in tiles: any device, any kernel. The engine the others are checked against."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from megagp.engines.base import WHOLE, Engine, Gradient, Prepared, Share, Statistics, Support
from megagp.kernels import Kernel
from megagp.kernels.composite import Composite

# Sums longer than this many columns are continued in float64: along a whole row,
# float32 sums are what makes a solver diverge.
BLOCK = 256

# Tile-sized temporaries that evaluating a kernel holds at once: distances, the radial
# function's intermediates, the result, and the partial results of a nested sum or product.
TEMPORARIES = 8
# Tiles that a share of the pairs has at least, where n allows it.
TILES_PER_SHARE = 8


class TilesEngine(Engine):
    """Evaluate K in tiles of n' x m' pairs that fit a budget, with the kernel's own formula.

    memory_budget: bytes for one tile's temporaries, of which a product is assumed to
    hold 8 + t / 256 at once and a gradient 16 + d.
    Time O(n m (d + t)), memory O((n + m)(d + t)) + budget.
    """

    name = "tiles"

    def __init__(self, memory_budget: int = 64 * 2**20) -> None:
        if memory_budget < 1:
            raise ValueError(
                f"memory_budget: expected a positive number of bytes, got {memory_budget}; "
                "the default is 64 * 2**20"
            )
        self.memory_budget = memory_budget

    def supports(self, kernel: Kernel, X: Tensor, Z: Tensor | None, dtype: torch.dtype) -> Support:
        if dtype not in (torch.float32, torch.float64):
            return Support(False, f"tiles evaluates in float32 or float64, not {dtype}")
        return Support(True, "tiles runs every kernel on every device")

    def prepare(
        self, kernel: Kernel, X: Tensor, Z: Tensor | None, dtype: torch.dtype, cull_tolerance: float
    ) -> PreparedTiles:
        support = self.supports(kernel, X, Z, dtype)
        if not support.ok:
            raise ValueError(f"dtype: {support.reason}; pass one of the two")
        kernel.check_inputs(X.shape[1])
        return PreparedTiles(kernel, X.detach(), None if Z is None else Z.detach(), dtype, self)


@dataclass(frozen=True)
class Points:
    """The same points in the evaluation dtype, as they are and around a centre: n x d each."""

    plain: Tensor
    centred: Tensor

    def __getitem__(self, rows: slice | Tensor) -> Points:
        return Points(self.plain[rows], self.centred[rows])


class PreparedTiles(Prepared):
    """K = k(X, Z) in tiles; see TilesEngine."""

    def __init__(
        self, kernel: Kernel, X: Tensor, Z: Tensor | None, dtype: torch.dtype, engine: TilesEngine
    ) -> None:
        self._dtype = dtype
        self._symmetric = Z is None
        self._X, self._Z = X, X if Z is None else Z
        self._memory_budget = engine.memory_budget
        with torch.no_grad():
            self._kernel = kernel.on(X.device, torch.float64)
            self._cast_kernel = kernel.on(X.device, dtype)
        self._centre = X.mean(dim=0)
        self._x = self._points(X)
        self._z = self._x if Z is None else self._points(Z)

    @property
    def statistics(self) -> Statistics:
        return Statistics()

    @torch.no_grad()
    def matmul(self, V: Tensor, share: Share = WHOLE) -> Tensor:
        # Per column, so that neither 1e300 nor 1e-300 leaves the range of float32.
        scale = power_of_two(V.abs().amax(dim=0))
        V = (V / scale).to(self._dtype)
        total = torch.zeros(len(self._X), V.shape[1], dtype=torch.float64, device=V.device)
        for rows, cols in self._tiles(TEMPORARIES + V.shape[1] // BLOCK, share):
            K = evaluate(self._cast_kernel, self._x[rows], self._z[cols])
            total[rows] += multiply(K, V[cols])
        return total * scale

    @torch.no_grad()
    def block(self, rows: Tensor, cols: Tensor) -> Tensor:
        # A copy, because a constant kernel returns one number seen n x m times.
        return evaluate(self._cast_kernel, self._x[rows], self._z[cols]).clone()

    @torch.no_grad()
    def diagonal(self) -> Tensor:
        if not self._symmetric:
            raise ValueError(
                "diagonal: expected Z to be X, got a second set of points; prepare with Z=None"
            )
        return self._kernel.diagonal(self._X).clone()

    @torch.enable_grad()
    def gradient(
        self, U: Tensor, W: Tensor, *, inputs: bool = False, share: Share = WHOLE
    ) -> Gradient:
        hyperparameters = self._kernel.hyperparameters().items()
        free = {
            name: h.value.clone().requires_grad_() for name, h in hyperparameters if not h.frozen
        }
        totals = {name: torch.zeros_like(leaf) for name, leaf in free.items()}
        dX = torch.zeros_like(self._X)
        dZ = dX if self._symmetric else torch.zeros_like(self._Z)
        if (free or inputs) and U.shape[1]:
            U, W, scale = self._weights(U, W)
            for rows, cols in self._tiles(2 * TEMPORARIES + self._X.shape[1], share):
                X = self._X[rows].clone().requires_grad_(inputs)
                Z = self._Z[cols].clone().requires_grad_(inputs)
                kernel = self._cast_kernel.bind({k: v.to(self._dtype) for k, v in free.items()})
                K = evaluate(kernel, self._points(X), self._points(Z))
                if not K.requires_grad:  # a frozen constant, asked for its inputs
                    continue
                leaves = [*free.values(), *([X, Z] if inputs else [])]
                sums = [*totals.values(), *([dX[rows], dZ[cols]] if inputs else [])]
                terms = torch.autograd.grad(K, leaves, U[rows] @ W[cols].mT, materialize_grads=True)
                for total, term in zip(sums, terms, strict=True):
                    total += term * scale
        if not inputs:
            return Gradient(totals)
        return Gradient(totals, dX, None if self._symmetric else dZ)

    @torch.no_grad()
    def _weights(self, U: Tensor, W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """U and W in the evaluation dtype and a scale, so that scale * U @ W.T is as it was."""
        per_column = power_of_two(U.abs().amax(dim=0))
        scale = power_of_two((W * per_column).abs().amax())
        return (
            (U / per_column).to(self._dtype),
            (W * per_column / scale).to(self._dtype),
            scale,
        )

    def _points(self, X: Tensor) -> Points:
        # Centred in float64 before the cast: an offset would use up the digits of float32.
        return Points(X.to(self._dtype), (X - self._centre).to(self._dtype))

    def _tiles(self, temporaries: int, share: Share) -> Iterator[tuple[slice, slice]]:
        n, m = len(self._X), len(self._Z)
        pairs = self._memory_budget // (temporaries * self._dtype.itemsize)
        if share.count > 1:  # several tiles for each, or the work of shares would differ much
            pairs = min(pairs, max(BLOCK**2, n * m // (TILES_PER_SHARE * share.count)))
        height, width = tile_shape(n, m, pairs)
        for i, j in itertools.product(range(-(-n // height)), range(-(-m // width))):
            if share.owns(i, j):
                rows, cols = slice(i * height, (i + 1) * height), slice(j * width, (j + 1) * width)
                yield rows, cols


def evaluate(kernel: Kernel, x: Points, z: Points) -> Tensor:
    """K for two sets of points, n x m, each part of a sum or product at its best."""
    if isinstance(kernel, Composite):
        return reduce(kernel.combine, (evaluate(part, x, z) for part in kernel.parts))
    X, Z = (x.centred, z.centred) if kernel.stationary else (x.plain, z.plain)
    K = kernel.evaluate(X, Z)
    if K.shape != (len(X), len(Z)) or K.dtype != X.dtype:
        raise ValueError(
            f"{type(kernel).__name__}.evaluate: expected {len(X)} x {len(Z)} of {X.dtype}, "
            f"got {' x '.join(map(str, K.shape))} of {K.dtype}; keep the rows and dtype of X"
        )
    return K


def multiply(K: Tensor, V: Tensor) -> Tensor:
    """K @ V in float64 from sums over at most 256 columns in the dtype of K."""
    count = K.shape[1] // BLOCK
    whole = count * BLOCK
    blocks = K[:, :whole].reshape(len(K), count, BLOCK).transpose(0, 1)
    sums = blocks @ V[:whole].reshape(count, BLOCK, V.shape[1])
    return sums.sum(dim=0, dtype=torch.float64) + K[:, whole:] @ V[whole:]


def power_of_two(size: Tensor) -> Tensor:
    """2^e at or just below each positive entry: dividing by it loses no digits. Some 2^e for 0."""
    exponent = torch.frexp(size).exponent - 1
    return exponent.clamp(-1022, 1023).double().exp2()


def tile_shape(n: int, m: int, pairs: int) -> tuple[int, int]:
    """Height and width of a tile of at most `pairs` entries, unless they are less than 256.

    About square, since a tile costs (height + width) * d to read; the width is a
    multiple of 256, and takes what few rows leave over.
    """
    padded = math.ceil(m / BLOCK) * BLOCK
    width = max(1, min(math.isqrt(pairs), padded) // BLOCK) * BLOCK
    height = max(1, min(pairs // width, n))
    width = max(1, min(pairs // height, padded) // BLOCK) * BLOCK
    return height, width
