"""What a fit will take, before it is begun: work, memory, communication, time.

workload     what a fit consists of: phases, evaluations, iterations, ranks
calibration  how fast this machine is at each part, from a second or two of measuring
roofline     how fast a GPU could be at most, from its data sheet and the compiler's counts
forecast     the two multiplied, and what it looks like
"""

from megagp.planning.calibration import calibrate
from megagp.planning.forecast import Forecast, forecast, partitions
from megagp.planning.rates import Rates
from megagp.planning.roofline import GPUS, roofline
from megagp.planning.workload import Leg, workload

__all__ = [
    "GPUS",
    "Forecast",
    "Leg",
    "Rates",
    "calibrate",
    "forecast",
    "partitions",
    "roofline",
    "workload",
]
