"""Models: a flat config for each family, the Flax module that it describes, generation.

>>> isinstance(headjax.demo_model(), headjax.models.Decoder)
True
"""

from headjax.models.config import Batch, Loss, ModelConfig, Output
from headjax.models.decoder import Decoder, DecoderConfig
from headjax.models.encoder import Encoder, EncoderConfig
from headjax.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from headjax.models.model import Model
from headjax.models.vision import Vision, VisionConfig
from headjax.nn.block import Compute, ForwardOptions

__all__ = [
    "Batch",
    "Compute",
    "Decoder",
    "DecoderConfig",
    "Encoder",
    "EncoderConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "ForwardOptions",
    "Loss",
    "Model",
    "ModelConfig",
    "Output",
    "Vision",
    "VisionConfig",
]
