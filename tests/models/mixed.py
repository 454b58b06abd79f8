"""Models with a layer of each of some formulations: one program shows them all."""

from collections.abc import Iterable
from typing import Any

from headjax.models import VisionConfig
from headjax.models.tasks import MaskedLanguageModel
from headjax.nn import Kind
from tests import tiny
from tests.models.test_encoder import config as encoder_config
from tests.models.test_encoder_decoder import translation
from tests.models.test_vision import PATCHES


def decoder(attentions: Iterable[Kind]) -> Any:
    return tiny.decoder_config(*(tiny.layer(attention) for attention in attentions))


def encoder(attentions: Iterable[Kind]) -> Any:
    attentions = tuple(attentions)
    return encoder_config(attention=attentions, num_layers=len(attentions), task=MaskedLanguageModel())


def encoder_decoder(attentions: Iterable[Kind]) -> Any:
    """Every formulation in the encoder, the decoder and between them."""
    attentions = tuple(attentions)
    slots = dict.fromkeys(("attention", "decoder_attention", "cross_attention"), attentions)
    return translation(num_layers=len(attentions), **slots)


def vision(attentions: Iterable[Kind]) -> Any:
    attentions = tuple(attentions)
    return VisionConfig(
        **PATCHES, attention=attentions, hidden=32, width=tiny.WIDTH, num_layers=len(attentions),
        initializer=tiny.decoder_config().initializer,
    )  # fmt: skip


MODELS = {"encoder": encoder, "decoder": decoder, "encoder_decoder": encoder_decoder, "vision": vision}
