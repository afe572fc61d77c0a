"""KernelOperator: points, a kernel and an engine; a matrix to multiply by, not to store."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from megagp.distributed import ALONE, Ranks
from megagp.engines import (
    Cached,
    Engine,
    Gradient,
    Prepared,
    Share,
    Statistics,
    choose,
)
from megagp.inputs import (
    Index,
    Matrix,
    as_dtype,
    as_float64,
    as_index,
    as_points,
    check_finite,
    check_match,
)
from megagp.kernels import Kernel

# What culling may leave out of K, as a share of the largest entry: below what evaluating K in
# that precision costs anyway.
CULL_TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-13}


@dataclass(frozen=True)
class EngineChoice:
    """Which engine an operator uses, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass
class Count:
    """Entries of K that products, gradients and blocks have evaluated, by all ranks together."""

    entries: float = 0.0


class KernelOperator:
    """K = k(X, Z), n x m, by its products.

    X: n x d points; Z: m x d points, or None for the symmetric K = k(X, X).
    engine: "auto", "native", "triton", "tiles", or an Engine.
    dtype: precision in which entries are evaluated; sums and results are float64.
    cull_tolerance: bound on the spectral norm of what may be left out of K, 0 for nothing;
        by default 1e-6 (float32) or 1e-13 (float64) of the largest entry. See `statistics`.
    cache_budget: bytes; if K fits into them in `dtype` (native: half of a symmetric K), it is
        evaluated once and kept. None: where that pays, by engines that keep a rank's share alone.
    ranks: who computes products and gradients together: each its share, and a sum over all.

    The kernel is read at each call, so a change to its hyperparameters takes effect.
    """

    def __init__(
        self,
        X: Matrix,
        kernel: Kernel,
        Z: Matrix | None = None,
        *,
        engine: str | Engine = "auto",
        dtype: str | torch.dtype = "float32",
        cull_tolerance: float | None = None,
        cache_budget: int | None = 0,
        ranks: Ranks = ALONE,
    ) -> None:
        if not isinstance(kernel, Kernel):
            raise TypeError(
                f"kernel: expected a megagp kernel, got {type(kernel).__name__}; "
                "make one with megagp.kernels, or subclass megagp.kernels.Kernel"
            )
        self.kernel = kernel
        self.X = as_points(X, "X")
        self.Z = None if Z is None else as_points(Z, "Z")
        if self.Z is not None:
            check_match(self.X, self.Z)
        kernel.check_inputs(self.X.shape[1])
        self.dtype = as_dtype(dtype)
        if cull_tolerance is not None and not (0 <= cull_tolerance < float("inf")):
            raise ValueError(
                f"cull_tolerance: expected a number >= 0, got {cull_tolerance}; 0 culls nothing"
            )
        self.cull_tolerance = cull_tolerance
        if cache_budget is not None and cache_budget < 0:
            raise ValueError(
                f"cache_budget: expected bytes >= 0, got {cache_budget}; 0 keeps nothing"
            )
        self.cache_budget = cache_budget
        self.ranks = ranks
        self.count = Count()  # shared with the operator of the other precision
        self._other: KernelOperator | None = None  # of the other precision
        self._filled: Prepared | None = None  # what has all its entries, and keeps them
        self._engine, self.engine = self._choose(engine)
        self._row_order = self._engine.order(kernel, self.X.detach())
        self._col_order = (
            self._row_order if self.Z is None else self._engine.order(kernel, self.Z.detach())
        )
        self._prepared: tuple[tuple[bytes, tuple[int, ...]], Prepared] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """n x m."""
        return len(self.X), len(self.X if self.Z is None else self.Z)

    @property
    def statistics(self) -> Statistics:
        """The share of tile pairs that a product skips, and a bound on the norm of what is lost."""
        return self._prepare().statistics

    @property
    def kept(self) -> bool:
        """Whether products read entries that an earlier one evaluated."""
        return self.cache_budget != 0 and self._prepare().kept

    def forget(self) -> None:
        """Give up what products have prepared and kept; the next one does so anew."""
        self._prepared = self._filled = None
        if self._other is not None:
            self._other.forget()

    def astype(self, dtype: str | torch.dtype, *, keep: bool = False) -> KernelOperator:
        """The same operator with entries evaluated in this precision; `keep`: with its budget."""
        if as_dtype(dtype) == self.dtype:
            return self
        if not keep and self._other is not None:  # there are but two precisions
            return self._other
        engine: str | Engine = "auto" if self.engine.reason.startswith("auto") else self._engine
        other = copy(self)  # with the same order of points, so that what it sums is, too
        other.dtype = as_dtype(dtype)
        other.cache_budget = self.cache_budget if keep else 0
        other._engine, other.engine = other._choose(engine)
        other._prepared = other._filled = other._other = None
        if not keep:
            self._other = other
        return other

    def matmul(self, V: Matrix, share: Share | None = None) -> Tensor:
        """K @ V, float64: n x t for V of m x t, n for a vector.

        Differentiable in V, in the kernel's hyperparameters and in X and Z, where these
        require grad. `share` computes one of several disjoint parts that add up to K @ V;
        without it, all ranks compute K @ V together, and all must call.
        """
        V = self._as_rhs(V, "V", self.shape[1])
        column = V[:, None] if V.ndim == 1 else V
        prepared = self._prepare()
        leaves = [self.X, *([] if self.Z is None else [self.Z]), *self.kernel.values().values()]
        if torch.is_grad_enabled() and any(t.requires_grad for t in (V, *leaves)):
            values = self.kernel.values()
            product: Tensor = _Matmul.apply(  # type: ignore[no-untyped-call]
                self, prepared, share, tuple(values), column, self.X, self.Z, *values.values()
            )
        else:
            product = self._product(prepared, column, share)
        return product[:, 0] if V.ndim == 1 else product

    def block(self, rows: Index = None, cols: Index = None) -> Tensor:
        """K[rows][:, cols] as a dense matrix in the evaluation dtype; None means all."""
        n, m = self.shape
        i = as_index(rows, n, "rows", self.X.device)
        j = as_index(cols, m, "cols", self.X.device)
        self.count.entries += float(len(i)) * len(j)
        return self._prepare().block(_positions(self._row_order, i), _positions(self._col_order, j))

    def diagonal(self) -> Tensor:
        """k(x_i, x_i) for every point: n, float64."""
        if self.Z is not None:
            raise ValueError("diagonal: expected a symmetric operator, got one with Z; leave Z out")
        return _unsort(self._prepare().diagonal(), self._row_order)

    def gradient(
        self, U: Matrix, W: Matrix, *, inputs: bool = False, share: Share | None = None
    ) -> dict[str, Tensor]:
        """The gradient of sum(U * (K @ W)) by the value of every hyperparameter not frozen.

        U: n x t, W: m x t. With `inputs` the result also has "X" (and "Z", if given): n x d,
        m x d. All float64, in one pass over the pairs.
        """
        U = self._as_rhs(U, "U", self.shape[0])
        W = self._as_rhs(W, "W", self.shape[1])
        if U.shape[1:] != W.shape[1:]:
            raise ValueError(
                f"W: expected as many columns as U, {tuple(U.shape[1:])}, got "
                f"{tuple(W.shape[1:])}; a vector goes with a vector"
            )
        if U.ndim == 1:
            U, W = U[:, None], W[:, None]
        g = self._gradient(self._prepare(), U.detach(), W.detach(), inputs, share)
        found = dict(g.hyperparameters)
        if g.X is not None:
            found["X"] = g.X
        if g.Z is not None:
            found["Z"] = g.Z
        return found

    def _choose(self, engine: str | Engine) -> tuple[Engine, EngineChoice]:
        """The engine to use; a named one that can't run the case is an error."""
        chosen, reason = choose(engine, self.kernel, self.X, self.Z, self.dtype)
        return chosen, EngineChoice(chosen.name, reason)

    def _prepare(self) -> Prepared:
        """What the engine prepared for the present hyperparameters, made anew when they change."""
        with torch.no_grad():
            values = [v.detach().cpu().numpy().tobytes() for v in self.kernel.values().values()]
        values.append(bytes(h.frozen for h in self.kernel.hyperparameters().values()))
        # An optimiser moves X in place; the version counts such changes.
        points = (self.X,) if self.Z is None else (self.X, self.Z)
        versions = tuple(0 if P.is_inference() else P._version for P in points)
        key = b"".join(values), versions
        if self._prepared is None or self._prepared[0] != key:
            self._prepared = self._filled = None  # frees the old one before the new one is made
            self._prepared = key, self._make()
        return self._prepared[1]

    @torch.no_grad()
    def _make(self) -> Prepared:
        X = _sort(self.X.detach(), self._row_order)
        Z = None if self.Z is None else _sort(self.Z.detach(), self._col_order)
        tolerance = self.cull_tolerance
        if tolerance is None:
            # k(x, x) is the largest entry of its row.
            largest = float(self.kernel.diagonal(X[:1]))
            tolerance = CULL_TOLERANCE[self.dtype] * largest
        prepared = self._engine.prepare(self.kernel, X, Z, self.dtype, tolerance)
        n, m = self.shape
        if self.cache_budget != 0 and prepared.keep(self.cache_budget):
            return prepared
        if self.cache_budget and 0 < n * m * self.dtype.itemsize <= self.cache_budget:
            return Cached(prepared, n, m, self.X.device)
        return prepared

    def _pairs(self, prepared: Prepared, share: Share | None, far: bool) -> float:
        """Entries that a pass evaluates; far: some may be approximated instead."""
        n, m = self.shape
        pairs = n * (n + 1) / 2 if self.Z is None else float(n) * m
        skips = prepared.statistics
        evaluated = 1 - skips.culled_fraction - (skips.far_fraction if far else 0.0)
        return pairs * evaluated / (1 if share is None else share.count)

    def _product(self, prepared: Prepared, V: Tensor, share: Share | None) -> Tensor:
        if prepared is not self._filled:
            self.count.entries += self._pairs(prepared, share, far=True)
            self._filled = prepared if prepared.kept else None
        V = _sort(V, self._col_order)
        if share is not None:
            product = prepared.matmul(V, share)
        elif isinstance(prepared, Cached):  # every rank has all of K
            product = prepared.matmul(V)
        else:
            product = self.ranks.sum(prepared.matmul(V, self.ranks.share))
        return _unsort(product, self._row_order)

    def _gradient(
        self, prepared: Prepared, U: Tensor, W: Tensor, inputs: bool, share: Share | None
    ) -> Gradient:
        self.count.entries += self._pairs(prepared, share, far=False)
        U, W = _sort(U, self._row_order), _sort(W, self._col_order)
        if share is None:
            part = prepared.gradient(U, W, inputs=inputs, share=self.ranks.share)
            g = _summed(part, self.ranks)
        else:
            g = prepared.gradient(U, W, inputs=inputs, share=share)
        return Gradient(
            g.hyperparameters,
            None if g.X is None else _unsort(g.X, self._row_order),
            None if g.Z is None else _unsort(g.Z, self._col_order),
        )

    def _transposed(self, kernel: Kernel, U: Tensor, share: Share | None) -> Tensor:
        """K.T @ U for an operator with Z, at the hyperparameters of `kernel`."""
        assert self.Z is not None
        flipped = KernelOperator(
            self.Z.detach(),
            kernel,
            self.X.detach(),
            engine=self._engine,
            dtype=self.dtype,
            cull_tolerance=self.cull_tolerance,
            ranks=self.ranks,
        )
        return flipped._product(flipped._prepare(), U, share)

    def _as_rhs(self, V: Matrix, name: str, rows: int) -> Tensor:
        tensor = as_float64(V, name)
        if tensor.device != self.X.device:
            raise ValueError(
                f"{name}: expected a tensor on {self.X.device} like X, got one on "
                f"{tensor.device}; move it with .to()"
            )
        if tensor.ndim not in (1, 2) or len(tensor) != rows:
            raise ValueError(
                f"{name}: expected {rows} rows (and any number of columns), got shape "
                f"{tuple(tensor.shape)}"
            )
        check_finite(tensor, name)
        return tensor

    def __repr__(self) -> str:
        n, m = self.shape
        return f"KernelOperator({n} x {m}, {self.kernel!r}, {self.engine.name})"


class _Matmul(torch.autograd.Function):
    """K V, whose derivatives are K' G (by V) and the gradient verb with U = G, W = V."""

    @staticmethod
    def forward(
        ctx: Any,
        operator: KernelOperator,
        prepared: Prepared,
        share: Share | None,
        names: tuple[str, ...],
        V: Tensor,
        X: Tensor,
        Z: Tensor | None,
        *values: Tensor,
    ) -> Tensor:
        ctx.operator, ctx.prepared, ctx.share, ctx.names = operator, prepared, share, names
        ctx.save_for_backward(V, *values)
        return operator._product(prepared, V, share)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, G: Tensor) -> tuple[Any, ...]:
        V, *values = ctx.saved_tensors
        op: KernelOperator = ctx.operator
        need_V, need_X, need_Z, *need_values = ctx.needs_input_grad[4:]
        dV = None
        if need_V and op.Z is None:
            dV = op._product(ctx.prepared, G, ctx.share)
        elif need_V:
            # The kernel as it was in the forward pass, should it have changed since.
            kernel = op.kernel.bind(dict(zip(ctx.names, values, strict=True)))
            dV = op._transposed(kernel, G, ctx.share)
        if not (need_X or need_Z or any(need_values)):
            return (None, None, None, None, dV, None, None, *(None for _ in need_values))
        g = op._gradient(ctx.prepared, G, V, need_X or need_Z, ctx.share)
        by_value = [g.hyperparameters.get(name) for name in ctx.names]
        return (None, None, None, None, dV, g.X, g.Z, *by_value)


def _summed(part: Gradient, ranks: Ranks) -> Gradient:
    """The gradient from those of all ranks' shares, in one message."""
    if ranks.size == 1:
        return part
    terms = [*part.hyperparameters.values(), *(T for T in (part.X, part.Z) if T is not None)]
    flat = ranks.sum(torch.cat([term.reshape(-1) for term in terms]))
    pieces = torch.split(flat, [term.numel() for term in terms])
    total = [piece.view_as(term) for piece, term in zip(pieces, terms, strict=True)]
    k = len(part.hyperparameters)
    return Gradient(
        dict(zip(part.hyperparameters, total, strict=False)),
        None if part.X is None else total[k],
        None if part.Z is None else total[k + 1],
    )


def _sort(T: Tensor, order: Tensor | None) -> Tensor:
    return T if order is None else T[order]


def _unsort(T: Tensor, order: Tensor | None) -> Tensor:
    if order is None:
        return T
    out = torch.empty_like(T)
    out[order] = T
    return out


def _positions(order: Tensor | None, index: Tensor) -> Tensor:
    """Where the points `index` of the caller's order lie in the engine's order."""
    if order is None:
        return index
    position = torch.empty_like(order)
    position[order] = torch.arange(len(order), device=order.device)
    return position[index]
