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
