"""Layer by layer is the whole forward, in every kind of stack; a watched sub-layer is what joins the stream."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from headjax.core.norms import LayerNorm
from headjax.models.layerwise import FEED_FORWARD, Place, Stream, layer_output
from headjax.models.observe import variance
from headjax.models.residuals import ConstantPostNorm, PostNorm, PreNorm, ScaledPostNorm
from tests import tiny
from tests.closeness import assert_close
from tests.layer_walk import walk
from tests.models import test_encoder as encoder
from tests.models import test_encoder_decoder as encoder_decoder
from tests.selected import first

MASK = np.array([[1] * 8, [1] * 5 + [0] * 3])


def decoder():
    """Two groups of layers."""
    config = tiny.decoder_config(tiny.layer(), tiny.layer(), tiny.layer(tiny.collaborative(2)))
    return tiny.model(config), tiny.tokens(2, 8) | {"attention_mask": MASK}


def t5():
    """Position biases on both sides, and cross-attention."""
    labels = np.random.default_rng(0).integers(1, tiny.VOCABULARY, (2, 6))
    return tiny.model(encoder_decoder.t5()), tiny.tokens(2, 8) | {"attention_mask": MASK, "labels": labels}


def albert():
    """One layer used twice."""
    config = encoder.config("albert", num_layers=2, attention=tiny.multi_head(3))
    return tiny.model(config), tiny.tokens(2, 8) | {"attention_mask": MASK}


@pytest.mark.parametrize("case", first(1, [decoder, t5, albert]))
def test_layer_by_layer_is_the_whole_forward(case):
    model, batch = case()
    assert_close(walk(model, batch).output, model(batch).hidden, sums=tiny.SUMS)


RESIDUALS = [PostNorm(), ScaledPostNorm(), ConstantPostNorm(alpha=1.7), PreNorm()]


@pytest.mark.parametrize("residual", RESIDUALS, ids=lambda residual: type(residual).__name__)
def test_a_watched_sub_layer_is_what_joins_the_stream(residual):
    """shortcut * stream + branch * output is the stream after it, up to a norm; the output is linear in features."""
    layer = tiny.layer(residual=residual)
    model = tiny.model(tiny.decoder_config(layer))
    batch = tiny.tokens(2, 8) | {"attention_mask": MASK}
    (weights,) = model.config.decoder.unstack(model.params["decoder"])
    stream = Stream(jnp.asarray(np.random.default_rng(0).standard_normal((2, 8, tiny.WIDTH)), jnp.float32))
    seen, attended = {}, stream.hidden
    for slot in layer.slots:
        after, seen[slot] = layer_output(
            model.config, model.params, batch, Place("decoder", 0), 0, weights, stream, watched=slot
        )
        shortcut, branch = (factor[None, None, :] for factor in (seen[slot].shortcut, seen[slot].branch))
        joined = shortcut * seen[slot].stream + branch * seen[slot].output
        if isinstance(residual, PostNorm | ScaledPostNorm | ConstantPostNorm):
            joined = LayerNorm().bind(weights[f"{slot}_residual"]["norm"], tiny.WIDTH)(joined)
        expected = stream.hidden if slot == "attention" else attended
        assert_close(seen[slot].stream, expected, sums=tiny.SUMS)
        attended = joined
        np.testing.assert_array_equal(seen[slot].mask, MASK.astype(bool))
    assert_close(attended, after.hidden, sums=tiny.SUMS)
    own, dense = weights["attention"], weights[FEED_FORWARD]
    contexts = seen["attention"].features @ own["output"].reshape(16, 16) + own["output_bias"][None, None, :]
    assert_close(seen["attention"].output, contexts, sums=tiny.SUMS)
    inner = seen[FEED_FORWARD].features @ dense["down"] + dense["down_bias"][None, None, :]
    assert_close(seen[FEED_FORWARD].output, inner, sums=tiny.SUMS)


def test_variance_counts_marked_tokens():
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    mask = np.array([[True, False, True], [False, False, True]])
    assert_close(variance(x), x.var(), sums=x.size)
    assert_close(variance(x, mask), x[mask].var(), sums=x.size)
