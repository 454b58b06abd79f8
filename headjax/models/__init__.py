"""Architectures built of declared parts, and the model as a value: (config, params)."""

from headjax.models.base import Batch, Gates, Loss, Model, ModelConfig, Options, Output
from headjax.models.compute import Compute
from headjax.models.decoder import DecoderModel
from headjax.models.encoder import EncoderModel
from headjax.models.encoder_decoder import EncoderDecoderModel
from headjax.models.vision import VisionModel

__all__ = [
    "Batch",
    "Compute",
    "DecoderModel",
    "EncoderDecoderModel",
    "EncoderModel",
    "Gates",
    "Loss",
    "Model",
    "ModelConfig",
    "Options",
    "Output",
    "VisionModel",
]
