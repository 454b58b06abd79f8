"""Folding omega away changes the parameters and not the function."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.core.tensors import flatten
from headjax.heads.folding import fold_shortcuts
from headjax.models.model import load
from headjax.nn import GroupedAttention, Kind, LatentAttention
from headjax.nn.norms import RMSNorm
from tests import tiny
from tests.closeness import assert_close
from tests.models.test_encoder import config as encoder
from tests.models.test_encoder_decoder import translation

TEN_TIMES = 10.0
SCALED = {"residual": "scaled_post_norm", "positions": "sinusoidal", "embedding_norm": True}
FORMULATIONS = (
    tiny.multi_head(),
    tiny.collaborative(),
    Kind(GroupedAttention, num_heads=4, kv_heads=2, head_dim=4),
    Kind(LatentAttention, num_heads=2, head_dim=4, rank=6),
)


def with_shortcuts(config):
    """The model with every parameter drawn at random, and omegas far from one."""
    model = tiny.model(config)

    def spread(path, array):
        return 1.0 + TEN_TIMES * jnp.abs(array - 1.0) if path[-1].key == "shortcut" else array

    return model.replace(params=jax.tree_util.tree_map_with_path(spread, model.params))


@pytest.fixture(scope="module")
def batch():
    tokens = tiny.tokens(2, 6)["input_ids"]
    return {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}


@pytest.mark.parametrize("fields", [{}, {"norm": RMSNorm(), "gated": True}], ids=["plain", "gated"])
def test_an_encoder_of_every_kind_of_layer_computes_the_same(fields, batch, tmp_path):
    fields = SCALED | {"attention": FORMULATIONS, "num_layers": 4, "hidden": (32, 32, 8, 8), "pooler": None} | fields
    model = with_shortcuts(encoder(**fields))
    folded = fold_shortcuts(model)
    assert folded.config == dataclasses.replace(model.config, residual="post_norm")
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
    model = with_shortcuts(translation(**SCALED))
    folded = fold_shortcuts(model)
    given = batch | {"labels": batch["input_ids"]}
    assert_close(folded(given).logits, model(given).logits, sums=tiny.SUMS)
