"""Data to try megagp on: a robot arm of any size, and the sets that papers on large GPs report.

collection  which sets there are, their sizes and checksums
files       finding and reading them
download    from the collection uci_datasets into the user's cache
splits      training, validation and test points
arm         a generator
"""

from megagp.datasets.arm import robot_arm
from megagp.datasets.collection import DATASETS, Facts
from megagp.datasets.files import load, locate
from megagp.datasets.splits import Split, split

__all__ = ["DATASETS", "Facts", "Split", "load", "locate", "robot_arm", "split"]
