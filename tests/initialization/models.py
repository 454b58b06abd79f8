"""Deep models that tests initialise."""

from __future__ import annotations

import dataclasses

import jax

from headjax.core.norms import LayerNorm
from headjax.core.tensors import FanIn
from headjax.models import EncoderDecoderModel
from headjax.models.embeddings import Embeddings, Sinusoidal
from headjax.models.residuals import PostNorm
from headjax.models.stack import Stack
from tests import tiny

DEPTH = 3
POST = tiny.layer(residual=PostNorm(), dropout=0.1)
SEEDS = jax.random.key(3)


def post_norm(**fields):
    """A decoder whose fresh embeddings have variance one, and whose sub-layers keep variance."""
    embeddings = Embeddings(vocab_size=tiny.VOCABULARY, positions=Sinusoidal(), norm=LayerNorm())
    stack = Stack(layers=(POST,) * DEPTH)
    return tiny.decoder_config(**{"decoder": stack, "embeddings": embeddings, "initializer": FanIn()} | fields)


def translation(encoder=DEPTH, decoder=2):
    crossed = dataclasses.replace(POST, cross_attention=tiny.multi_head())
    return EncoderDecoderModel(
        width=tiny.WIDTH,
        embeddings=Embeddings(vocab_size=tiny.VOCABULARY, positions=Sinusoidal(), norm=LayerNorm()),
        encoder=Stack(layers=(POST,) * encoder),
        decoder=Stack(layers=(crossed,) * decoder),
        initializer=FanIn(),
    )
