"""The triton engine's programs compiled for GPUs that are not here."""

import pytest

pytest.importorskip("triton")

from megagp.engines.triton import launch
from megagp.engines.triton.ahead import compile_gradient, compile_product, executed

ARCHITECTURES = [80, 90]  # A100, H100
PROGRAMS = {
    **{f"product-{t}": (compile_product, t) for t in launch.PRODUCT_WIDTHS},
    **{f"gradient-{t}": (compile_gradient, t) for t in launch.GRADIENT_WIDTHS},
}


def check(program, architecture, **case):
    compile_ahead, t = PROGRAMS[program]
    found = compile_ahead(architecture, t=t, **case)
    assert found.spilled_bytes == 0
    assert found.registers <= 255
    # What an A100 gives a program at most is 163 kB; two programs should fit.
    assert found.shared_bytes <= 81 * 1024
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("program", ["product-1", "product-16", "gradient-32"])
def test_nothing_spills(program, architecture):
    found = check(program, architecture, d=9)
    # A pair needs nine differences and nine squares, a root and a power.
    assert found.per_pair["FFMA"] + found.per_pair["FADD"] + found.per_pair["FMUL"] >= 18
    assert 2 <= found.per_pair["MUFU"] < 2.1


@pytest.mark.slow
@pytest.mark.parametrize("family", range(4))
@pytest.mark.parametrize("d", [1, 3, 9, 20, 90])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_spills_anywhere(program, architecture, d, family):
    check(program, architecture, d=d, family=family)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_float64_compiles(program, architecture):
    compile_ahead, t = PROGRAMS[program]
    assert compile_ahead(architecture, d=9, t=t, dtype="float64").registers <= 255


LISTING = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   FFMA R1, R2, R3, R4 ;
.L_x_0:
        /*0020*/              @!P0 FADD R1, R2, R3 ;
        /*0030*/               @P0 BRA `(.L_x_0) ;
        /*0040*/                   BRA `(.L_x_1) ;
        /*0050*/                   EXIT ;
.L_x_2:
        /*0060*/                   BRA `(.L_x_2);
"""


def test_loops_count_as_often_as_they_run():
    found = executed(LISTING, [10, 3])
    assert found == {"MOV": 1, "FFMA": 10, "FADD": 30, "BRA": 30 + 10 + 1, "EXIT": 1}
    assert executed(LISTING, [10]) is None
