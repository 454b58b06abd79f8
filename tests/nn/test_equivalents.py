"""Formulations are what their formulas say: in plain NumPy, or as another one with products of their weights."""

from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import headjax
from tests import tiny
from tests.closeness import assert_close
from tests.nn.formulations import FORMULATIONS, KEPT, SUMS, WIDTH, attended_by, outputs_of, random_inputs, random_params
from tests.nn.test_attend import reference

X = random_inputs()
CAUSAL = headjax.nn.Mask(causal=True)
PLACES = np.array([[0, 1, 2, 3, 4, 5], [2, 3, 4, 5, 6, 7]])
"""Positions of each example's own, as padding on the left gives."""

HEADS, DIM, VALUES = 3, 4, 5
MULTI = tiny.multi_head(HEADS, DIM, value_dim=VALUES)
SIZES = {"num_heads": HEADS, "value_dim": VALUES, "head_dim": DIM}
BLOCKS = headjax.Kind(
    headjax.CollaborativeAttention, shared_dim=HEADS * DIM, projection_bias=True, content_bias=True, **SIZES
)


def as_float64(params: dict[str, Any]) -> dict[str, np.ndarray]:
    return jax.tree.map(lambda array: np.asarray(array, np.float64), params)


@pytest.mark.parametrize(
    "attention",
    [
        tiny.multi_head(4, 4),
        tiny.multi_head(5, 8, value_dim=3, scale=0.21),
        tiny.multi_head(1, 16, projection_bias=False, output_bias=False),
    ],
    ids=["standard", "fixed", "single"],
)
def test_multi_head_is_its_formula(attention):
    params = random_params(attention)
    p = as_float64(params)

    def project(what: str) -> np.ndarray:
        return np.einsum("btw,whd->bthd", X, p[what]) + p.get(f"{what}_bias", 0.0)

    scale = attention.head_dim**-0.5 if attention.scale is None else attention.scale
    allowed = np.tril(np.ones((6, 6), bool))[None, None]
    context, _ = reference(project("query"), project("key"), project("value"), scale, allowed)
    expected = np.einsum("bqhd,hdw->bqw", context, p["output"]["kernel"]) + p["output"].get("bias", 0.0)
    assert_close(outputs_of(attention, params, X, headjax.nn.AttentionOptions(mask=CAUSAL)), expected, sums=SUMS)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the keys that a causal query sees."""
    logits = np.where(np.tril(np.ones(logits.shape[-2:], bool)), logits, -np.inf)
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def test_collaborative_logits_are_those_of_the_formula():
    shared = headjax.Kind(
        headjax.CollaborativeAttention, shared_dim=6, projection_bias=True, content_bias=True, **SIZES | {"head_dim": 9}
    )
    params = random_params(shared)
    p, x = as_float64(params), X.astype(np.float64)
    query, key = x @ p["query"] + p["query_bias"], x @ p["key"] + p["key_bias"]
    found = attended_by(shared, params, X, headjax.nn.AttentionOptions(mask=CAUSAL)).probabilities
    for head in range(HEADS):
        content = (x @ p["content_bias"][:, head])[:, None, :]
        logits = (query * p["mixing"][head] @ key.swapaxes(1, 2) + content) / 3.0
        assert_close(found[:, head], softmax(logits), sums=SUMS)


Pair = tuple[headjax.Kind, dict[str, Any]]


def concatenated(params: dict[str, Any]) -> dict[str, Any]:
    """Multi-head parameters as collaborative ones: the heads' projections side by side, mixed by block-ones."""
    flat = {name: params[name].reshape(WIDTH, -1) for name in ("query", "key")}
    biases = {name: params[name].reshape(-1) for name in ("query_bias", "key_bias")}
    kept = {name: params[name] for name in ("value", "value_bias", "output")}
    mixing = np.kron(np.eye(HEADS, dtype=np.float32), np.ones((1, DIM), np.float32))
    return flat | biases | kept | {"mixing": mixing, "content_bias": np.zeros((WIDTH, HEADS), np.float32)}


def block_ones() -> tuple[Pair, Pair]:
    params = random_params(MULTI)
    return (BLOCKS, concatenated(params)), (MULTI, params)


def content_for_query_bias() -> tuple[Pair, Pair]:
    """(x W_Q + b_Q)(y W_K)^T = x W_Q W_K^T y^T + (y u)^T with u = W_K b_Q, head by head (section 3.3)."""
    params = random_params(MULTI)
    content = np.einsum("whd,hd->wh", params["key"], params["query_bias"])
    moved = concatenated(params) | {"content_bias": content, "query_bias": np.zeros(HEADS * DIM, np.float32)}
    return (BLOCKS, moved), (MULTI, params)


def latent() -> tuple[Pair, Pair]:
    sizes = {"num_heads": HEADS, "head_dim": DIM, "value_dim": VALUES, "scale": 0.4}
    source = headjax.Kind(headjax.LatentAttention, rank=6, query_rank=7, projection_bias=True, **sizes)
    params = random_params(source)
    wide = {
        "query": np.einsum("dr,rhk->dhk", params["query_latent"], params["query"]),
        "key": np.einsum("dr,rhk->dhk", params["latent"], params["key"]),
        "key_bias": np.full((HEADS, DIM), 0.7, np.float32),  # vanishes in the softmax, so latent attention has none
        "value": np.einsum("dr,rhv->dhv", params["latent"], params["value"]),
    }
    wide |= {name: params[name] for name in ("query_bias", "value_bias") if name in params}
    wide["output"] = {"bias": np.zeros(WIDTH, np.float32)} | params["output"]
    return (source, params), (headjax.Kind(headjax.MultiHeadAttention, **sizes), wide)


def grouped(index: tuple[int, ...] | None) -> tuple[Pair, Pair]:
    source = tiny.grouped(6, 2, 4, projection_bias=True, output_bias=True, kv_index=index)
    params = random_params(source)
    read = np.array(index or (0, 0, 0, 1, 1, 1))
    repeated = {name: np.asarray(params[name])[:, read] for name in ("key", "value")}
    repeated |= {name: np.asarray(params[name])[read] for name in ("key_bias", "value_bias")}
    return (source, params), (tiny.multi_head(6, 4), params | repeated)


def compressed() -> tuple[Pair, Pair]:
    source = FORMULATIONS["compressed"]
    params = random_params(source)
    joined = {name: np.einsum("mr,rhd->mhd", params["latent"], params["inner"][name]) for name in ("key", "value")}
    return (source, params), (source.inner, params["inner"] | joined)


def own_frequencies() -> tuple[Pair, Pair]:
    """Heads that keep frequencies of their own are whole ones whose other dimensions are zero."""
    params = random_params(KEPT)
    whole = tiny.multi_head(3, 8, value_dim=4, scale=KEPT.logit_scale, rotary=headjax.nn.RotaryHalves(base=100.0))
    places = np.asarray([[first, second, first + 4, second + 4] for first, second in KEPT.frequencies])
    spread = np.eye(8, dtype=np.float32)[places]
    names = ("query", "key", "query_bias", "key_bias")
    return (KEPT, params), (whole, params | {n: np.einsum("...hd,hde->...he", params[n], spread) for n in names})


EQUAL = {
    "collaborative, mixed by block-ones": (block_ones, 1),
    "collaborative, its content bias for a query bias": (content_for_query_bias, 1),
    "latent": (latent, 1),
    "grouped": (lambda: grouped(None), 1),
    "grouped, in any order": (lambda: grouped((1, 0, 0, 0, 1, 0)), 1),
    "compressed": (compressed, 4),
    "frequencies of each head's own": (own_frequencies, 4),
}
"""Each with how many times `SUMS` its longest way is, turning included."""


@pytest.mark.parametrize("name", EQUAL)
def test_it_is_another_with_products_of_its_weights(name):
    build, longer = EQUAL[name]
    call = headjax.nn.AttentionOptions(mask=CAUSAL, positions=PLACES)
    found, expected = (attended_by(*pair, X, call, positions=PLACES) for pair in build())
    assert_close(found.context, expected.context, sums=longer * SUMS)
    assert_close(found.probabilities, expected.probabilities, sums=longer * SUMS)


def probabilities(params: dict[str, Any], bias: Any = None) -> Any:
    return attended_by(BLOCKS, params, X, headjax.nn.AttentionOptions(mask=CAUSAL, bias=bias)).probabilities


def test_key_biases_vanish_and_content_biases_do_not():
    """x W_Q . b_K is the same for every key of a query; y u is not, and adds to a relative bias of the call."""
    params = random_params(BLOCKS)
    expected = probabilities(params)
    assert np.abs(params["key_bias"]).max() > 0.1
    silent = {name: 0.0 * np.asarray(params[name]) for name in ("key_bias", "content_bias")}
    assert_close(probabilities(params | {"key_bias": silent["key_bias"]}), expected, sums=SUMS)
    without = params | {"content_bias": silent["content_bias"]}
    assert np.abs(probabilities(without) - expected).max() > 0.1
    bias = np.random.default_rng(2).standard_normal((1, HEADS, 6, 6)).astype(np.float32)
    content = np.swapaxes(X @ np.asarray(params["content_bias"]), 1, 2)[:, :, None] / np.sqrt(DIM, dtype=np.float32)
    assert_close(probabilities(params, bias), probabilities(without, bias + content), sums=SUMS)


def test_concatenated_blocks_start_as_multi_head_attention():
    collaborative = headjax.Kind(
        headjax.CollaborativeAttention,
        num_heads=4,
        shared_dim=8,
        value_dim=4,
        head_dim=2,
        mixing_init=headjax.nn.Concatenate(),
    )
    fresh = headjax.CollaborativeAttention(WIDTH, rngs=nnx.Rngs(0), **collaborative.options)
    params = random_params(collaborative) | {"mixing": fresh.mixing[...]}
    heads = {name: params[name].reshape(WIDTH, 4, 2) for name in ("query", "key")}
    zeros = {name: np.zeros((4, 2), np.float32) for name in ("query_bias", "key_bias")}
    plain = {name: array for name, array in params.items() if name != "mixing"} | heads | zeros
    call = headjax.nn.AttentionOptions(mask=CAUSAL)
    expected = attended_by(tiny.multi_head(4, 2, value_dim=4), plain, X, call).context
    assert_close(attended_by(collaborative, params, X, call).context, expected, sums=SUMS)
    # Eight dimensions divide among four heads, but not among the three that are left.
    assert collaborative.module(WIDTH, WIDTH).config_after_pruning([0, 1, 3]).structure().num_heads == 3
