"""Turning a trained model's attention into another formulation."""

from headjax.convert.collaborative import ToCollaborative
from headjax.convert.conversion import Conversion, LayerError, convert
from headjax.convert.fixed import ToFixed
from headjax.convert.gated import ToGated
from headjax.convert.grouped import ToGrouped
from headjax.convert.latent import ToLatent
from headjax.convert.parse import parse_target
from headjax.convert.target import Target
from headjax.convert.tucker import ToTucker

__all__ = [
    "Conversion",
    "LayerError",
    "Target",
    "ToCollaborative",
    "ToFixed",
    "ToGated",
    "ToGrouped",
    "ToLatent",
    "ToTucker",
    "convert",
    "parse_target",
]
