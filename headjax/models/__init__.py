"""Architectures built of declared parts, their recipes, and the model: a config's Flax module with arrays in it."""

from headjax.models.compute import Compute
from headjax.models.config import Batch, Loss, ModelConfig, Options, Output
from headjax.models.decoder import DecoderModel, LanguageModel
from headjax.models.encoder import Albert, Bert, DistilBert, EncoderModel, Roberta
from headjax.models.encoder_decoder import T5, EncoderDecoderModel, Translation
from headjax.models.model import Model
from headjax.models.recipe import Directory, Recipe
from headjax.models.vision import VisionModel, Vit

__all__ = [
    "T5",
    "Albert",
    "Batch",
    "Bert",
    "Compute",
    "DecoderModel",
    "Directory",
    "DistilBert",
    "EncoderDecoderModel",
    "EncoderModel",
    "LanguageModel",
    "Loss",
    "Model",
    "ModelConfig",
    "Options",
    "Output",
    "Recipe",
    "Roberta",
    "Translation",
    "VisionModel",
    "Vit",
]
