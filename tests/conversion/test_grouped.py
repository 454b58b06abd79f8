"""Grouped attention: poolings in order of their errors, and heads that share without loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import headjax
from tests import tiny
from tests.closeness import assert_close
from tests.conversion.cases import PADDED, ROTARY, attentions, converted_layer, hidden, output
from tests.nn.formulations import random_params


@pytest.mark.whole
def test_fitting_beats_averaging(model) -> None:
    def error(pooling, grouping="consecutive") -> float:
        target = headjax.conversion.ToGrouped(kv_heads=2, pooling=pooling, grouping=grouping)
        return sum(e.relative_error + e.value_error for e in headjax.convert(model, target).errors)

    assert error("fitted", "best") - 1e-6 <= error("fitted") < 0.9 * error("mean")


@pytest.mark.whole
def test_heads_that_differ_by_a_rotation_share_without_loss() -> None:
    """With and without rotary embeddings, in groups that the search has to find."""
    generator = np.random.default_rng(0)
    for rotary in (None, headjax.nn.RotaryHalves()):
        source = tiny.model(
            tiny.decoder_config(tiny.layer(tiny.multi_head(rotary=rotary, projection_bias=False))), seed=3
        )
        params = source.params["decoder"]["layers_0_0"]["attention"]
        turned = dict(params)
        for i, j in ((2, 0), (3, 1)):
            angle = generator.uniform(0, 2, 2)
            rotation = np.zeros((4, 4))
            for pair, a in enumerate(angle):
                k = pair + 2
                rotation[[pair, k], [pair, k]] = np.cos(a)
                rotation[pair, k], rotation[k, pair] = np.sin(a), -np.sin(a)
            if rotary is None:
                rotation = np.linalg.qr(generator.standard_normal((4, 4)))[0]
            turned["key"] = turned["key"].at[:, :, i].set(params["key"][:, :, j] @ rotation)
            turned["value"] = turned["value"].at[:, :, i].set(params["value"][:, :, j] @ rotation)
        layers = source.params["decoder"]["layers_0_0"] | {"attention": turned}
        source = source.replace(params=source.params | {"decoder": source.params["decoder"] | {"layers_0_0": layers}})
        expected = hidden(source, PADDED)
        converted, errors = headjax.convert(source, headjax.conversion.ToGrouped(kv_heads=2))
        assert attentions(converted)[0].ids == (0, 2, 1, 3)
        assert max(errors[0].relative_error, errors[0].value_error) < 1e-3
        np.testing.assert_allclose(hidden(converted, PADDED), expected, atol=1e-3)


ROTATED = {
    "free": tiny.multi_head(2, 4, projection_bias=True),
    "halves": tiny.multi_head(2, 4, rotary=headjax.nn.RotaryHalves(), projection_bias=True),
    "interleaved": tiny.multi_head(2, 4, rotary=headjax.nn.RotaryInterleaved(), projection_bias=False),
    "part": tiny.multi_head(2, 6, rotary=headjax.nn.RotaryInterleaved(dim=2), projection_bias=True),
}


@pytest.mark.parametrize("source", ROTATED.values(), ids=ROTATED)
def test_aligned_keys_that_differ_by_a_rotation_share_without_loss(source) -> None:
    """Pairs that turn with the position rotate by one angle each, other dimensions freely; biases rotate along."""
    generator, params = np.random.default_rng(0), random_params(source)
    rotation = np.linalg.qr(generator.standard_normal((source.head_dim,) * 2))[0]
    if source.rotary is not None:
        turning = source.rotary.dim or source.head_dim
        first, second = (np.asarray(index) for index in source.rotary.split(jnp.arange(turning)))
        rotation[:turning] = rotation[:, :turning] = 0.0
        rotation[turning:, turning:] = np.linalg.qr(generator.standard_normal((source.head_dim - turning,) * 2))[0]
        angle = generator.uniform(0.0, 6.0, first.shape)
        rotation[first, first] = rotation[second, second] = np.cos(angle)
        rotation[first, second], rotation[second, first] = np.sin(angle), -np.sin(angle)
    for name in {"key", "key_bias", "value", "value_bias"} & params.keys():
        one = params[name][..., :1, :]
        other = one @ rotation if name.startswith("key") else one
        params[name] = jnp.concatenate([one, other], axis=-2)
    found = converted_layer(source, params, headjax.conversion.ToGrouped(kv_heads=1, pooling="aligned"))
    assert_close(output(*found), output(source, params), sums=8 * tiny.SUMS)


def test_aligned_keys_keep_the_mean_size_of_their_heads() -> None:
    """Rotations turn heads onto each other as far as they can, and the mean of what still differs is not shorter."""
    source = tiny.multi_head(3, 4, rotary=headjax.nn.RotaryHalves(), projection_bias=False)
    params = random_params(source)
    key = converted_layer(source, params, headjax.conversion.ToGrouped(kv_heads=1, pooling="aligned"))[1]["key"]
    sizes = jnp.linalg.norm(params["key"], axis=(0, 2))
    assert_close(jnp.linalg.norm(key), sizes.mean(), sums=tiny.SUMS)


QWEN3 = ROTARY["qwen3"]


@pytest.mark.parametrize("pooling", ["fitted", "aligned", "mean"])
def test_normalised_keys_are_pooled_before_their_norm(pooling: str) -> None:
    """Keys that differ by a factor are one key after the norm."""
    params = random_params(QWEN3)
    alike = params | {
        "key": params["key"].at[:, 1].set(3.0 * params["key"][:, 0]),
        "value": params["value"].at[:, 1].set(params["value"][:, 0]),
    }
    found, weights = converted_layer(QWEN3, alike, headjax.conversion.ToGrouped(kv_heads=1, pooling=pooling))
    assert found.of is headjax.GroupedAttention
    assert (found.kv_heads, found.key_norm, found.query_norm) == (1, QWEN3.key_norm, QWEN3.query_norm)
    assert_close(output(found, weights), output(QWEN3, alike), sums=4 * tiny.SUMS)
    whole = converted_layer(QWEN3, params, headjax.conversion.ToGrouped(kv_heads=4, pooling=pooling))
    assert_close(output(*whole), output(QWEN3, params), sums=4 * tiny.SUMS)
    pooled = converted_layer(QWEN3, params, headjax.conversion.ToGrouped(kv_heads=1, pooling=pooling))
    assert float(jnp.abs(output(*pooled) - output(QWEN3, params)).max()) > 1e-2


def test_fitted_pooling_of_normalised_keys_counts_heads_alike() -> None:
    """A key ten times as long as the other decides the mean, and half of the fitted one."""
    params = random_params(QWEN3)
    first, long = params["key"][:, 0], 10.0 * params["key"][:, 1]
    params |= {"key": jnp.stack([first, long], axis=1)}

    def pooled(pooling: str) -> jax.Array:
        key = converted_layer(QWEN3, params, headjax.conversion.ToGrouped(kv_heads=1, pooling=pooling))[1]["key"][:, 0]
        return key / jnp.linalg.norm(key)

    for pooling, mean in (("fitted", direction(first) + direction(long)), ("mean", first + long)):
        assert_close(pooled(pooling), direction(mean), sums=tiny.SUMS)


def test_latent_attention_cannot_become_grouped_even_with_normalised_queries() -> None:
    norm = headjax.nn.RMSNorm()
    layer = headjax.nn.LatentAttention(
        16, num_heads=2, rank=4, head_dim=4, query_rank=4, query_norm=norm, rngs=nnx.Rngs(0)
    )
    with pytest.raises(headjax.ConfigError, match=r"^attention: latent cannot be converted"):
        headjax.convert_attention(layer, "grouped:kv_heads=1")


def direction(matrix: jax.Array) -> jax.Array:
    return matrix / jnp.linalg.norm(matrix)
