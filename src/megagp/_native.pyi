from numpy import float32, float64, int32, int64
from numpy.typing import NDArray

_Matrix = NDArray[float64]
_Component = tuple[int, float, float, _Matrix, _Matrix]

class Plan32:
    def __init__(
        self,
        components: list[_Component],
        symmetric: bool,
        cull_tolerance: float,
        instruction_set: str,
    ) -> None: ...
    def matmul(
        self, v: _Matrix, out: _Matrix, threads: int, share_start: int, share_stop: int
    ) -> None: ...
    def gradient(
        self,
        u: _Matrix,
        w: _Matrix,
        gx: list[_Matrix | None],
        gz: list[_Matrix | None],
        threads: int,
        share_start: int,
        share_stop: int,
    ) -> list[float]: ...
    def block(self, out: NDArray[float32] | _Matrix, threads: int) -> None: ...
    def culling(self) -> tuple[int, int, float]: ...
    def summed(self) -> float: ...
    def bytes_to_keep(self) -> int: ...
    def keep(self) -> None: ...

class Plan64(Plan32): ...

class FarPlan:
    def __init__(
        self,
        family: int,
        outputscale: float,
        alpha: float,
        x: _Matrix,
        origin: list[float],
        side: float,
        max_level: int,
        leaf: int,
        direct: float,
        instruction_set: str,
    ) -> None: ...
    def depth(self) -> int: ...
    def link(
        self,
        degree: int,
        tables: list[
            tuple[NDArray[int32], NDArray[float64], list[NDArray[float32]], list[NDArray[float32]]]
        ],
        cutoff: float,
        level: float,
    ) -> None: ...
    def matmul(
        self, v: _Matrix, out: _Matrix, threads: int, share_start: int, share_stop: int
    ) -> None: ...
    def statistics(self) -> list[float]: ...

def joint32(
    components: list[_Component],
    noise: NDArray[float64],
    F: _Matrix,
    prior: NDArray[float64],
    B: _Matrix,
    ends: NDArray[int64],
    neighbours: list[NDArray[int64]],
    jitter: float,
    tolerance: float,
    out: NDArray[float64],
    threads: int,
    instruction_set: str,
) -> list[int]: ...

joint64 = joint32

def kept_factor_size(neighbours: int, single: bool) -> int: ...
def keep32(
    components: list[_Component],
    noise: NDArray[float64],
    F: _Matrix,
    neighbours: list[NDArray[int64]],
    factors: list[NDArray[float32]] | list[NDArray[float64]],
    jitter: float,
    tolerance: float,
    threads: int,
    instruction_set: str,
) -> list[int]: ...

keep64 = keep32

def by_kept32(
    components: list[_Component],
    noise: NDArray[float64],
    F: _Matrix,
    prior: NDArray[float64],
    B: _Matrix,
    ends: NDArray[int64],
    neighbours: list[NDArray[int64]],
    factors: list[NDArray[float32]] | list[NDArray[float64]],
    out: NDArray[float64],
    threads: int,
    instruction_set: str,
) -> None: ...

by_kept64 = by_kept32

def vecchia32(
    components: list[_Component],
    noise: NDArray[float64],
    L: NDArray[float32] | _Matrix,
    nearest: NDArray[int64],
    points: NDArray[int64],
    least: float,
    w: _Matrix,
    v: NDArray[float64],
    threads: int,
    instruction_set: str,
) -> None: ...

vecchia64 = vecchia32

class SparseRows:
    def __init__(
        self,
        starts: NDArray[int64],
        columns: NDArray[int32],
        values: NDArray[float64],
        width: int,
    ) -> None: ...
    def times(self, X: _Matrix, out: _Matrix, threads: int) -> None: ...
    def solve(self, order: NDArray[int64], Z: _Matrix) -> None: ...

def instruction_sets() -> list[str]: ...
def fma_rate(instruction_set: str, seconds: float) -> float: ...
