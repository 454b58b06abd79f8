"""Deep models: sub-layers are the sums of their parts, heads keep their names, and what cannot be split is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import headjax
from headjax.conversion.deep import deep_config, deepen, level, split_attention, split_feed_forward
from headjax.core import tensors
from headjax.core.modules import bind, declared
from headjax.core.serialize import kind_of
from headjax.core.tensors import initialize
from headjax.nn.norms import OffsetRMSNorm
from headjax.nn.projections import FeedForward
from tests import tiny
from tests.closeness import assert_close
from tests.models.test_encoder import config
from tests.models.test_encoder_decoder import t5, translation
from tests.nn.formulations import FORMULATIONS, WIDTH, outputs_of, random_inputs, random_params

ALIKE = dict.fromkeys(("attention", "decoder_attention", "cross_attention"), tiny.multi_head())


def bert(**fields):
    return config(num_layers=2, **fields)


@pytest.fixture(scope="module")
def model():
    return tiny.model(bert())


@functools.partial(jax.jit, static_argnums=0)
def attention_output(attention, params, inputs):
    return outputs_of(attention, params, inputs)


@pytest.mark.parametrize("name", ["multi_head", "ragged_grouped", "collaborative"])
def test_attention_is_the_sum_of_its_heads(name):
    attention = FORMULATIONS[name]
    params, inputs = random_params(attention), jnp.asarray(random_inputs())
    whole = np.asarray(attention_output(attention, params, inputs))
    parts = split_attention(tiny.bound(attention, params, WIDTH, WIDTH), attention.num_heads)
    assert [part.ids for part in parts] == [(head,) for head in attention.ids]
    summed = sum(attention_output(part.kind.structure(), part.params, inputs) for part in parts)
    assert_close(summed, whole, sums=tiny.SUMS)


@pytest.mark.parametrize("fields", [{"activation": "relu"}, {"activation": "silu", "gated": True}, {"bias": False}])
def test_feed_forward_is_the_sum_of_its_slices(fields):
    whole, inputs = FeedForward(WIDTH, 24, **fields), jnp.asarray(random_inputs())
    params = initialize(declared(whole), jax.random.key(0), headjax.nn.Normal(0.5))
    bind(whole, jax.tree.map(lambda array: array + 0.1, params))
    parts = split_feed_forward(whole, 4)
    assert [part.hidden for part in parts] == [6] * 4
    compute = nnx.jit(lambda module: module(inputs))
    assert_close(sum(np.asarray(compute(part)) for part in parts), compute(whole), sums=tiny.SUMS)


@pytest.mark.parametrize("heads", [1, 2])
def test_heads_keep_numbers_and_weights(model, heads):
    deep = deepen(model, heads)
    tensors.check(deep.config.tensors(), deep.params)
    assert deep.config.num_layers == 8 // heads
    assert len(deep.config.stacks()["encoder"].groups) == 1, "the new layers compute as one scan"
    assert [head.head for head in headjax.all_heads(deep.config)] == [0, 1, 2, 3] * 2
    assert headjax.HeadId("encoder", 4 // heads + 3 // heads, 3) in headjax.all_heads(deep.config), "layer 1, head 3"
    old = model.config.stacks()["encoder"].unstack(model.params["encoder"])[1]
    new = deep.config.stacks()["encoder"].unstack(deep.params["encoder"])[4 // heads + 3 // heads]
    np.testing.assert_array_equal(new["attention"]["query"][:, 3 % heads], old["attention"]["query"][:, 3])
    np.testing.assert_array_equal(new["feed_forward"]["up"], old["feed_forward"]["up"][:, -8 * heads :])
    np.testing.assert_array_equal(
        new["attention_residual"]["norm"]["scale"], old["attention_residual"]["norm"]["scale"]
    )
    assert deep.history[-1]["layers"] == {"encoder": [4 // heads] * 2}
    assert np.isfinite(deep(tiny.tokens()).hidden).all()


@pytest.mark.parametrize("norm", [headjax.nn.LayerNorm(), headjax.nn.RMSNorm(), OffsetRMSNorm()], ids=kind_of)
def test_a_levelled_norm_keeps_the_size_that_the_norm_gives(norm):
    """Whatever a norm's parameters mean: the weight of OffsetRMSNorm is its gain less 1."""
    params = {name: jnp.zeros(tiny.WIDTH) for name in declared(norm.module(tiny.WIDTH))} | {
        "scale": jnp.full(tiny.WIDTH, -0.6)
    }
    norm, vectors = bind(norm.module(tiny.WIDTH), params), jax.random.normal(jax.random.key(0), (50, tiny.WIDTH))
    assert_close(level(norm)(vectors).std(), norm(vectors).std(), sums=50 * tiny.WIDTH)


def test_one_layer_alone_and_a_pruned_one(model):
    pruned = headjax.prune(model, ["encoder/1/0", "encoder/1/2"])
    deep = deepen(pruned, chosen={("encoder", 1)})
    assert [str(head) for head in headjax.all_heads(deep.config)][4:] == ["encoder/1/1", "encoder/2/3"]
    assert deep.config.num_layers == 3
    assert deepen(pruned).config.hidden[-1] == 16


def test_encoder_and_decoder_with_relative_positions_tell_heads_apart():
    config = deep_config(t5())
    assert [len(stack.layers) for stack in config.stacks().values()] == [8, 8]
    assert [layer.ids for layer in config.attentions()["decoder"]] == [(head,) for head in range(4)] * 2
    batch = tiny.tokens() | {"labels": tiny.tokens(seed=1)["input_ids"]}
    assert np.isfinite(tiny.model(config)(batch).logits).all()


@pytest.mark.parametrize(
    "config, heads, message",
    [
        (bert(hidden=30), 1, "encoder/0: hidden: 30 does not split evenly into 4 layers"),
        (bert(attention=tiny.multi_head(1)), 1, "heads: the layers have 1 head already, there is nothing to split"),
        (bert(), 3, "heads: encoder/0: attention has 4 heads, which do not split into layers of 3"),
        (
            bert(attention=headjax.Kind(headjax.nn.NoHeadsAttention)),
            1,
            "encoder/0: attention: no_heads attention has no heads",
        ),
        (config("albert"), 1, "encoder: its layers are one layer"),
        (
            translation(**ALIKE | {"cross_attention": tiny.multi_head(2)}),
            1,
            "decoder/0: cross_attention: the layer would split attention into 4, cross_attention into 2 layers",
        ),
    ],
)
def test_what_cannot_be_split_is_refused(config, heads, message):
    with pytest.raises(headjax.ConfigError, match=message):
        deep_config(config, heads)
