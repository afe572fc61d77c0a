"""A stand-in for the estimator with its interface: least squares, saved as JSON."""

import json
from pathlib import Path

import numpy as np

from megagp.kernels import Matern32


class GPRegressor:
    made = None  # the options of the last one

    def __init__(
        self,
        kernel=None,
        *,
        ard=True,
        mean="constant",
        quality="usual",
        checkpoint=None,
        random_state=None,
        verbose=0,
    ):
        self.kernel_ = kernel or Matern32()
        GPRegressor.made = {"kernel": kernel, "ard": ard, "mean": mean, "verbose": verbose}
        GPRegressor.made["quality"] = quality

    def fit(self, X, y):
        self.n_samples_, self.n_features_in_ = X.shape
        self.coef_ = np.linalg.lstsq(X, y, rcond=None)[0].tolist()
        self.noise_variance_, self.log_marginal_likelihood_ = 0.25, -12.5
        self.diagnostics_ = {
            "phases": [{"phase": "pretrain, Adam", "seconds": 1.5, "loss": 0.25}],
            "precompute": {"seconds": 2.0, "status": "CONVERGED"},
        }
        return self

    def predict(self, X, return_std=False):
        assert return_std
        return X @ np.array(self.coef_), np.full(len(X), 0.5)

    def save(self, path, extra=None):
        state = {name: value for name, value in vars(self).items() if name != "kernel_"}
        Path(path).write_text(json.dumps({**state, "extra_": extra or {}}))


def load(path):
    model = GPRegressor()
    vars(model).update(json.loads(Path(path).read_text()))
    return model
