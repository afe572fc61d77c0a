"""What the paper published: Wang et al. 2019, "Exact Gaussian Processes on a Million Data Points".

Every figure of its tables 1 to 5, by our names of the data sets. `tests/report/test_paper.py` reads
the tables from the paper's source a second time and compares (MEGAGP_PAPER=<the .tex file>).
"""

from __future__ import annotations

from typing import NamedTuple

METHODS = ("exact", "sgpr", "svgp")  # the order of columns below; m = 512 for SGPR, 1,024 for SVGP
TRIALS = 3  # splits behind each mean of tables 1 to 4
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


class Value(NamedTuple):
    """A published mean, and the standard deviation over splits where there is one."""

    mean: float
    sd: float | None = None


class Dataset(NamedTuple):
    """A data set as the paper has it; n counts training points."""

    name: str
    n: int
    d: int


class Source(NamedTuple):
    """Where in the paper a suite's numbers stand."""

    table: str
    what: str


DATASETS = {
    "pol": Dataset("PoleTele", 9_600, 26),
    "elevators": Dataset("Elevators", 10_623, 18),
    "bike": Dataset("Bike", 11_122, 17),
    "kin40k": Dataset("Kin40K", 25_600, 8),
    "protein": Dataset("Protein", 29_267, 9),
    "keggdirected": Dataset("KeggDirected", 31_248, 20),
    "slice": Dataset("CTslice", 34_240, 385),
    "keggundirected": Dataset("KEGGU", 40_708, 27),
    "3droad": Dataset("3DRoad", 278_319, 3),
    "song": Dataset("Song", 329_820, 90),
    "buzz": Dataset("Buzz", 373_280, 77),
    "houseelectric": Dataset("HouseElectric", 1_311_539, 9),
}

SOURCES = {
    "table1": Source("Table 1", "accuracy with one lengthscale for all inputs"),
    "table2": Source("Table 2", "times with one lengthscale for all inputs"),
    "table3": Source("Table 3 (appendix)", "accuracy with a lengthscale for each input"),
    "table4": Source("Table 4 (appendix)", "times with a lengthscale for each input"),
    "table5": Source("Table 5 (appendix)", "one lengthscale, 100 steps of Adam"),
}

_Row = tuple[Value | None, ...]
V = Value

# Table 1, RMSE: exact, SGPR, SVGP.
_TABLE1_RMSE: dict[str, _Row] = {
    "pol": (V(0.151, 0.012), V(0.217, 0.002), V(0.215, 0.002)),
    "elevators": (V(0.394, 0.006), V(0.437, 0.018), V(0.399, 0.009)),
    "bike": (V(0.220, 0.002), V(0.362, 0.004), V(0.303, 0.004)),
    "kin40k": (V(0.099, 0.001), V(0.273, 0.025), V(0.268, 0.022)),
    "protein": (V(0.536, 0.012), V(0.656, 0.010), V(0.668, 0.005)),
    "keggdirected": (V(0.086, 0.005), V(0.104, 0.003), V(0.096, 0.001)),
    "slice": (V(0.262, 0.448), V(0.218, 0.011), V(1.003, 0.005)),
    "keggundirected": (V(0.118, 0.000), V(0.130, 0.001), V(0.124, 0.002)),
    "3droad": (V(0.101, 0.007), V(0.661, 0.010), V(0.481, 0.002)),
    "song": (V(0.807, 0.024), V(0.803, 0.002), V(0.998, 0.000)),
    "buzz": (V(0.288, 0.018), V(0.300, 0.004), V(0.304, 0.012)),
    "houseelectric": (V(0.055, 0.000), None, V(0.084, 0.005)),
}

# Table 1, NLL: exact, SGPR, SVGP.
_TABLE1_NLL: dict[str, _Row] = {
    "pol": (V(-0.180, 0.036), V(-0.094, 0.008), V(-0.001, 0.008)),
    "elevators": (V(0.619, 0.054), V(0.580, 0.060), V(0.519, 0.022)),
    "bike": (V(0.119, 0.044), V(0.291, 0.032), V(0.272, 0.018)),
    "kin40k": (V(-0.258, 0.084), V(0.087, 0.067), V(0.236, 0.077)),
    "protein": (V(1.018, 0.056), V(0.970, 0.010), V(1.035, 0.006)),
    "keggdirected": (V(-0.199, 0.381), V(-1.123, 0.016), V(-0.940, 0.020)),
    "slice": (V(-0.894, 0.188), V(-0.073, 0.097), V(1.422, 0.005)),
    "keggundirected": (V(-0.419, 0.027), V(-0.984, 0.012), V(-0.666, 0.007)),
    "3droad": (V(0.909, 0.001), V(0.943, 0.002), V(0.697, 0.002)),
    "song": (V(1.206, 0.024), V(1.213, 0.003), V(1.417, 0.000)),
    "buzz": (V(0.267, 0.028), V(0.106, 0.008), V(0.224, 0.050)),
    "houseelectric": (V(-0.152, 0.001), None, V(-1.010, 0.039)),
}

# Table 2, seconds of training: exact, SGPR, SVGP.
_TABLE2_TRAIN: dict[str, _Row] = {
    "pol": (V(41.5, 1.1), V(69.5, 20.5), V(68.7, 4.1)),
    "elevators": (V(41.0, 0.7), V(69.7, 22.5), V(76.5, 5.5)),
    "bike": (V(41.2, 0.9), V(70.0, 22.9), V(77.1, 5.6)),
    "kin40k": (V(42.7, 2.7), V(97.3, 57.9), V(195.4, 14.0)),
    "protein": (V(47.9, 10.1), V(136.5, 53.8), V(198.3, 15.9)),
    "keggdirected": (V(51.0, 6.3), V(132.0, 65.6), V(228.2, 22.9)),
    "slice": (V(199.0, 299.9), V(129.6, 59.2), V(232.1, 20.5)),
    "keggundirected": (V(47.4, 8.6), V(133.4, 62.7), V(287.0, 24.1)),
    "3droad": (V(947.8, 443.8), V(720.5, 330.4), V(2045.1, 191.4)),
    "song": (V(253.4, 221.7), V(473.3, 187.5), V(2373.3, 184.9)),
    "buzz": (V(4283.6, 1407.2), V(1754.8, 1099.6), V(2780.8, 175.6)),
    "houseelectric": (V(4317.3, 147.2), None, V(22062.6, 282.0)),
}

# Table 2, seconds of precomputation (exact only).
_TABLE2_PRECOMPUTE: dict[str, _Row] = {
    "pol": (V(5.14), None, None),
    "elevators": (V(0.95), None, None),
    "bike": (V(0.38), None, None),
    "kin40k": (V(12.3), None, None),
    "protein": (V(7.53), None, None),
    "keggdirected": (V(8.06), None, None),
    "slice": (V(7.57), None, None),
    "keggundirected": (V(18.9), None, None),
    "3droad": (V(118 * MINUTE), None, None),
    "song": (V(22.2 * MINUTE), None, None),
    "buzz": (V(42.6 * MINUTE), None, None),
    "houseelectric": (V(3.40 * HOUR), None, None),
}

# Table 2, seconds for 1,000 means and variances: exact, SGPR, SVGP.
_TABLE2_PREDICT: dict[str, _Row] = {
    "pol": (V(0.006), V(0.006), V(0.273)),
    "elevators": (V(0.007), V(0.007), V(0.212)),
    "bike": (V(0.007), V(0.009), V(0.182)),
    "kin40k": (V(0.011), V(0.012), V(0.220)),
    "protein": (V(0.014), V(0.009), V(0.146)),
    "keggdirected": (V(0.015), V(0.016), V(0.143)),
    "slice": (V(0.022), V(0.014), V(0.133)),
    "keggundirected": (V(0.018), V(0.013), V(0.211)),
    "3droad": (V(0.119), V(0.068), V(0.130)),
    "song": (V(0.123), V(0.099), V(0.134)),
    "buzz": (V(0.131), V(0.114), V(0.142)),
    "houseelectric": (V(0.958), None, V(0.166)),
}

# Table 3, RMSE: exact, SGPR, SVGP.
_TABLE3_RMSE: dict[str, _Row] = {
    "pol": (V(0.088, 0.003), V(0.113, 0.005), V(0.109, 0.002)),
    "elevators": (V(0.399, 0.011), V(0.426, 0.007), V(0.388, 0.010)),
    "bike": (V(0.043, 0.012), V(0.094, 0.010), V(0.077, 0.005)),
    "kin40k": (V(0.080, 0.001), V(0.225, 0.026), V(0.240, 0.007)),
    "protein": (V(0.511, 0.009), V(0.619, 0.003), V(0.613, 0.011)),
    "keggdirected": (V(0.083, 0.001), V(0.104, 0.002), V(0.105, 0.003)),
    "slice": (V(0.497, 0.029), V(0.217, 0.009), V(1.004, 0.005)),
    "keggundirected": (V(0.120, 0.001), V(0.130, 0.001), V(0.126, 0.002)),
    "3droad": (V(0.110, 0.017), V(0.578, 0.001), V(0.390, 0.005)),
    "song": (V(0.774, 0.001), V(0.816, 0.038), V(0.998, 0.000)),
    "buzz": (V(0.279, 0.002), V(0.289, 0.001), V(0.270, 0.012)),
    "houseelectric": (V(0.054, 0.000), None, V(0.127, 0.046)),
}

# Table 3, NLL: exact, SGPR, SVGP.
_TABLE3_NLL: dict[str, _Row] = {
    "pol": (V(-0.660, 0.081), V(-0.817, 0.005), V(-0.644, 0.008)),
    "elevators": (V(0.626, 0.043), V(0.528, 0.015), V(0.486, 0.019)),
    "bike": (V(-1.323, 0.170), V(-0.805, 0.005), V(-0.984, 0.021)),
    "kin40k": (V(-0.755, 0.009), V(-0.073, 0.055), V(0.091, 0.033)),
    "protein": (V(0.960, 0.033), V(0.915, 0.004), V(0.952, 0.018)),
    "keggdirected": (V(-0.838, 0.031), V(-1.163, 0.005), V(-0.853, 0.033)),
    "slice": (V(0.939, 0.004), V(-0.037, 0.060), V(1.423, 0.005)),
    "keggundirected": (V(-0.540, 0.035), V(-1.049, 0.010), V(-0.653, 0.013)),
    "3droad": (V(1.239, 0.025), V(0.791, 0.033), V(0.486, 0.010)),
    "song": (V(1.162, 0.002), V(1.243, 0.083), V(1.417, 0.000)),
    "buzz": (V(0.161, 0.026), V(0.092, 0.017), V(0.119, 0.042)),
    "houseelectric": (V(-0.207, 0.001), None, V(0.024, 0.984)),
}

# Table 4, seconds of training: exact, SGPR, SVGP.
_TABLE4_TRAIN: dict[str, _Row] = {
    "pol": (V(40.8, 0.0), V(71.6, 23.7), V(67.6, 5.6)),
    "elevators": (V(40.5, 0.0), V(72.4, 26.6), V(76.1, 4.0)),
    "bike": (V(40.6, 0.1), V(72.1, 25.0), V(75.5, 4.5)),
    "kin40k": (V(41.2, 0.0), V(92.5, 50.1), V(184.8, 17.1)),
    "protein": (V(42.3, 0.1), V(136.4, 49.1), V(199.7, 15.8)),
    "keggdirected": (V(46.7, 4.5), V(171.2, 31.5), V(219.9, 17.8)),
    "slice": (V(41.7, 0.0), V(133.7, 53.6), V(230.0, 18.0)),
    "keggundirected": (V(42.3, 0.2), V(142.7, 59.6), V(285.6, 22.1)),
    "3droad": (V(3592.5, 9.4), V(545.0, 60.6), V(2035.9, 185.4)),
    "song": (V(139.3, 0.6), V(445.7, 170.5), V(2373.7, 167.4)),
    "buzz": (V(1827.0, 379.3), V(1899.1, 164.6), V(2780.4, 191.4)),
    "houseelectric": (V(5563.1, 51.0), None, V(11982.2, 455.2)),
}

# Table 5, RMSE (one run, no standard deviation): exact, SGPR, SVGP.
_TABLE5_RMSE: dict[str, _Row] = {
    "pol": (V(0.154), V(0.219), V(0.218)),
    "elevators": (V(0.374), V(0.436), V(0.386)),
    "bike": (V(0.216), V(0.345), V(0.261)),
    "kin40k": (V(0.093), V(0.257), V(0.177)),
    "protein": (V(0.545), V(0.659), V(0.640)),
    "keggdirected": (V(0.078), V(0.089), V(0.083)),
    "slice": (V(0.050), V(0.199), V(1.011)),
    "keggundirected": (V(0.120), V(0.133), V(0.123)),
    "3droad": (V(0.106), V(0.654), V(0.475)),
    "song": (V(0.761), V(0.803), V(0.999)),
    "buzz": (V(0.265), V(0.387), V(0.270)),
    "houseelectric": (V(0.049), None, V(0.086)),
}

# Table 5, seconds of training: exact, SGPR, SVGP.
_TABLE5_TRAIN: dict[str, _Row] = {
    "pol": (V(22.1), V(40.6), V(68.1)),
    "elevators": (V(17.1), V(41.2), V(112)),
    "bike": (V(18.8), V(41.0), V(109)),
    "kin40k": (V(83.3), V(56.1), V(297)),
    "protein": (V(120), V(65.5), V(300)),
    "keggdirected": (V(107), V(67.0), V(345)),
    "slice": (V(148), V(77.5), V(137)),
    "keggundirected": (V(50.8), V(84.9), V(7.61 * MINUTE)),
    "3droad": (V(7.06 * HOUR), V(8.53 * MINUTE), V(22.1 * MINUTE)),
    "song": (V(6.63 * HOUR), V(9.38 * MINUTE), V(18.5 * MINUTE)),
    "buzz": (V(11.5 * HOUR), V(11.5 * MINUTE), V(1.19 * HOUR)),
    "houseelectric": (V(3.29 * DAY), None, V(4.22 * HOUR)),
}

PUBLISHED: dict[tuple[str, str], dict[str, _Row]] = {
    ("table1", "rmse"): _TABLE1_RMSE,
    ("table1", "nll"): _TABLE1_NLL,
    ("table2", "train"): _TABLE2_TRAIN,
    ("table2", "precompute"): _TABLE2_PRECOMPUTE,
    ("table2", "predict"): _TABLE2_PREDICT,
    ("table3", "rmse"): _TABLE3_RMSE,
    ("table3", "nll"): _TABLE3_NLL,
    ("table4", "train"): _TABLE4_TRAIN,
    ("table5", "rmse"): _TABLE5_RMSE,
    ("table5", "train"): _TABLE5_TRAIN,
}

# GPUs (V100) and kernel partitions p, the same in tables 2, 4 and 5.
DEVICES = {
    "pol": (1, 1),
    "elevators": (1, 1),
    "bike": (1, 1),
    "kin40k": (1, 1),
    "protein": (1, 1),
    "keggdirected": (1, 1),
    "slice": (1, 1),
    "keggundirected": (8, 1),
    "3droad": (8, 16),
    "song": (8, 16),
    "buzz": (8, 19),
    "houseelectric": (8, 218),
}

HARDWARE = (
    "The paper trained on NVIDIA Tesla V100 GPUs, one for sets of up to 34,240 training points "
    "and eight for larger ones, and predicted on one NVIDIA RTX 2080 Ti."
)


def published(suite: str, quantity: str, dataset: str, method: str) -> Value | None:
    """The paper's number, None where it has none; every exact GP is held against its exact GP."""
    rows = PUBLISHED.get((suite, quantity), {})
    column = family(method)
    if column not in METHODS or dataset not in rows:
        return None
    return rows[dataset][METHODS.index(column)]


def best(quantity: str, dataset: str) -> tuple[Value, str, str] | None:
    """The lowest number over all methods and tables, with its suite and method."""
    found = [
        (value, suite, method)
        for (suite, name), rows in PUBLISHED.items()
        if name == quantity and dataset in rows
        for method, value in zip(METHODS, rows[dataset], strict=True)
        if value is not None
    ]
    return min(found, key=lambda each: each[0].mean) if found else None


def family(method: str) -> str:
    """exact of exact-paper, and so on."""
    return method.split("-", 1)[0]
