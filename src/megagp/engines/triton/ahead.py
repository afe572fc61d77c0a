"""The programs compiled for a GPU that need not be there, and what the compiler made of them.

Triton's wheel brings ptxas and the disassembler, so registers, spills, shared memory and the
instructions per pair of points are facts; how long those take is an estimate (docs/gpu.md).
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from megagp.engines.triton import kernels, launch
from megagp.engines.triton.pairs import PANEL

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
POINTERS = {"float32": "*fp32", "float64": "*fp64"}


@dataclass(frozen=True)
class Compiled:
    """What one program needs: per thread, per program, and per pair of points.

    per_pair: instructions of each kind per pair and thread, loops counted as often as they run;
    None where the compiler changed the loops beyond recognition.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    instructions: int
    per_pair: dict[str, float] | None


def compile_product(
    architecture: int,
    *,
    d: int,
    t: int,
    family: int = 1,
    dtype: str = "float32",
    shape: tuple[int, int] = launch.SHAPES[0],
) -> Compiled:
    """The symmetric product for sm_<architecture>, t of PRODUCT_WIDTHS."""
    padded, size = launch.product_blocks(d, t)
    rows = launch.product_strip(d)
    points = POINTERS[dtype]
    arguments = dict.fromkeys(("x", "z", "vx", "vz", "row_sums", "col_sums"), points)
    constants = {"D": padded, "DB": size, "T": t, "STRIP": rows, "FAMILY": family}
    return _compile(
        kernels.product, architecture, arguments, constants, shape, [padded // size], rows
    )


def compile_gradient(
    architecture: int,
    *,
    d: int,
    t: int,
    family: int = 1,
    dtype: str = "float32",
    shape: tuple[int, int] = launch.SHAPES[0],
) -> Compiled:
    """The symmetric gradient by hyperparameters, t of GRADIENT_WIDTHS."""
    padded, size = launch.blocks(d, launch.UNROLLED_FEW)
    rows = launch.gradient_strip(d)
    points = POINTERS[dtype]
    arguments = dict.fromkeys(("x", "z", "left", "right", "row_sums", "col_sums"), points)
    arguments["sums"] = "*fp64"
    constants = {"INPUTS": False, "C": d, "D": padded, "DB": size, "T": t, "STRIP": rows}
    constants |= {"FAMILY": family, "WIDTH": launch.sums_width(d)}
    trips = [padded // size, d]
    return _compile(kernels.gradient, architecture, arguments, constants, shape, trips, rows)


def _compile(
    program: Any,
    architecture: int,
    arguments: dict[str, str],
    constants: dict[str, Any],
    shape: tuple[int, int],
    inner_trips: Sequence[int],
    rows: int,
) -> Compiled:
    columns, warps = shape
    constants = {"SYMMETRIC": True, "PANEL": PANEL, "PRECISION": launch.PRECISION, **constants}
    constants["BN"] = columns
    types = {"pairs": "*i32", "nx": "i32", "nz": "i32", "panels": "i32", **arguments}
    names = program.arg_names
    source = ASTSource(
        program,
        {name: types.get(name, "constexpr") for name in names},
        {(names.index(name),): value for name, value in constants.items()},
        # As at run time: arrays are aligned, and panels have a multiple of 16 points.
        {
            (names.index(name),): [["tt.divisibility", 16]]
            for name, kind in types.items()
            if kind.startswith("*") or name in ("nx", "nz")
        },
    )
    options = {"num_warps": warps, "enable_fp_fusion": True}
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    usage, code = _disassemble(compiled.asm["cubin"])
    trips = [PANEL // columns, *(count for count in inner_trips if count > 1)]
    counts = executed(code, trips)
    pairs = rows * PANEL / (32 * warps)
    return Compiled(
        registers=usage["REG"],
        spilled_bytes=usage["STACK"] + usage["LOCAL"],
        shared_bytes=compiled.metadata.shared,
        instructions=len(re.findall(INSTRUCTION, code)),
        per_pair=None if counts is None else {k: c / pairs for k, c in counts.items()},
    )


def _disassemble(binary: bytes) -> tuple[dict[str, int], str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.cubin"
        path.write_bytes(binary)
        usage = _run("cuobjdump", "--dump-resource-usage", str(path))
        code = _run("nvdisasm", "-c", str(path))
    return {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", usage)}, code


def _run(tool: str, *arguments: str) -> str:
    command = [str(TOOLS / tool), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


INSTRUCTION = r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)"


def executed(code: str, trips: Sequence[int]) -> Counter[str] | None:
    """Instructions that a thread executes, by kind, from a disassembly.

    trips: how often the outer loop runs, and each loop inside it, in order. None if the loops
    are not these. A loop is what lies between a label and a later branch back to it.
    """
    lines = code.splitlines()
    labels = {line.rstrip(":"): at for at, line in enumerate(lines) if line.startswith(".L")}
    loops = []
    for end, line in enumerate(lines):
        jump = re.search(r"BRA `\((\.L\w+)\)", line)
        if jump and labels[jump[1]] < end - 1:  # the last line of a program is a branch to itself
            loops.append((labels[jump[1]], end))
    loops.sort()
    if len(loops) == 1:  # those inside were unrolled
        trips = trips[:1]
    nested = all(loops[0][0] < start and end < loops[0][1] for start, end in loops[1:])
    if len(loops) != len(trips) or not nested:
        return None
    total: Counter[str] = Counter()
    for at, line in enumerate(lines):
        kind = re.search(INSTRUCTION, line)
        if kind:
            times = 1
            for (start, end), count in zip(loops, trips, strict=True):
                times *= count if start < at <= end else 1
            total[kind[1]] += times
    return total
