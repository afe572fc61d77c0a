"""Learning hyperparameters by maximising the marginal likelihood."""

from megagp.training.objective import DENSE_BELOW, Objective, Solving, Tally
from megagp.training.place_effects import PlaceEffects
from megagp.training.place_noise import PlaceNoise, place_noise
from megagp.training.recipe import METHODS, Listener, Phase, Recipe, Started, Step, Trained, train
from megagp.training.replicates import Places, Replicates, places
from megagp.training.representation import choose_representation
from megagp.training.start import start_lengthscale

__all__ = [
    "DENSE_BELOW",
    "METHODS",
    "Listener",
    "Objective",
    "Phase",
    "PlaceEffects",
    "PlaceNoise",
    "Places",
    "Recipe",
    "Replicates",
    "Solving",
    "Started",
    "Step",
    "Tally",
    "Trained",
    "choose_representation",
    "place_noise",
    "places",
    "start_lengthscale",
    "train",
]
