"""A fit under torchrun whose rank 1 dies in the second evaluation of the first attempt."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from distributed import programs
from megagp import distributed
from megagp.training import objective

folder = Path(sys.argv[1])
attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), distributed.join(60.0).rank
(folder / f"attempt{attempt}.rank{rank}").touch()
stochastic, made = objective.stochastic, 0


def deadly(*args, **options):
    global made
    if attempt == 0 and rank == 1 and made == 1:
        os._exit(9)
    made += 1
    return stochastic(*args, **options)


objective.stochastic = deadly
X, y = programs.data(1600)
model = programs.small_regressor(folder / "checkpoint").fit(X, y)
model.save(folder / "model.mgp")
if rank == 0:
    (folder / "evaluations").write_text(str(made))
