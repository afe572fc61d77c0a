"""What the compiler makes of the triton engine, for GPUs that need not be there.

    python benchmarks/triton_static.py [--architectures 80 90] [--dimensions 3 9 20]

Prints registers, spills, shared memory and instructions per pair of points, and from those a
roofline: the rate at which the busiest unit of the GPU would be busy all the time.
"""

from __future__ import annotations

import argparse

from megagp.engines.triton import launch
from megagp.engines.triton.ahead import Compiled, compile_gradient, compile_product
from megagp.planning.roofline import GPUS, pairs_per_second

ARCHITECTURE_OF = {gpu.architecture: gpu for gpu in GPUS.values()}


def row(name: str, architecture: int, d: int, t: int, found: Compiled) -> str:
    counts = found.per_pair
    cells = [
        f"sm_{architecture}",
        name,
        d,
        t,
        found.registers,
        found.spilled_bytes,
        f"{found.shared_bytes / 1024:.0f}",
        found.instructions,
    ]
    if counts is None:
        cells += ["", "", "", "", ""]
    else:
        cells += [f"{sum(counts.values()):.0f}"]
        cells += [f"{sum(counts.get(k, 0) for k in kinds):.1f}" for kinds in SHOWN]
        gpu = ARCHITECTURE_OF.get(architecture)
        cells += ["" if gpu is None else f"{pairs_per_second(gpu, counts) / 1e9:.0f}"]
    return "| " + " | ".join(map(str, cells)) + " |"


SHOWN = (("FFMA", "FADD", "FMUL"), ("MUFU",), ("LDG", "LDS", "STS", "SHFL", "LDGSTS", "LDSM"))
HEAD = (
    "target",
    "program",
    "d",
    "t",
    "registers",
    "spilled bytes",
    "shared kB",
    "instructions",
    "executed per pair",
    "float32",
    "sqrt, exp2",
    "memory, shuffles",
    "roofline, 10⁹ evaluated pairs/s",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--architectures", type=int, nargs="+", default=[80, 90])
    parser.add_argument("--dimensions", type=int, nargs="+", default=[3, 9, 20])
    parser.add_argument("--family", type=int, default=1, help="0-2: Matérn 1/2, 3/2, 5/2; 3: RBF")
    options = parser.parse_args()
    print("| " + " | ".join(HEAD) + " |")
    print("|" + "---|" * len(HEAD))
    for architecture in options.architectures:
        for d in options.dimensions:
            for t in launch.PRODUCT_WIDTHS:
                found = compile_product(architecture, d=d, t=t, family=options.family)
                print(row("product", architecture, d, t, found), flush=True)
            for t in launch.GRADIENT_WIDTHS:
                found = compile_gradient(architecture, d=d, t=t, family=options.family)
                print(row("gradient", architecture, d, t, found), flush=True)


if __name__ == "__main__":
    main()
