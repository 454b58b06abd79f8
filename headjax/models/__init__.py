"""Models: a flat config for each family, the Flax module that it describes, generation."""

from headjax.models.config import Batch, Loss, ModelConfig, Output
from headjax.models.decoder import DecoderConfig
from headjax.models.encoder import EncoderConfig
from headjax.models.encoder_decoder import EncoderDecoderConfig
from headjax.models.model import Model
from headjax.models.vision import VisionConfig
from headjax.nn.compute import Compute
from headjax.nn.passes import Pass

__all__ = [
    "Batch",
    "Compute",
    "DecoderConfig",
    "EncoderConfig",
    "EncoderDecoderConfig",
    "Loss",
    "Model",
    "ModelConfig",
    "Output",
    "Pass",
    "VisionConfig",
]
