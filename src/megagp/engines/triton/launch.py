"""How the programs of kernels.py are started: tile shapes, grids, and what is compiled in.

Tile shapes are tuned on the device, once per process for each number of dimensions and columns:
the first entry of SHAPES is the default, the one that is compiled and checked without a device.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
import triton
from torch import Tensor

from megagp.engines.triton import kernels
from megagp.engines.triton.engine import interpreted
from megagp.engines.triton.pairs import PANEL

# Columns of a tile, warps of a program. The interpreter is quickest with few, large tiles.
SHAPES = ((128, 4),) if interpreted() else ((32, 4), (16, 4), (32, 8), (64, 4), (64, 8))
# Columns of V that a product is compiled for, and of [U, W] for a gradient: t is cut and padded
# to these. Between 1 and 16 nothing is gained: sums across threads cost what products do.
PRODUCT_WIDTHS, GRADIENT_WIDTHS = (1, 16), (16, 32)
# Dimensions unrolled at once; more are cut into equal blocks of at most that. With one column the
# compiler would keep all of a strip's features in registers, and in a gradient, which visits
# them twice, there are fewer to spare.
UNROLLED_MANY, UNROLLED_FEW = 9, 3
# Products in full float32: tensor cores would round their factors to 11 bits.
PRECISION = "ieee"
GATHERED = 1024
BLOCK = 32, 64

_configs = [triton.Config({"BN": columns}, num_warps=warps) for columns, warps in SHAPES]
_product = triton.autotune(_configs, key=["FAMILY", "D", "T", "SYMMETRIC"])(kernels.product)
_gradient = triton.autotune(_configs, key=["FAMILY", "D", "T", "SYMMETRIC"])(kernels.gradient)


def padded_dimensions(d: int) -> int:
    """Rows of the features' array: d, and zeros to whole blocks."""
    return max(blocks(d, UNROLLED_MANY)[0], blocks(d, UNROLLED_FEW)[0])


def blocks(d: int, most: int) -> tuple[int, int]:
    """d padded to whole blocks of at most `most`, and the size of a block."""
    count = max(1, -(-d // most))
    size = -(-d // count)
    return count * size, size


def product_blocks(d: int, t: int) -> tuple[int, int]:
    """d padded for a product with t columns, and how many dimensions are unrolled at once."""
    return blocks(d, UNROLLED_FEW if t == 1 else UNROLLED_MANY)


def product_strip(d: int) -> int:
    """Rows of a tile: with few dimensions, there are registers for more of them."""
    return 128 if d <= UNROLLED_MANY else 64


def gradient_strip(d: int) -> int:
    """The same for a gradient. One dimension leaves ptxas so much room that it takes too little."""
    return 32 if d == 1 else 64


def sums_width(d: int) -> int:
    """Sums of a gradient: one per dimension, one for the outputscale, to a power of two."""
    return int(triton.next_power_of_2(d + 1))


def product(
    x: Tensor,
    z: Tensor,
    v: Tensor,
    pairs: Tensor,
    rows: Tensor,
    cols: Tensor,
    *,
    panels: int,
    symmetric: bool,
    family: int,
    d: int,
) -> None:
    """Sums of K V over each panel pair: rows, slots x 1 x PANEL x T, and, if symmetric, cols."""
    padded, size = product_blocks(d, v.shape[1])
    with _device_of(x):
        _product[(len(pairs), PANEL // product_strip(d))](
            x,
            z,
            v,
            v,
            pairs,
            rows,
            cols,
            x.shape[1],
            z.shape[1],
            panels,
            SYMMETRIC=symmetric,
            FAMILY=family,
            D=padded,
            DB=size,
            T=v.shape[1],
            PANEL=PANEL,
            STRIP=product_strip(d),
            PRECISION=PRECISION,
            enable_fp_fusion=True,
        )


def gradient(
    x: Tensor,
    z: Tensor,
    left: Tensor,
    right: Tensor,
    pairs: Tensor,
    sums: Tensor,
    rows: Tensor,
    cols: Tensor,
    *,
    panels: int,
    symmetric: bool,
    family: int,
    d: int,
) -> None:
    """Sums over each panel pair for the derivatives; by inputs too unless rows has no columns."""
    inputs = rows.shape[-1] > 0
    padded, size = blocks(d, UNROLLED_FEW)
    constants = {
        "INPUTS": inputs,
        "SYMMETRIC": symmetric,
        "FAMILY": family,
        "C": d,
        "D": padded,
        "DB": size,
        "T": left.shape[1],
        "PANEL": PANEL,
        "STRIP": gradient_strip(d),
        "WIDTH": sums.shape[-1],
        "PRECISION": PRECISION,
        "enable_fp_fusion": True,
    }
    program = _gradient
    if inputs:  # the slots of its sums depend on the shape of a tile: no tuning
        program = kernels.gradient
        constants |= {"BN": SHAPES[0][0], "num_warps": SHAPES[0][1]}
    with _device_of(x):
        program[(len(pairs), PANEL // gradient_strip(d))](
            x,
            z,
            left,
            right,
            pairs,
            sums,
            rows,
            cols,
            x.shape[1],
            z.shape[1],
            panels,
            **constants,
        )


def gather(out: Tensor, sums: Tensor, panel: Tensor) -> None:
    """out[p] += all sums of the slots s with panel[s] = p; those beyond the last are left out.

    out: (panels * PANEL) x c, float64; sums: slots x parts x PANEL x c.
    """
    parts, size = sums.shape[1], sums.shape[2] * sums.shape[3]
    count = len(out) // PANEL
    panel, order = panel.sort(stable=True)
    starts = torch.searchsorted(
        panel, torch.arange(count + 1, device=out.device, dtype=panel.dtype)
    )
    with _device_of(out):
        kernels.gather[(count, triton.cdiv(size, GATHERED))](
            out,
            sums,
            order,
            starts,
            size,
            PARTS=parts,
            BLOCK=GATHERED,
            enable_fp_fusion=True,
        )


def block(out: Tensor, x: Tensor, z: Tensor, scale: float, family: int) -> None:
    """out = scale k(x, z), n x m, from features n x d and m x d."""
    n, m = out.shape
    with _device_of(x):
        kernels.block[(triton.cdiv(n, BLOCK[0]), triton.cdiv(m, BLOCK[1]))](
            x,
            z,
            out,
            n,
            m,
            scale,
            FAMILY=family,
            D=x.shape[1],
            BM=BLOCK[0],
            BN=BLOCK[1],
            enable_fp_fusion=True,
        )


def _device_of(x: Tensor) -> AbstractContextManager[None]:
    """Programs go to the current device: make it that of x."""
    found: AbstractContextManager[None] = torch.cuda.device_of(x)  # type: ignore[no-untyped-call]
    return found
