"""What holds for every architecture: its config is data, and how it is computed changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from headjax.core.serialize import from_data, to_data
from headjax.models import Compute, Model, ModelConfig
from headjax.models.tasks import MaskedLanguageModel
from tests import tiny
from tests.closeness import assert_close
from tests.layer_walk import walk
from tests.models.test_decoder import MIXED
from tests.models.test_encoder import PADDED, RELATIVES
from tests.models.test_encoder import config as encoder
from tests.models.test_encoder_decoder import BATCH, CONFIGS
from tests.models.test_vision import BATCH as IMAGES
from tests.models.test_vision import config as vision
from tests.selected import first

TEXT = {name: (encoder(name, task=MaskedLanguageModel(), dropout=0.1), PADDED) for name in RELATIVES}
PAIRS = {name: (config, BATCH) for name, config in CONFIGS.items()}
CASES = TEXT | PAIRS | {"decoder": (MIXED, PADDED), "vision": (vision(dropout=0.1), IMAGES)}
STACKS = ["decoder", "bert", "albert", "translation", "t5", "vision"]
"""Those whose stacks differ: RoBERTa and DistilBERT have BERT's."""


@pytest.mark.parametrize("name", CASES)
def test_the_config_survives_json(name):
    config, _ = CASES[name]
    assert from_data(ModelConfig, to_data(config)) == config


@pytest.mark.parametrize("name", first(2, STACKS))
def test_scanned_is_unrolled_and_dropout_follows_its_key(name):
    config, batch = CASES[name]
    model = tiny.model(config)
    scanned, unrolled = (model(batch, compute=Compute(scan=scan)).logits for scan in (True, False))
    assert_close(scanned, unrolled, sums=tiny.SUMS)
    first, again, other = (np.asarray(model(batch, rngs=nnx.Rngs(seed)).logits) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-2
    assert np.abs(first - scanned).max() > 1e-2


def moved(model, batch, *places):
    """`[places, tokens]`: how much the hidden state at a place of a lone example depends on each token's embedding."""
    weights = jnp.arange(1.0, tiny.WIDTH + 1)

    def hidden(tokens, place):
        params = model.params | {"embeddings": model.params["embeddings"] | {"token": tokens}}
        return (Model(model.config, params).forward(batch).hidden[0, place] * weights).sum()

    slopes = jax.jit(jax.vmap(jax.grad(hidden), in_axes=(None, 0)))
    return jnp.abs(slopes(model.params["embeddings"]["token"], jnp.asarray(places))).max(axis=-1)


SOURCE = {"input_ids": np.arange(10)[None], "attention_mask": PADDED["attention_mask"][1:]}
"""Tokens 0 to 9, of which the last three are padding."""


@pytest.mark.parametrize("name", RELATIVES)
def test_padding_reaches_no_token_and_every_token_reaches_every_other(name):
    found = moved(tiny.model(TEXT[name][0]), SOURCE, *range(7))
    assert (found[:, :7] > 1e-4).all()
    assert (found[:, 7:10] == 0).all()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_decoder_sees_the_past_and_the_whole_source_but_no_padding(name):
    (found,) = moved(tiny.model(CONFIGS[name]), SOURCE | {"decoder_input_ids": np.arange(20, 28)[None]}, 4)
    assert (found[:7] > 1e-5).all()
    assert (found[7:10] == 0).all()
    assert (found[20:25] > 1e-5).all()
    assert (found[25:28] == 0).all()


@pytest.mark.parametrize("name", first(1, ["decoder", "t5", "albert"]))
def test_layer_by_layer_is_the_whole_forward(name):
    config, batch = CASES[name]
    model = tiny.model(config)
    assert_close(walk(model, batch).output, model(batch).hidden, sums=tiny.SUMS)
