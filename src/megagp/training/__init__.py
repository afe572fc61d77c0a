"""Learning hyperparameters by maximising the marginal likelihood."""

from megagp.training.objective import Objective, Solving, Tally
from megagp.training.recipe import METHODS, Phase, Recipe, Trained, train

__all__ = ["METHODS", "Objective", "Phase", "Recipe", "Solving", "Tally", "Trained", "train"]
