"""Learning hyperparameters by maximising the marginal likelihood."""

from megagp.training.objective import Objective, Solving, Tally
from megagp.training.recipe import METHODS, Listener, Phase, Recipe, Step, Trained, train

__all__ = [
    "METHODS",
    "Listener",
    "Objective",
    "Phase",
    "Recipe",
    "Solving",
    "Step",
    "Tally",
    "Trained",
    "train",
]
