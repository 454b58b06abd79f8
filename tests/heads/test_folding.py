"""Folding omega away changes the parameters and not the function."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.attention import LatentAttention
from headjax.core.kind import Kind
from headjax.core.norms import LayerNorm, RMSNorm
from headjax.core.tensors import flatten
from headjax.heads.folding import fold_shortcuts
from headjax.models import EncoderDecoderModel, EncoderModel
from headjax.models.embeddings import Embeddings, NoPositions, Sinusoidal
from headjax.models.model import load
from headjax.models.residuals import PostNorm, ScaledPostNorm
from headjax.models.stack import Stack
from headjax.models.sublayers import Dense, GatedDense
from tests import tiny
from tests.closeness import assert_close

TEN_TIMES = 10.0


def layer(attention=None, **fields):
    return tiny.layer(attention, residual=ScaledPostNorm(LayerNorm()), **fields)


def with_shortcuts(config):
    """The model with every parameter drawn at random, and omegas far from one."""
    model = tiny.model(config)

    def spread(path, array):
        return 1.0 + TEN_TIMES * jnp.abs(array - 1.0) if path[-1].key == "shortcut" else array

    return model.replace(params=jax.tree_util.tree_map_with_path(spread, model.params))


def embeddings(norm=True):
    return Embeddings(vocab_size=tiny.VOCABULARY, positions=Sinusoidal(), norm=LayerNorm() if norm else None)


def kinds(stack):
    return [type(one.residual) for one in stack.layers]


FORMULATIONS = (
    layer(),
    layer(tiny.collaborative()),
    layer(tiny.grouped(4, 2, 4), feed_forward=GatedDense(8)),
    dataclasses.replace(
        layer(Kind(LatentAttention, num_heads=2, head_dim=4, rank=6)), residual=ScaledPostNorm(RMSNorm())
    ),
)


@pytest.fixture(scope="module")
def batch():
    tokens = tiny.tokens(2, 6)["input_ids"]
    return {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}


def test_an_encoder_of_every_kind_of_layer_computes_the_same(batch, tmp_path):
    config = EncoderModel(width=tiny.WIDTH, embeddings=embeddings(), encoder=Stack(layers=FORMULATIONS))
    model = with_shortcuts(config)
    folded = fold_shortcuts(model)
    assert set(kinds(folded.config.encoder)) == {PostNorm}
    assert not [path for path in flatten(folded.params) if path.endswith("shortcut")]
    hidden = model(batch).hidden
    assert float(jnp.abs(hidden).max()) > 1.0
    assert_close(folded(batch).hidden, hidden, sums=tiny.SUMS)
    unscaled = model.replace(config=folded.config, params=without_shortcuts(model.params))
    assert float(jnp.abs(unscaled(batch).hidden - hidden).max()) > 0.1  # leaving omega out is another function
    assert folded.history[-1]["action"] == "fold shortcuts"
    folded.save(tmp_path / "folded")
    np.testing.assert_array_equal(load(tmp_path / "folded")(batch).hidden, folded(batch).hidden)


def without_shortcuts(params):
    return {
        name: without_shortcuts(entry) if isinstance(entry, dict) else entry
        for name, entry in params.items()
        if name != "shortcut"
    }


def test_an_encoder_decoder_keeps_what_the_decoder_reads(batch):
    crossed = dataclasses.replace(layer(), cross_attention=tiny.multi_head())
    config = EncoderDecoderModel(
        width=tiny.WIDTH,
        embeddings=embeddings(),
        encoder=Stack(layers=(layer(),) * 2),
        decoder=Stack(layers=(crossed,) * 2),
    )
    model = with_shortcuts(config)
    folded = fold_shortcuts(model)
    given = batch | {"labels": batch["input_ids"]}
    assert_close(folded(given).logits, model(given).logits, sums=tiny.SUMS)


def test_without_a_norm_before_it_the_first_omega_stays(batch):
    config = tiny.decoder_config(
        embeddings=Embeddings(vocab_size=tiny.VOCABULARY, positions=NoPositions()),
        decoder=Stack(layers=(layer(feed_forward=Dense(8)),) * 3),
    )
    model = with_shortcuts(config)
    folded = fold_shortcuts(model)
    assert kinds(folded.config.decoder) == [ScaledPostNorm, PostNorm, PostNorm]
    first = folded.params["decoder"]["layers_0_0"]
    assert np.ptp(first["attention_residual"]["shortcut"]) > 0.1
    np.testing.assert_array_equal(first["feed_forward_residual"]["shortcut"], np.ones((1, tiny.WIDTH)))
    assert_close(folded(batch).logits, model(batch).logits, sums=tiny.SUMS)
