"""Fused SIMD on CPU cores: the C++ core in native/, behind the verbs of an engine.

The core knows sums of functions of the distance between features (and linear and
constant ones). What a hyperparameter does to the features, and the derivative of that,
is left to torch: it costs O(n d), against the core's O(n^2 d).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from megagp.engines.base import WHOLE, Engine, Gradient, Prepared, Share, Statistics, Support
from megagp.engines.far_field import (
    MAX_DIMENSIONS,
    MAX_EXTENT,
    FarField,
    Profile,
    direct_cost,
)
from megagp.engines.keeping import keeping_budget
from megagp.engines.ordering import kd_order
from megagp.kernels import (
    RBF,
    Constant,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Product,
    RationalQuadratic,
    Stationary,
    Sum,
)

try:
    from megagp import _native
except ImportError as error:  # pragma: no cover - a broken installation
    _missing = str(error)
else:
    _missing = ""

# The numbers of native/ops.h, enum Family. By exact type: a subclass may change the formula.
FAMILIES: dict[type[Kernel], int] = {
    Matern12: 0,
    Matern32: 1,
    Matern52: 2,
    RBF: 3,
    Periodic: 3,  # an RBF between points on circles
    RationalQuadratic: 4,
    Constant: 5,
    Linear: 6,
}

MAX_COMPONENTS = 32  # as in native/ops.h
VECCHIA_MOST = 512  # as in native/vecchia_ops.h
ORDERED_MAX_D = 32  # boxes of a tile overlap nearly always beyond

# From here on the far field's tables (made once) and cells are soon earned back, by dimension.
FAR_POINTS = {1: 16_384, 2: 16_384, 3: 32_768}
FAR_GAIN = 1.2  # by the estimates of costs, so that their errors do not make a product slower


# Family, outputscale, alpha, and features at the two sets of points.
Array = np.typing.NDArray[np.float64]
ComponentInput = tuple[int, float, float, Array, Array]


# Hyperparameters of a leaf that change values, not what they are functions of.
OF_VALUES = ("outputscale", "alpha")


@dataclass(frozen=True)
class Component:
    """One term of a sum: a leaf kernel, times constants. `scales` name their outputscales."""

    leaf: Kernel
    prefix: str
    scales: tuple[str, ...]

    @property
    def family(self) -> int:
        return FAMILIES[type(self.leaf)]

    def features(self, X: Tensor) -> Tensor:
        if isinstance(self.leaf, Stationary | Linear):
            return self.leaf.features(X)
        return X[:, :0]

    def of_features(self) -> list[str]:
        """The hyperparameters that features are made with."""
        return [name for name in self.leaf.hyperparameters() if name not in OF_VALUES]

    @property
    def one_length(self) -> bool:
        """Whether these are one lengthscale: all distances grow as it falls."""
        return self.of_features() == ["lengthscale"] and self.leaf["lengthscale"].numel() == 1


def components(kernel: Kernel, prefix: str = "") -> list[Component]:
    """The terms of a kernel that the core can evaluate; ValueError says what it can't."""
    if type(kernel) is Sum:
        return [c for i, part in enumerate(kernel.parts) for c in components(part, f"{prefix}{i}.")]
    if type(kernel) is Product:
        scales, factors = [], []
        for i, part in enumerate(kernel.parts):
            if type(part) is Constant:
                scales.append(f"{prefix}{i}.outputscale")
            else:
                factors.append((part, f"{prefix}{i}."))
        if len(factors) > 1:
            names = " and ".join(type(part).__name__ for part, _ in factors)
            raise ValueError(f"native multiplies kernels by constants only, not {names}")
        if factors:  # a constant times a sum is a sum of constants times its terms
            terms = components(*factors[0])
            return [Component(c.leaf, c.prefix, (*c.scales, *scales)) for c in terms]
        return [Component(kernel.parts[0], f"{prefix}0.", tuple(scales))]
    if type(kernel) not in FAMILIES:
        raise ValueError(f"native has no {type(kernel).__name__} kernel")
    return [Component(kernel, prefix, (f"{prefix}outputscale",))]


class NativeEngine(Engine):
    """K = k(X, Z) on CPU cores by the C++ core.

    threads: how many, by default as many as torch uses.
    instruction_set: "avx512", "avx2" or "baseline"; by default the best the machine has.
    far_field: whether symmetric float32 products in up to three dimensions approximate far
        pairs by polynomials (see Statistics for the bounds): None where it pays, True wherever
        it can be done, False nowhere.
    """

    name = "native"

    def __init__(
        self,
        threads: int | None = None,
        instruction_set: str | None = None,
        far_field: bool | None = None,
    ) -> None:
        if threads is not None and threads < 1:
            raise ValueError(
                f"threads: expected at least 1, got {threads}; leave it out for torch's number"
            )
        self.threads = threads
        known = instruction_sets()
        if instruction_set is not None and instruction_set not in known:
            raise ValueError(
                f"instruction_set: expected one of {', '.join(known) or 'none on this machine'}, "
                f"got {instruction_set!r}; leave it out for the best"
            )
        self.instruction_set = instruction_set or (known[0] if known else "")
        self.far_field = far_field

    def supports(self, kernel: Kernel, X: Tensor, Z: Tensor | None, dtype: torch.dtype) -> Support:
        if _missing:
            return Support(False, f"the native core can't be loaded: {_missing}")
        if X.device.type != "cpu":
            return Support(False, f"native runs on the CPU, and X is on {X.device}")
        if dtype not in (torch.float32, torch.float64):
            return Support(False, f"native evaluates in float32 or float64, not {dtype}")
        try:
            terms = len(components(kernel))
        except ValueError as error:
            return Support(False, str(error))
        if terms > MAX_COMPONENTS:
            return Support(False, f"native adds up to {MAX_COMPONENTS} kernels, not {terms}")
        return Support(True, f"fused {self.instruction_set} code covers this kernel on the CPU")

    def order(self, kernel: Kernel, X: Tensor) -> Tensor | None:
        with torch.no_grad():
            features = [c.features(X) for c in components(kernel) if c.leaf.stationary]
        spatial = [F for F in features if 1 <= F.shape[1] <= ORDERED_MAX_D]
        return torch.from_numpy(kd_order(spatial[0].numpy())) if spatial else None

    def prepare(
        self, kernel: Kernel, X: Tensor, Z: Tensor | None, dtype: torch.dtype, cull_tolerance: float
    ) -> PreparedNative:
        support = self.supports(kernel, X, Z, dtype)
        if not support.ok:
            raise ValueError(f"engine: {support.reason}; use the tiles engine")
        kernel.check_inputs(X.shape[1])
        return PreparedNative(
            kernel, X.detach(), None if Z is None else Z.detach(), dtype, cull_tolerance, self
        )


class PreparedNative(Prepared):
    """K = k(X, Z) by the native core; see NativeEngine."""

    def __init__(
        self,
        kernel: Kernel,
        X: Tensor,
        Z: Tensor | None,
        dtype: torch.dtype,
        cull_tolerance: float,
        engine: NativeEngine,
    ) -> None:
        self._engine = engine
        self._dtype = dtype
        self._cull_tolerance = cull_tolerance
        self._X, self._Z = X, Z
        self._centre = X.mean(dim=0)
        with torch.no_grad():
            self._kernel = kernel.bind({k: v.detach() for k, v in kernel.values().items()})
        self._values = self._kernel.values()
        self._components = components(self._kernel)
        self._plan = self._make_plan(dtype, X, Z, cull_tolerance)

    @cached_property
    def statistics(self) -> Statistics:
        if not self._far_fields:
            return Statistics(*self._culling, summed=self._plan.summed())
        parts = [field.statistics for field in self._far_fields]
        return Statistics(
            min(part.culled for part in parts),
            sum(part.culling_bound for part in parts),
            far_fraction=min(1 - part.near - part.culled for part in parts),
            far_error=sum(part.error for part in parts),
            far_bound=sum(part.bound for part in parts),
        )

    def matmul(self, V: Tensor, share: Share = WHOLE) -> Tensor:
        out = torch.empty(len(self._X), V.shape[1], dtype=torch.float64)
        if not V.shape[1]:
            return out
        v = V.detach().contiguous().numpy()
        if not self._far_pays(self._far_fields, V.shape[1]):
            self._plan.matmul(v, out.numpy(), self._threads, *share.interval)
            return out
        for p, field in enumerate(self._far_fields):
            part = torch.empty_like(out) if p else out
            field.matmul(v, part.numpy(), self._threads, share.interval)
            if p:
                out += part
        return out

    def keep(self, budget: int | None) -> bool:
        """Half of a symmetric K, as it is contracted; products are the same but for roundoff."""
        if budget is None:
            budget = keeping_budget(max(c.features(self._X[:1]).shape[1] for c in self._components))
        if self._plan.bytes_to_keep() > budget or self._far_fields:
            return False
        try:
            self._plan.keep()
        except MemoryError:  # the system allows less than it has: entries are evaluated again
            return False
        self.kept = True
        return True

    def block(self, rows: Tensor, cols: Tensor) -> Tensor:
        out = torch.empty(len(rows), len(cols), dtype=self._dtype)
        if out.numel():
            Z = self._X if self._Z is None else self._Z
            plan = self._make_plan(self._dtype, self._X[rows], Z[cols], 0.0)
            plan.block(out.numpy(), self._threads)
        return out

    def diagonal(self) -> Tensor:
        if self._Z is not None:
            raise ValueError(
                "diagonal: expected Z to be X, got a second set of points; prepare with Z=None"
            )
        return self._kernel.diagonal(self._X).clone()

    def gradient(
        self, U: Tensor, W: Tensor, *, inputs: bool = False, share: Share = WHOLE
    ) -> Gradient:
        free = [name for name, h in self._kernel.hyperparameters().items() if not h.frozen]
        totals = {name: torch.zeros_like(self._values[name]) for name in free}
        dX = torch.zeros_like(self._X)
        dZ = None if self._Z is None else torch.zeros_like(self._Z)
        if (free or inputs) and U.shape[1]:
            asked = [inputs or not (c.one_length or self._at_rest(c)) for c in self._components]
            gx, gz = self._room(self._X, asked), self._room(self._Z, asked)
            u, w = (T.detach().contiguous().numpy() for T in (U, W))
            plan = self._gradient_plan
            scalars = plan.gradient(u, w, gx, gz, self._threads, *share.interval)
            for p, component in enumerate(self._components):
                by_scale, by_alpha, by_log_h = scalars[3 * p : 3 * p + 3]
                self._add_scalars(component, by_scale, by_alpha, by_log_h, totals)
                g = [torch.from_numpy(a) for a in (gx[p], *gz[p : p + 1]) if a is not None]
                if g:
                    self._add_feature_terms(component, g, totals, dX, dZ, inputs)
        return Gradient(totals, dX, dZ) if inputs else Gradient(totals)

    @property
    def _threads(self) -> int:
        return self._engine.threads or torch.get_num_threads()

    @cached_property
    def _gradient_plan(self) -> _native.Plan32:
        # dk/dh of Matérn-1/2 grows without bound as points meet; float32 sums don't survive that,
        # nor do those of B k where all k are next to 1.
        steep = any(type(c.leaf) is Matern12 for c in self._components)
        if self._dtype == torch.float32 and (steep or self._plan.summed() < 1):
            return self._make_plan(torch.float64, self._X, self._Z, self._cull_tolerance)
        return self._plan

    @cached_property
    def _culling(self) -> tuple[float, float]:
        pairs, culled, bound = self._plan.culling()
        return culled / pairs, bound

    @cached_property
    def _far_fields(self) -> list[FarField]:
        """One for each component; none where entries are evaluated one and all."""
        asked = self._engine.far_field
        if asked is False or self._dtype != torch.float32 or self._Z is not None:
            return []
        if not all(c.leaf.stationary for c in self._components):
            return []
        n = len(self._X)
        features = [c.features(self._centred(c, self._X)) for c in self._components]
        for F in features:
            d = F.shape[1]
            if not 1 <= d <= MAX_DIMENSIONS or float(F.abs().max()) > MAX_EXTENT:
                return []
            if asked is None and n < FAR_POINTS[d]:
                return []
        fields: list[FarField] = []
        for c, F in zip(self._components, features, strict=True):
            scale = math.prod(float(self._values[name]) for name in c.scales)
            alpha = float(self._values.get(f"{c.prefix}alpha", 1.0))
            fields.append(
                FarField(
                    _native.FarPlan,
                    Profile(RBF if type(c.leaf) is Periodic else type(c.leaf), alpha),
                    c.family,
                    scale,
                    np.ascontiguousarray(F.numpy()),
                    self._cull_tolerance / len(features),
                    self._engine.instruction_set,
                )
            )
            if not self._far_pays(fields, 1):
                return []
        return fields

    def _far_pays(self, fields: list[FarField], t: int) -> bool:
        """Right-hand sides share entries that are evaluated, but not what goes far."""
        if self._engine.far_field or not fields:
            return bool(fields)
        direct = len(self._components) * direct_cost(len(self._X), self._culling[0], t)
        return FAR_GAIN * sum(field.cost(t) for field in fields) < direct

    def _centred(self, component: Component, X: Tensor) -> Tensor:
        # An offset costs digits in sums over features and changes nothing in what they mean.
        return X - self._centre if component.leaf.stationary else X

    def _make_plan(
        self, dtype: torch.dtype, X: Tensor, Z: Tensor | None, cull_tolerance: float
    ) -> _native.Plan32:
        parts = []
        with torch.no_grad():
            for c in self._components:
                x = c.features(self._centred(c, X)).contiguous().numpy()
                z = x if Z is None else c.features(self._centred(c, Z)).contiguous().numpy()
                scale = math.prod(float(self._values[name]) for name in c.scales)
                alpha = float(self._values.get(f"{c.prefix}alpha", 1.0))
                parts.append((c.family, scale, alpha, x, z))
        kind = _native.Plan32 if dtype == torch.float32 else _native.Plan64
        return kind(parts, Z is None, cull_tolerance, self._engine.instruction_set)

    def _at_rest(self, component: Component) -> bool:
        """Whether no hyperparameter that features are made with is free."""
        return all(component.leaf.hyperparameters()[n].frozen for n in component.of_features())

    def _room(
        self, X: Tensor | None, asked: list[bool]
    ) -> list[np.typing.NDArray[np.float64] | None]:
        """For derivatives by the features of each component, where they are asked for."""
        if X is None:
            return []
        widths = [c.features(X[:1]).shape[1] for c in self._components]
        return [
            np.empty((len(X), d)) if wanted else None
            for d, wanted in zip(widths, asked, strict=True)
        ]

    def _add_scalars(
        self,
        component: Component,
        by_scale: float,
        by_alpha: float,
        by_log_h: float,
        totals: dict[str, Tensor],
    ) -> None:
        """by_scale = sum B k at unit outputscale; with several factors, the product rule.

        by_log_h = sum B h dk/dh: all squared distances h go as lengthscale^-2.
        """
        for name in component.scales:
            if name in totals:
                others = (float(self._values[o]) for o in component.scales if o != name)
                totals[name] += by_scale * math.prod(others)
        alpha = f"{component.prefix}alpha"
        if alpha in totals:
            totals[alpha] += by_alpha
        lengthscale = f"{component.prefix}lengthscale"
        if component.one_length and lengthscale in totals:
            totals[lengthscale] += -2 * by_log_h / self._values[lengthscale]

    @torch.enable_grad()
    def _add_feature_terms(
        self,
        component: Component,
        g: list[Tensor],
        totals: dict[str, Tensor],
        dX: Tensor,
        dZ: Tensor | None,
        inputs: bool,
    ) -> None:
        """From derivatives by features to those by what the features are made of."""
        if type(component.leaf) is Constant:
            return
        names = component.of_features()
        leaves = {n: component.leaf[n].clone().requires_grad_() for n in names}
        bound = Component(component.leaf.bind(leaves), component.prefix, component.scales)
        points = [self._centred(component, P) for P in (self._X, self._Z) if P is not None]
        points = [P.requires_grad_() for P in (P.clone() for P in points)]
        features = [bound.features(P) for P in points]
        total = torch.stack([(F * G).sum() for F, G in zip(features, g, strict=True)]).sum()
        terms = torch.autograd.grad(total, [*leaves.values(), *points])
        for name, term in zip(names, terms, strict=False):
            full = component.prefix + name
            if full in totals and not component.one_length:
                totals[full] += term
        if inputs:
            dX += terms[len(names)]
            if dZ is not None:
                dZ += terms[len(names) + 1]


def instruction_sets() -> list[str]:
    """The instruction sets that the core was built for and this machine has, best first."""
    return [] if _missing else _native.instruction_sets()


def joint_variance(single: bool, *arguments: Any) -> list[int]:
    """Variances of new points cell by cell, with factors in float32 or float64.

    arguments: as in _native.pyi. Returns the JointQuality of each cell (native/joint_ops.h).
    """
    return (_native.joint32 if single else _native.joint64)(*arguments)


def kept_factor_size(neighbours: int, single: bool) -> int:
    """Entries of the factor of a cell that is kept."""
    return _native.kept_factor_size(neighbours, single)


def make_kept(single: bool, *arguments: Any) -> list[int]:
    """Makes factors of cells to be kept; arguments and what it returns as above."""
    return (_native.keep32 if single else _native.keep64)(*arguments)


def kept_variance(single: bool, *arguments: Any) -> None:
    """Variances of new points cell by cell, from factors that were kept."""
    (_native.by_kept32 if single else _native.by_kept64)(*arguments)


def vecchia_weights(
    kernel: Kernel,
    X: Tensor,
    noise: Tensor,
    L: Tensor,
    nearest: np.typing.NDArray[np.int64],
    points: np.typing.NDArray[np.int64],
    least: float,
    instruction_set: str = "",
) -> tuple[Tensor, Tensor]:
    """w and v of `points` given their predecessors, whose rows of L become those of U L.

    nearest: n x m. A predecessor that is among `points` comes before; native/vecchia_ops.h.
    """
    if not L.is_contiguous():
        raise ValueError(
            f"L: expected contiguous rows, as they are overwritten, got strides {L.stride()}; make "
            "it contiguous first"
        )
    w = torch.empty(len(points), nearest.shape[1], dtype=torch.float64)
    v = torch.empty(len(points), dtype=torch.float64)
    weigh = _native.vecchia32 if L.dtype == torch.float32 else _native.vecchia64
    weigh(
        component_inputs(kernel, X, X[:0]),
        noise.contiguous().numpy(),
        L.numpy(),
        np.ascontiguousarray(nearest),
        np.ascontiguousarray(points),
        least,
        w.numpy(),
        v.numpy(),
        torch.get_num_threads(),
        instruction_set,
    )
    return w, v


def component_inputs(kernel: Kernel, X: Tensor, Z: Tensor) -> list[ComponentInput]:
    """The kernel's terms as the core takes them, with features at both sets of points."""
    values = kernel.values()
    inputs = []
    with torch.no_grad():
        for c in components(kernel):
            scale = math.prod(float(values[name]) for name in c.scales)
            alpha = float(values.get(f"{c.prefix}alpha", 1.0))
            x, z = (c.features(P).contiguous().numpy() for P in (X, Z))
            inputs.append((c.family, scale, alpha, x, z))
    return inputs
