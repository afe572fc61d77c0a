"""The Python of the README runs as it stands there, but for the number of points."""

import re
from pathlib import Path

import numpy as np

README = Path(__file__).parents[1] / "README.md"
FEWER = {"100_000": "1_000", "99_999": "999"}


def blocks():
    found = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)
    for code in found:
        for many, few in FEWER.items():
            code = code.replace(many, few)
        yield code


def test_python_blocks_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).standard_normal((200, 2))
    names = {"X": X, "y": np.sin(X[:, 0]), "X_new": X[:5] + 0.1}
    ran = 0
    for code in blocks():
        exec(compile(code, str(README), "exec"), names)
        ran += 1
    assert ran == 3
    assert (tmp_path / "model.mgp").is_file()
    # The last block only defines a kernel: the code inside runs when that is used.
    X, v = names["X"], names["X"][:, 0]
    squared = ((X[:, None] - X) ** 2).sum(2)
    found = names["KernelOperator"](X, names["Cauchy"](lengthscale=2.0)).matmul(v)
    np.testing.assert_allclose(found, (1 / (1 + squared / 4)) @ v, rtol=1e-4, atol=1e-3)
