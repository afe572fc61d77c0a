"""Fused products and gradients on CUDA devices: Triton programs behind the verbs of an engine."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

from megagp.engines.base import WHOLE, Engine, Gradient, Prepared, Share, Statistics, Support
from megagp.engines.ordering import kd_order
from megagp.engines.tiles import power_of_two
from megagp.engines.triton.pairs import PANEL, owned, panel_pairs
from megagp.kernels import RBF, Constant, Kernel, Matern12, Matern32, Matern52, Product, Stationary

# The families of kernels.py. By exact type: a subclass may change the formula.
FAMILIES: dict[type[Kernel], int] = {Matern12: 0, Matern32: 1, Matern52: 2, RBF: 3}
# What points are scaled by, over the lengthscale, so that k is a power of two; native/radial.h.
LOG2_E = 1 / math.log(2)
FEATURE_SCALE = (LOG2_E, math.sqrt(3) * LOG2_E, math.sqrt(5) * LOG2_E, math.sqrt(LOG2_E / 2))
ORDERED_MAX_D = 32  # boxes of a panel overlap nearly always beyond
# Features beyond this would be infinite in float32.
LARGEST = 1e38


@dataclass(frozen=True)
class Term:
    """A leaf kernel times constants; `scales` name the outputscales, `prefix` the leaf."""

    leaf: Stationary
    prefix: str
    scales: tuple[str, ...]

    @property
    def family(self) -> int:
        return FAMILIES[type(self.leaf)]

    def features(self, X: Tensor) -> Tensor:
        """Points between which h = |f - g|² is measured: n x d."""
        return FEATURE_SCALE[self.family] * self.leaf.features(X)

    def value(self, h: Tensor) -> Tensor:
        """k(h) at outputscale 1, for bounds."""
        return self.leaf.radial(h.sqrt() / FEATURE_SCALE[self.family])


def term(kernel: Kernel, prefix: str = "") -> Term:
    """The kernel as one term; ValueError says why it is not one."""
    if type(kernel) is Product:
        parts = [(part, f"{prefix}{i}.") for i, part in enumerate(kernel.parts)]
        constants = tuple(f"{name}outputscale" for part, name in parts if type(part) is Constant)
        others = [(part, name) for part, name in parts if type(part) is not Constant]
        if len(others) != 1:
            raise ValueError(
                f"triton multiplies one kernel by constants, not {len(others)} kernels"
            )
        inner = term(*others[0])
        return Term(inner.leaf, inner.prefix, (*inner.scales, *constants))
    if type(kernel) not in FAMILIES:
        raise ValueError(f"triton has no {type(kernel).__name__} kernel")
    assert isinstance(kernel, Stationary)
    return Term(kernel, prefix, (f"{prefix}outputscale",))


class TritonEngine(Engine):
    """K = k(X, Z) on a CUDA device: Matérn and RBF kernels, times constants.

    memory_budget: bytes for the sums of the panel pairs that are under way at once.
    Each pair of points is evaluated once, d differences in registers; sums over 256 points
    are made in the evaluation dtype, from there on in float64.
    """

    name = "triton"

    def __init__(self, memory_budget: int = 256 * 2**20) -> None:
        if memory_budget < 1:
            raise ValueError(
                f"memory_budget: expected a positive number of bytes, got {memory_budget}; "
                "the default is 256 * 2**20"
            )
        self.memory_budget = memory_budget

    def supports(self, kernel: Kernel, X: Tensor, Z: Tensor | None, dtype: torch.dtype) -> Support:
        if X.device.type != "cuda" and not (X.device.type == "cpu" and interpreted()):
            return Support(False, f"triton runs on CUDA devices, and X is on {X.device}")
        if find_spec("triton") is None:
            return Support(False, "Triton is not installed: pip install 'megagp[gpu]'")
        if dtype not in (torch.float32, torch.float64):
            return Support(False, f"triton evaluates in float32 or float64, not {dtype}")
        try:
            term(kernel)
        except ValueError as error:
            return Support(False, str(error))
        where = "Triton's interpreter" if interpreted() else str(X.device)
        return Support(True, f"fused Triton code covers this kernel on {where}")

    def order(self, kernel: Kernel, X: Tensor) -> Tensor | None:
        with torch.no_grad():
            F = term(kernel).features(X)
        if not 1 <= F.shape[1] <= ORDERED_MAX_D:
            return None
        return torch.from_numpy(kd_order(F.cpu().numpy(), PANEL)).to(X.device)

    def prepare(
        self, kernel: Kernel, X: Tensor, Z: Tensor | None, dtype: torch.dtype, cull_tolerance: float
    ) -> PreparedTriton:
        support = self.supports(kernel, X, Z, dtype)
        if not support.ok:
            raise ValueError(f"engine: {support.reason}; use the tiles engine")
        kernel.check_inputs(X.shape[1])
        return PreparedTriton(
            kernel, X.detach(), None if Z is None else Z.detach(), dtype, cull_tolerance, self
        )


class PreparedTriton(Prepared):
    """K = k(X, Z) by Triton programs; see TritonEngine."""

    def __init__(
        self,
        kernel: Kernel,
        X: Tensor,
        Z: Tensor | None,
        dtype: torch.dtype,
        cull_tolerance: float,
        engine: TritonEngine,
    ) -> None:
        self._launch = _launcher()
        self._dtype, self._budget = dtype, engine.memory_budget
        self._X, self._Z = X, Z
        self._centre = X.mean(dim=0)
        with torch.no_grad():
            self._kernel = kernel.on(X.device, torch.float64)
            values = kernel.values()
            self._term = term(self._kernel)
            # Read once, here: a number on the device would be waited for at every product.
            self._scales = {name: float(values[name]) for name in self._term.scales}
            self._scale = math.prod(self._scales.values())
            x = self._features(X)
            z = None if Z is None else self._features(Z)
            # Boxes of many dimensions are all near one another.
            tolerance = cull_tolerance if x.shape[1] <= ORDERED_MAX_D else 0.0
            self._pairs = panel_pairs(x, z, self._term.value, tolerance / self._scale)
            self._d = x.shape[1]
            self._x = self._by_dimension(x)
            self._z = self._x if z is None else self._by_dimension(z)
        self._mine: tuple[Share, Tensor] | None = None

    @property
    def statistics(self) -> Statistics:
        found = self._pairs.statistics
        return Statistics(found.culled_fraction, self._scale * found.culling_bound)

    @torch.no_grad()
    def matmul(self, V: Tensor, share: Share = WHOLE) -> Tensor:
        # Per column, so that neither 1e300 nor 1e-300 leaves the range of float32.
        scale = power_of_two(V.abs().amax(dim=0)) if len(V) else V.new_ones(V.shape[1])
        V = (V / scale).to(self._dtype)
        out = torch.zeros(len(self._X), V.shape[1], dtype=torch.float64, device=V.device)
        for cols in _column_blocks(V.shape[1], self._launch.PRODUCT_WIDTHS[-1]):
            out[:, cols] = self._product(V[:, cols], share)
        return out * (self._scale * scale)

    @torch.no_grad()
    def block(self, rows: Tensor, cols: Tensor) -> Tensor:
        Z = self._X if self._Z is None else self._Z
        x, z = (self._cast(self._features(P)) for P in (self._X[rows], Z[cols]))
        out = torch.empty(len(x), len(z), dtype=self._dtype, device=x.device)
        if out.numel():
            self._launch.block(out, x, z, self._scale, self._term.family)
        return out

    @torch.no_grad()
    def diagonal(self) -> Tensor:
        if self._Z is not None:
            raise ValueError(
                "diagonal: expected Z to be X, got a second set of points; prepare with Z=None"
            )
        return self._kernel.diagonal(self._X).clone()

    @torch.no_grad()
    def gradient(
        self, U: Tensor, W: Tensor, *, inputs: bool = False, share: Share = WHOLE
    ) -> Gradient:
        """dk/dl_c = -2 dk/dh (f_c - g_c)² / l_c; dk/dx_c = 2 dk/dh (f_c - g_c) df_c/dx_c."""
        per_column = power_of_two(U.abs().amax(dim=0)) if len(U) else U.new_ones(U.shape[1])
        W = W * per_column
        scale = power_of_two(W.abs().amax()) if W.numel() else U.new_ones(())
        left, right = U / per_column, W / scale
        if self._Z is None:
            left, right = torch.cat([left, right], dim=1), torch.cat([right, left], dim=1)
        sums = torch.zeros(self._d + 1, dtype=torch.float64, device=U.device)
        by_row = sums.new_zeros(self._x.shape[1], self._d if inputs else 0)
        by_col = sums.new_zeros(self._z.shape[1], self._d if inputs else 0)
        for cols in _column_blocks(left.shape[1], self._launch.GRADIENT_WIDTHS[-1]):
            self._contract(left[:, cols], right[:, cols], share, sums, by_row, by_col)
        found = Gradient(self._by_name(sums * scale))
        if not inputs:
            return found
        # What moves x_i away from z_j moves z_j away from x_i.
        by_row, by_col = by_row * scale, -by_col * scale
        if self._Z is None:
            return Gradient(found.hyperparameters, self._by_input(by_row + by_col, self._X))
        return Gradient(
            found.hyperparameters,
            self._by_input(by_row, self._X),
            self._by_input(by_col, self._Z),
        )

    def _product(self, V: Tensor, share: Share) -> Tensor:
        width = next(w for w in self._launch.PRODUCT_WIDTHS if w >= V.shape[1])
        v = _padded(V, self._z.shape[1], width)
        out = torch.zeros(self._x.shape[1], width, dtype=torch.float64, device=V.device)
        strips = PANEL // self._launch.product_strip(self._d)
        bytes_per_pair = PANEL * width * self._dtype.itemsize * (1 + strips)
        for wave in self._waves(bytes_per_pair, share):
            rows = v.new_empty(len(wave), 1, PANEL, width)
            cols = v.new_empty(len(wave) if self._Z is None else 0, strips, PANEL, width)
            self._launch.product(
                self._x,
                self._z,
                v,
                wave,
                rows,
                cols,
                panels=self._pairs.columns,
                symmetric=self._Z is None,
                family=self._term.family,
                d=self._d,
            )
            self._gather(wave, rows, cols, out, out)
        return out[: len(self._X), : V.shape[1]]

    def _contract(
        self,
        left: Tensor,
        right: Tensor,
        share: Share,
        sums: Tensor,
        by_row: Tensor,
        by_col: Tensor,
    ) -> None:
        """Add to the sums of kernels.gradient, over all panel pairs, those of these columns."""
        width = next(w for w in self._launch.GRADIENT_WIDTHS if w >= left.shape[1])
        left, right = (
            _padded(T.to(self._dtype), P.shape[1], width)
            for T, P in ((left, self._x), (right, self._z))
        )
        strips = PANEL // self._launch.gradient_strip(self._d)
        parts = PANEL // self._launch.SHAPES[0][0]
        inputs = by_row.shape[1]
        bytes_per_pair = 8 * strips * (self._d + 1)
        bytes_per_pair += PANEL * self._dtype.itemsize * (parts + strips) * inputs
        for wave in self._waves(bytes_per_pair, share):
            found = sums.new_empty(len(wave), strips, self._launch.sums_width(self._d))
            rows = left.new_empty(len(wave), parts, PANEL, inputs)
            cols = left.new_empty(len(wave), strips, PANEL, inputs)
            self._launch.gradient(
                self._x,
                self._z,
                left,
                right,
                wave,
                found,
                rows,
                cols,
                panels=self._pairs.columns,
                symmetric=self._Z is None,
                family=self._term.family,
                d=self._d,
            )
            sums += found.sum(dim=(0, 1))[: self._d + 1]
            if inputs:
                self._gather(wave, rows, cols, by_row, by_col)

    def _waves(self, bytes_per_pair: int, share: Share) -> Iterator[Tensor]:
        """The panel pairs of a share, as many at a time as the budget has room for."""
        if self._mine is None or self._mine[0] != share:
            self._mine = share, owned(self._pairs, share)
        codes = self._mine[1]
        size = max(1, self._budget // bytes_per_pair)
        return (codes[start : start + size] for start in range(0, len(codes), size))

    def _gather(
        self, wave: Tensor, rows: Tensor, cols: Tensor, by_row: Tensor, by_col: Tensor
    ) -> None:
        """Add what the slots of a wave hold to the panels they belong to."""
        i, j = wave // self._pairs.columns, wave % self._pairs.columns
        self._launch.gather(by_row, rows, i)
        if len(cols):
            # A panel against itself has summed both its triangles along the rows.
            outside = len(by_col) // PANEL
            self._launch.gather(
                by_col, cols, torch.where(i == j, outside, j) if self._Z is None else j
            )

    def _features(self, X: Tensor) -> Tensor:
        # Centred in float64 before the cast: an offset would use up the digits of float32.
        return self._term.features(X - self._centre)

    def _cast(self, F: Tensor) -> Tensor:
        return F.clamp(-LARGEST, LARGEST).to(self._dtype).contiguous()

    def _by_dimension(self, F: Tensor) -> Tensor:
        """d x n in the evaluation dtype, padded with zeros to whole blocks and panels."""
        n, d = F.shape
        wide = self._launch.padded_dimensions(d)
        out = torch.zeros(wide, -(-n // PANEL) * PANEL, dtype=self._dtype, device=F.device)
        out[:d, :n] = self._cast(F).T
        return out

    def _by_name(self, sums: Tensor) -> dict[str, Tensor]:
        """From the sums over pairs to derivatives by hyperparameters."""
        found: dict[str, Tensor] = {}
        lengthscale = f"{self._term.prefix}lengthscale"
        for name, h in self._kernel.hyperparameters().items():
            if h.frozen:
                continue
            if name == lengthscale:
                terms = -2 * self._scale * sums[: self._d] / h.value
                found[name] = terms if h.value.ndim else terms.sum()
            else:
                found[name] = sums[self._d] * (self._scale / self._scales[name])
        return found

    def _by_input(self, sums: Tensor, X: Tensor) -> Tensor:
        """From sums over features to derivatives by the points: n x d."""
        leaf = self._term.leaf
        scale = 2 * self._scale * FEATURE_SCALE[self._term.family] / leaf.lengthscale
        terms = sums[: len(X)] * scale
        if leaf.active_dims is None:
            return terms
        out = torch.zeros_like(X)
        for c, column in enumerate(leaf.active_dims):
            out[:, column] = terms[:, c]
        return out


def interpreted() -> bool:
    """Whether Triton was told to interpret its programs on the CPU, which is for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _launcher() -> ModuleType:
    from megagp.engines.triton import launch  # Triton is optional

    return launch


def _column_blocks(t: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, t)) for start in range(0, t, size)]


def _padded(V: Tensor, rows: int, cols: int) -> Tensor:
    out: Tensor = V.new_zeros(rows, cols)
    out[: len(V), : V.shape[1]] = V
    return out
