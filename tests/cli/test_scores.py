"""Scores against scipy's normal distribution."""

import numpy as np
import pytest
from scipy.stats import norm

from megagp.scores import coverage, score


def test_scores():
    rng = np.random.default_rng(0)
    mean, std = rng.standard_normal(500), rng.uniform(0.5, 2, 500)
    y = rng.normal(mean, std)
    found = score(y, mean, std)
    assert found.rmse == pytest.approx(np.linalg.norm(y - mean) / np.sqrt(500))
    assert found.nll == pytest.approx(-norm(mean, std).logpdf(y).mean())
    low, high = norm(mean, std).interval(0.95)
    assert found.coverage == pytest.approx(np.mean((low <= y) & (y <= high)))
    assert "RMSE" in str(found)


def test_coverage_of_every_interval():
    z = norm.ppf((np.arange(1000) + 0.5) / 1000)
    nominal = np.array([0.1, 0.5, 0.9])
    np.testing.assert_allclose(coverage(z, nominal), nominal, atol=2e-3)
