"""What is kept of memory that was freed."""

import platform
import subprocess
import sys

import pytest

# Page faults of the last steps of training on minibatches.
TRAINING = """
import resource
import numpy as np
from megagp import SVGPRegressor
from megagp.approximate import stochastic
from megagp.estimators import inducing

if not {keep}:
    inducing.keep_freed = lambda: None
seen, step = [], stochastic._Run.step

def counted(run, rows):
    seen.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    return step(run, rows)

stochastic._Run.step = counted
X = np.random.default_rng(0).normal(size=(6 * 1024, 4))
model = SVGPRegressor(
    inducing_points=512, inducing_start="random", epochs=3, polish=False, random_state=0
)
model.fit(X, np.sin(X[:, 0]))
print(seen[-1] - seen[6])
"""


def faults(keep):
    command = [sys.executable, "-c", TRAINING.format(keep=keep)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc's malloc")
def test_matrices_that_a_step_frees_are_kept_for_the_next():
    assert faults(True) < 0.2 * faults(False)


# Megabytes that the system has back of 20, in blocks of 100,000 bytes that lie between small
# ones and have been freed.
HOLES = """
import ctypes
from megagp.memory import _resident, release_freed

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
blocks = [libc.malloc(size) for _ in range(200) for size in (100_000, 5000)]
for block in blocks[::2]:
    ctypes.memset(block, 1, 100_000)
for block in blocks[::2]:
    libc.free(block)
before = _resident()
release_freed()
print((before - _resident()) / 1e6)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc's malloc")
def test_holes_in_the_heap_are_given_back():
    run = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    assert float(run.stdout) > 0.8 * 200 * 0.1
