"""Recipes: the few numbers a person writes down, from which a model's full config is built."""

from headjax.models.recipes.base import Recipe, Start, equal_layers, final_norm
from headjax.models.recipes.bert import Albert, Bert, DistilBert, Roberta
from headjax.models.recipes.directory import Directory
from headjax.models.recipes.language_model import LanguageModel
from headjax.models.recipes.translation import T5, Translation
from headjax.models.recipes.vision import Vit

__all__ = [
    "T5",
    "Albert",
    "Bert",
    "Directory",
    "DistilBert",
    "LanguageModel",
    "Recipe",
    "Roberta",
    "Start",
    "Translation",
    "Vit",
    "equal_layers",
    "final_norm",
]
