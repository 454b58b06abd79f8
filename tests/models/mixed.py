"""Models with a layer of each of some formulations: one program shows them all."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from headjax.attention import Kind
from headjax.models.sublayers import Dense
from headjax.models.tasks import MaskedLanguageModel
from headjax.models.vision import Vit
from tests import tiny
from tests.models.test_encoder import config as encoder_config
from tests.models.test_encoder_decoder import translation
from tests.models.test_vision import PATCHES


def decoder(attentions: Iterable[Kind]) -> Any:
    return tiny.decoder_config(*(tiny.layer(attention) for attention in attentions))


def encoder(attentions: Iterable[Kind]) -> Any:
    attentions = tuple(attentions)
    fields = {"attention_by_layer": attentions, "num_layers": len(attentions)}
    return encoder_config(attention=attentions[0], task=MaskedLanguageModel(), **fields)


def encoder_decoder(attentions: Iterable[Kind]) -> Any:
    """Every formulation in the encoder, the decoder and between them."""
    base, attentions = translation(), tuple(attentions)

    def layers(stack: Any, *slots: str) -> Any:
        changed = (dict.fromkeys(slots, attention) for attention in attentions)
        return dataclasses.replace(
            stack, layers=tuple(dataclasses.replace(stack.layers[0], **fields) for fields in changed)
        )

    return dataclasses.replace(
        base, encoder=layers(base.encoder, "attention"), decoder=layers(base.decoder, "attention", "cross_attention")
    )


def vision(attentions: Iterable[Kind]) -> Any:
    attentions = tuple(attentions)
    return Vit(
        attention=attentions[0],
        attention_by_layer=attentions,
        feed_forward=Dense(32),
        patches=PATCHES,
        width=tiny.WIDTH,
        num_layers=len(attentions),
        initializer=tiny.decoder_config().initializer,
    ).build()


MODELS = {"encoder": encoder, "decoder": decoder, "encoder_decoder": encoder_decoder, "vision": vision}
