"""K(X, Z) for a few thousand rows of X at a time, and the derivative of Σ G * K(X, Z).

The gradient verb of an engine takes weights of low rank, U Wᵀ. Here the weight G is dense, and of
rank m; what is cheap is m d operations for each row, against the m² of the bounds that ask for it.
Squared distances are float64, in which they may be taken in product form; what follows from them is
of the type asked for, and sums over rows are float64. K(Z, Z) is float64 always. A bound asks for K
first and for the derivative then: what both need is kept between them while KEPT bytes allow it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from megagp.distributed import Ranks
from megagp.kernels import RBF, Kernel, Matern12, Matern32, Matern52, Stationary, Sum

Formula: TypeAlias = Callable[[Tensor, Tensor | None], None]
# From rows of X and the tile of K for them to the weights G, n' x m as K is, of either precision.
Weight: TypeAlias = Callable[[slice, Tensor], Tensor]

# By its first row, a tile of K and what its derivative needs.
Kept: TypeAlias = "dict[int, tuple[Tensor, list[_Tape]]]"

# Rows of a tile: enough for products with m x m matrices to run at full speed. Fewer, if the tile
# would take more than so many bytes.
ROWS, TILE = 2048, 1 << 25
# Bytes that are kept between K and its derivative.
KEPT = 1 << 28
# Bytes of the strips of float64 in which entries are evaluated: few enough to stay in cache between
# operations, for each of which threads wait for each other, so not too few either.
STRIP = 1 << 22


@dataclass(frozen=True)
class Derivative:
    """Of Σ G * K: by the value of every hyperparameter that is not frozen, and by Z, m x d."""

    hyperparameters: dict[str, Tensor]
    Z: Tensor

    def __add__(self, other: Derivative) -> Derivative:
        names = {n: g + other.hyperparameters.get(n, 0.0) for n, g in self.hyperparameters.items()}
        return Derivative(names, self.Z + other.Z)

    def summed(self, ranks: Ranks) -> Derivative:
        """The sum over ranks."""
        named = self.hyperparameters
        parts = [*named.values(), self.Z]
        flat = ranks.sum(torch.cat([part.reshape(-1) for part in parts]))
        *values, Z = torch.split(flat, [part.numel() for part in parts])
        shaped = {name: v.reshape(named[name].shape) for name, v in zip(named, values, strict=True)}
        return Derivative(shaped, Z.reshape(self.Z.shape))


class Room:
    """Matrices of one type that are used again: of new ones the system clears every page."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        self.dtype = dtype
        self._free: dict[tuple[int, int], list[Tensor]] = {}

    def take(self, rows: int, columns: int) -> Tensor:
        """One with anything in it."""
        free = self._free.get((rows, columns))
        return free.pop() if free else torch.empty(rows, columns, dtype=self.dtype)

    def give(self, matrix: Tensor) -> None:
        """Back: whoever still looks at it may see it change."""
        self._free.setdefault((len(matrix), matrix.shape[1]), []).append(matrix)


class CrossCovariance:
    """K(X, Z) for fixed inducing points Z (m x d) and hyperparameters, tile by tile."""

    def __init__(self, kernel: Kernel, Z: Tensor) -> None:
        self.kernel, self.Z = kernel, Z
        self._terms = [
            _Radial(prefix, part, Z)
            if type(part) in FORMULAS and isinstance(part, Stationary)
            else _Differentiated(prefix, part, Z)
            for prefix, part in _summands(kernel)
        ]
        self._of_Z: Kept = {}

    def over(self, X: Tensor, room: Room | None = None) -> Tiles:
        """K(X, Z) in tiles, and derivatives; room: for what is kept, with the type of K."""
        return Tiles(self, X, Room() if room is None else room)

    def rows(self, n: int) -> Iterator[slice]:
        """Runs of rows that make up n, each worth a tile."""
        rows = max(1, min(ROWS, TILE // (8 * len(self.Z))))
        for start in range(0, n, rows):
            yield slice(start, min(start + rows, n))

    @torch.no_grad()
    def block(self, X: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """K(X, Z), n x m."""
        K = self._terms[0].evaluate(X, dtype)
        for term in self._terms[1:]:
            K += term.evaluate(X, dtype)
        return K

    def square(self) -> Tensor:
        """K(Z, Z), symmetric but for roundoff; its diagonal is that of no rounded distance.

        Not to be changed.
        """
        K = _joined(self.blocks(self.Z, Room(), self._of_Z))
        K.diagonal().copy_(self.kernel.diagonal(self.Z).detach())
        return K

    def square_derivative(self, D: Tensor) -> Derivative:
        """Of Σ D * K(Z, Z) for symmetric D, with Z on both sides."""
        one_side = self.derivative(self.Z, Room(), lambda rows, K: D[rows], self._of_Z)
        return Derivative(one_side.hyperparameters, 2 * one_side.Z)

    def diagonal_derivative(self, X: Tensor, x_weight: float, z_weight: float) -> Derivative:
        """Of x_weight Σ k(x, x) + z_weight Σ k(z, z)."""
        values = _free_values(self.kernel)
        Z = self.Z.detach().clone().requires_grad_()
        with torch.enable_grad():
            kernel = self.kernel.bind(values)
            total = x_weight * kernel.diagonal(X).sum() + z_weight * kernel.diagonal(Z).sum()
        if not total.requires_grad:
            return Derivative({}, torch.zeros_like(Z))
        found = torch.autograd.grad(
            total, [*values.values(), Z], allow_unused=True, materialize_grads=True
        )
        return Derivative(dict(zip(values, found, strict=False)), found[-1])

    def blocks(
        self, X: Tensor, room: Room, kept: Kept, beside: int = 0
    ) -> Iterator[tuple[slice, Tensor]]:
        """Rows of X, and K for them; `kept` is filled for the derivative.

        beside: matrices as large as a tile that the caller keeps with it.
        """
        left = float(KEPT)
        for rows in self.rows(len(X)):
            left -= self._bytes(rows.stop - rows.start, room.dtype, beside)
            if left < 0:
                yield rows, self.block(X[rows], room.dtype)
            else:
                kept[rows.start] = self._forward(X[rows], room)
                yield rows, kept[rows.start][0]

    @torch.no_grad()
    def derivative(self, X: Tensor, room: Room, weight: Weight, kept: Kept) -> Derivative:
        """Of Σ G * K(X, Z) with G = weight(rows, K), held fixed; `kept` is used up."""
        for rows in self.rows(len(X)):
            found = kept.pop(rows.start) if rows.start in kept else self._forward(X[rows], room)
            K, tapes = found
            G = weight(rows, K)
            for term, tape in zip(self._terms, tapes, strict=True):
                term.backward(tape, G)
                for matrix in tape.lent:
                    room.give(matrix)
        total = Derivative({}, torch.zeros_like(self.Z))
        for term in self._terms:
            part = term.collect()
            total = Derivative({**total.hyperparameters, **part.hyperparameters}, total.Z + part.Z)
        return total

    @torch.no_grad()
    def _forward(self, X: Tensor, room: Room) -> tuple[Tensor, list[_Tape]]:
        tapes = [term.forward(X, room) for term in self._terms]
        K = tapes[0].K.detach()
        for tape in tapes[1:]:
            K = K + tape.K.detach()
        return K.to(room.dtype), tapes

    def _bytes(self, rows: int, dtype: torch.dtype, beside: int) -> float:
        """What is kept of so many rows; it is not known of kernels by autograd."""
        if not all(isinstance(term, _Radial) for term in self._terms):
            return math.inf
        more = 1 if len(self._terms) > 1 else 0
        tiles = 2 * len(self._terms) + more + beside
        return float(dtype.itemsize * rows * len(self.Z) * tiles)


class Tiles:
    """K(X, Z) for one X, in tiles of rows: first `blocks`, if at all, then `derivative`."""

    def __init__(self, cross: CrossCovariance, X: Tensor, room: Room) -> None:
        self.cross, self.X, self.room = cross, X, room
        self._kept: Kept = {}
        self._beside: dict[int, Tensor] = {}

    def blocks(self, beside: int = 0) -> Iterator[tuple[slice, Tensor]]:
        """Rows, and K for them, which is not to be changed; `beside` matrices may be kept too."""
        return self.cross.blocks(self.X, self.room, self._kept, beside)

    def keep(self, rows: slice, A: Tensor) -> None:
        """Keep a matrix that was taken from `room` beside the tile of these rows, if it is kept."""
        if rows.start in self._kept:
            self._beside[rows.start] = A
        else:
            self.room.give(A)

    def take(self, rows: slice) -> Tensor | None:
        """What was kept beside the tile of these rows, once."""
        return self._beside.pop(rows.start, None)

    def whole(self) -> Tensor:
        """All tiles as one, n x m, which is not to be changed."""
        return _joined(self.blocks())

    def derivative(self, weight: Weight) -> Derivative:
        """Of Σ G * K(X, Z) with G = weight(rows, K), held fixed."""
        return self.cross.derivative(self.X, self.room, weight, self._kept)


@dataclass(frozen=True)
class _Tape:
    """A summand of K(X, Z), and what else its derivative needs; lent: what goes back to Room."""

    K: Tensor
    saved: tuple[Tensor, ...]
    lent: tuple[Tensor, ...] = ()


class _Term(ABC):
    """Abstract: a summand of the kernel, with the derivatives that have been added up so far."""

    @abstractmethod
    def evaluate(self, X: Tensor, dtype: torch.dtype) -> Tensor:
        """Its part of K(X, Z)."""

    @abstractmethod
    def forward(self, X: Tensor, room: Room) -> _Tape:
        """The same, ready for `backward`."""

    @abstractmethod
    def backward(self, tape: _Tape, G: Tensor) -> None:
        """Add the derivative of Σ G * K; the tape is of no use any more."""

    @abstractmethod
    def collect(self) -> Derivative:
        """What was added up; from here it is nothing again."""


class _Radial(_Term):
    """outputscale ρ(r²), r² = ‖f - g‖², f and g the features of x and z.

    With W = outputscale G * ρ'(r²) and v = Wᵀ 1:
    ∂/∂g_j = 2 (v_j g_j - (Wᵀ f)_j),
    Σ_ij W_ij (f_ic - g_jc)² = Σ_j ((Wᵀ f²)_jc + v_j g_jc² - 2 g_jc (Wᵀ f)_jc).
    Where inputs share a lengthscale, the sum over c is all that is needed, and ‖f‖² stands for f².
    """

    def __init__(self, prefix: str, kernel: Stationary, Z: Tensor) -> None:
        self._prefix, self._kernel, self._shape = prefix, kernel, Z.shape
        self._formula = FORMULAS[type(kernel)]
        with torch.no_grad():
            g = kernel.features(Z)
            self._centre = g.mean(0)
            self._g = g - self._centre
            self._scale = float(kernel.outputscale)
            # r² = [f, ‖f‖², 1] · [-2 g, 1, ‖g‖²]
            squares = self._g.square().sum(1, keepdim=True)
            self._right = torch.cat([-2 * self._g, torch.ones_like(squares), squares], 1).T
        self._clear()

    def evaluate(self, X: Tensor, dtype: torch.dtype) -> Tensor:
        K = torch.empty(len(X), len(self._g), dtype=dtype)
        self._fill(self._features(X), K, None)
        return K

    def forward(self, X: Tensor, room: Room) -> _Tape:
        f = self._features(X)
        K, slope = (room.take(len(X), len(self._g)) for _ in range(2))
        self._fill(f, K, slope)
        return _Tape(K, (f, slope), (K, slope))

    def backward(self, tape: _Tape, G: Tensor) -> None:
        f, slope = tape.saved
        left = torch.cat([f, self._own(f.square()), torch.ones_like(f[:, :1])], 1).to(slope.dtype)
        # [f, f², 1]ᵀ W in one product; the other way round, Wᵀ [f, f², 1], it takes twice as long.
        for rows in _strips(len(f), len(self._g)):
            weights = G[rows].to(slope.dtype)
            self._by_scale += weights.reshape(-1) @ tape.K[rows].reshape(-1)
            self._sums += left[rows].T @ slope[rows].mul_(weights)

    def collect(self) -> Derivative:
        kernel, g = self._kernel, self._g
        d = g.shape[1]
        sums = self._scale * self._sums.T
        Wf, Wff, v = sums[:, :d], sums[:, d:-1], sums[:, -1:]
        by_g = 2 * (v * g - Wf)
        spread = (Wff + self._own(v * g.square() - 2 * g * Wf)).sum(0)
        lengthscale = kernel.lengthscale.detach()
        found = {
            "lengthscale": (-2 * spread / lengthscale).reshape(lengthscale.shape),
            "outputscale": self._by_scale / self._scale,
        }
        dZ = torch.zeros(self._shape, dtype=g.dtype)
        by_z = by_g / lengthscale
        if kernel.active_dims is None:
            dZ += by_z
        else:
            dZ[:, list(kernel.active_dims)] += by_z
        self._clear()
        free = _free_values(kernel)
        return Derivative({self._prefix + n: g for n, g in found.items() if n in free}, dZ)

    def _features(self, X: Tensor) -> Tensor:
        return self._kernel.features(X).detach() - self._centre

    def _fill(self, f: Tensor, K: Tensor, slope: Tensor | None) -> None:
        """The term of K into K, and ρ' into `slope`."""
        squares = f.square().sum(1, keepdim=True)
        left = torch.cat([f, squares, torch.ones_like(squares)], 1)
        for rows in _strips(*K.shape):
            r2 = K[rows]
            if K.dtype == torch.float64:
                torch.mm(left[rows], self._right, out=r2)
            else:
                r2.copy_(left[rows] @ self._right)
            r2.clamp_(min=0.0)
            self._formula(r2, None if slope is None else slope[rows])
            r2.mul_(self._scale)

    def _own(self, columns: Tensor) -> Tensor:
        """A column for each lengthscale, of one for each input."""
        return columns if self._kernel.lengthscale.ndim else columns.sum(1, keepdim=True)

    def _clear(self) -> None:
        m, d = self._g.shape
        columns = 2 * d + 1 if self._kernel.lengthscale.ndim else d + 2
        self._sums = torch.zeros(columns, m, dtype=torch.float64)
        self._by_scale = torch.zeros((), dtype=torch.float64)


class _Differentiated(_Term):
    """Any kernel, by torch autograd."""

    def __init__(self, prefix: str, kernel: Kernel, Z: Tensor) -> None:
        self._prefix, self._kernel, self._Z = prefix, kernel, Z.detach()
        self._clear()

    def evaluate(self, X: Tensor, dtype: torch.dtype) -> Tensor:
        return self._kernel.evaluate(X, self._Z).detach().to(dtype, copy=True)

    def forward(self, X: Tensor, room: Room) -> _Tape:
        with torch.enable_grad():
            values = _free_values(self._kernel)
            leaf = self._Z.clone().requires_grad_()
            K = self._kernel.bind(values).evaluate(X, leaf)
        return _Tape(K, (*values.values(), leaf))

    def backward(self, tape: _Tape, G: Tensor) -> None:
        if not tape.K.requires_grad:
            return
        found = torch.autograd.grad(
            tape.K, tape.saved, G.double(), allow_unused=True, materialize_grads=True
        )
        for name, g in zip(self._totals, found, strict=False):
            self._totals[name] += g
        self._dZ += found[-1]

    def collect(self) -> Derivative:
        found = Derivative({self._prefix + n: g for n, g in self._totals.items()}, self._dZ)
        self._clear()
        return found

    def _clear(self) -> None:
        self._totals = {n: torch.zeros_like(v) for n, v in _free_values(self._kernel).items()}
        self._dZ = torch.zeros_like(self._Z)


def _joined(blocks: Iterator[tuple[slice, Tensor]]) -> Tensor:
    """Tiles below each other; one alone is not copied."""
    tiles = [K for _, K in blocks]
    return tiles[0] if len(tiles) == 1 else torch.cat(tiles)


def _summands(kernel: Kernel, prefix: str = "") -> list[tuple[str, Kernel]]:
    if type(kernel) is Sum:
        return [s for i, part in enumerate(kernel.parts) for s in _summands(part, f"{prefix}{i}.")]
    return [(prefix, kernel)]


def _free_values(kernel: Kernel) -> dict[str, Tensor]:
    """New leaves with the values of the hyperparameters that are not frozen."""
    return {
        name: h.value.detach().clone().requires_grad_()
        for name, h in kernel.hyperparameters().items()
        if not h.frozen
    }


def _strips(n: int, m: int) -> Iterator[slice]:
    rows = max(1, STRIP // (8 * m))
    for start in range(0, n, rows):
        yield slice(start, min(start + rows, n))


# ρ(r²) in place of r², and ρ'(r²) into `slope`, if there is one.


def _rbf(r2: Tensor, slope: Tensor | None) -> None:
    r2.mul_(-0.5).exp_()
    if slope is not None:
        torch.mul(r2, -0.5, out=slope)


def _matern12(r2: Tensor, slope: Tensor | None) -> None:
    r = r2.sqrt()
    torch.exp(-r, out=r2)
    if slope is not None:
        # Infinite at r = 0, where it is multiplied by f - g = 0.
        slope.copy_(torch.where(r > 0, -0.5 * r2 / r, 0.0))


def _matern32(r2: Tensor, slope: Tensor | None) -> None:
    s = r2.mul_(3.0).sqrt_()
    e = torch.neg(s).exp_()
    s.add_(1.0).mul_(e)
    if slope is not None:
        torch.mul(e, -1.5, out=slope)


def _matern52(r2: Tensor, slope: Tensor | None) -> None:
    s = r2.mul_(5.0).sqrt_()
    e = torch.neg(s).exp_()
    if slope is not None:
        torch.mul(e, s + 1.0, out=slope).mul_(-5.0 / 6.0)
    # 1 + s + s² / 3
    torch.addcmul(1.0 + s, s, s, value=1 / 3, out=s).mul_(e)


# By exact type: a subclass may change the formula.
FORMULAS: dict[type[Kernel], Formula] = {
    RBF: _rbf,
    Matern12: _matern12,
    Matern32: _matern32,
    Matern52: _matern52,
}
