"""The architecture of a run: the recipe's, as the run's initialisation changes it."""

from __future__ import annotations

from headjax.heads.deepen import Deep
from headjax.initialization.base import Initialization
from headjax.models.config import ModelConfig
from headjax.models.recipe import Recipe

__all__ = ["Deep", "architecture"]  # a config names `deep` among the recipes, so every run has to know it


def architecture(recipe: Recipe, initialization: Initialization | None) -> ModelConfig:
    """Return the config of the model that a run trains.

    Args:
        recipe: the run's `model`.
        initialization: the run's `initialization`; None keeps what the recipe builds.

    Raises:
        ConfigError: fields that do not fit together, or an initialisation that does not fit the recipe's model.
    """
    config = recipe.build()
    return config if initialization is None else initialization.configure(config)
