"""The tiles engine on a device that is not the CPU: nothing is copied or waited for in its loops.

Tensors on the meta device have shapes and no numbers: reading one raises. (Fake tensors on "cuda"
would show the same, but a build of torch without CUDA can't index them.)
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import reference
from megagp.engines.tiles import TEMPORARIES, TilesEngine

CASES = reference.kernel_cases(2)
BUDGET = 64 * 256 * 8 * TEMPORARIES  # several tiles


class Copies(TorchDispatchMode):
    """Notes operations whose arguments and results are on different devices."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        tensors = [t for t in (*arguments, result) if isinstance(t, torch.Tensor) and t.ndim]
        if len({t.device.type for t in tensors}) > 1:
            self.found.append(str(function))
        return result


@pytest.mark.parametrize("case", CASES)
def test_no_copies_and_no_waiting(case):
    X, Z, U, V = (
        torch.empty(n, c, dtype=torch.float64, device="meta")
        for n, c in ((300, 2), (600, 2), (300, 3), (600, 3))
    )
    prepared = TilesEngine(BUDGET).prepare(CASES[case], X, Z, torch.float32, 0.0)
    with Copies() as copies:
        product = prepared.matmul(V)
        gradient = prepared.gradient(U, V, inputs=True)
    assert copies.found == []
    assert product.device.type == gradient.X.device.type == "meta"
    assert product.shape == (300, 3)
    assert all(g.device.type == "meta" for g in gradient.hyperparameters.values())


def test_the_watch_sees_a_copy():
    with Copies() as copies:
        torch.ones(3).to("meta")
    assert copies.found


def test_reading_a_number_is_an_error():
    with pytest.raises(RuntimeError):
        float(torch.ones(1, device="meta"))
