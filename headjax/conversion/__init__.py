"""Turning a trained model's attention into another formulation."""

from headjax.conversion.collaborative import ToCollaborative
from headjax.conversion.conversion import Conversion, LayerError, convert
from headjax.conversion.fixed import ToFixed
from headjax.conversion.gated import ToGated
from headjax.conversion.grouped import ToGrouped
from headjax.conversion.latent import ToLatent
from headjax.conversion.parse import parse_target
from headjax.conversion.target import Target
from headjax.conversion.tucker import ToTucker

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
