"""The paper's experiments: runs, each in a process of its own, each a line of JSON.

suites   which runs make up a table or a figure
run      what a run is, and the keys of its line
data     sets by name, tables and generated data
methods  exact GPs, SGPR, SVGP, gradient boosting
trace    test error through training
worker   one run: split, whiten, fit, predict, score
launch   its process: time budget, crashes, ranks
results  the lines
bench    one run after another, where it was left off
machine  facts that go with every measurement

What is exported says what runs there are and were; `bench`, which makes them, needs torch.
"""

from megagp.experiments.results import Results
from megagp.experiments.run import METHODS, Record, Run
from megagp.experiments.suites import SUITES, runs

__all__ = ["METHODS", "SUITES", "Record", "Results", "Run", "runs"]
