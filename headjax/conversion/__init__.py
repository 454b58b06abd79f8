"""Convert a trained model's attention to another formulation, or its layers to other layers.

>>> headjax.conversion.parse_target("grouped:kv_heads=2") == headjax.conversion.ToGrouped(kv_heads=2)
True
"""

from headjax.conversion.collaborative import ToCollaborative
from headjax.conversion.deep import ToDeep
from headjax.conversion.grouped import ToGrouped
from headjax.conversion.latent import ToLatent
from headjax.conversion.model import Conversion, convert, convert_attention, parse_target
from headjax.conversion.per_head import ToFixed
from headjax.conversion.target import LayerError, Target

__all__ = [
    "Conversion",
    "LayerError",
    "Target",
    "ToCollaborative",
    "ToDeep",
    "ToFixed",
    "ToGrouped",
    "ToLatent",
    "convert",
    "convert_attention",
    "parse_target",
]
