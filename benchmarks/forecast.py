"""What `megagp plan` forecasts for a fit, beside what the fit then takes.

python benchmarks/forecast.py [--n 50000 100000] [--joints 6]
"""

from __future__ import annotations

import argparse
import resource
import time

from megagp import GPRegressor
from megagp.datasets import robot_arm
from megagp.experiments.machine import facts
from megagp.planning import calibrate, forecast, workload


def compare(n: int, joints: int) -> None:
    X, y = robot_arm(n, joints, 0.05, 0)
    d = X.shape[1]
    legs = workload(n, d)
    start = time.perf_counter()
    rates = calibrate(d, columns=max(leg.columns for leg in legs))
    print(f"n = {n}, d = {d}; calibration {time.perf_counter() - start:.1f} s")
    planned = forecast(n, d, legs, rates)
    start = time.perf_counter()
    found = GPRegressor(random_state=0).fit(X, y).diagnostics_
    total = time.perf_counter() - start
    print(
        "| leg | forecast s | measured s | ratio | evaluations | iterations per evaluation | rank |"
    )
    print("|---|---|---|---|---|---|---|")
    measured = [*found["phases"], {"phase": "precompute", **found["precompute"]}]
    for part, fact in zip(planned.parts, measured, strict=True):
        leg, evaluations = part.leg, fact.get("evaluations", 1)
        print(
            f"| {leg.name} | {part.seconds:.1f} | {fact['seconds']:.1f} | "
            f"{part.seconds / fact['seconds']:.2f} | {leg.evaluations:.1f}, {evaluations} | "
            f"{leg.iterations:.1f}, {fact['iterations'] / evaluations:.1f} | "
            f"{leg.rank}, {fact.get('rank', '')} |"
        )
    print(f"| all | {planned.seconds:.1f} | {total:.1f} | {planned.seconds / total:.2f} | | | |")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"memory: forecast {planned.memory / 1e9:.2f} GB, peak of the process {peak / 1e9:.2f} GB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, nargs="+", default=[50_000, 100_000])
    parser.add_argument("--joints", type=int, default=6)
    options = parser.parse_args()
    print(facts())
    for n in options.n:
        compare(n, options.joints)


if __name__ == "__main__":
    main()
