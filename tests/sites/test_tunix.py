"""Tunix's own model classes, unmodified: pruned models equal gated ones, and decode."""

import dataclasses
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import headjax
from tests.sites.houses import without

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),  # Tunix 0.1.7 uses what Flax has deprecated
]
pytest.importorskip("tunix", reason="needs Tunix: make parity installs it")

HEADS, KV_HEADS, SIZE, WIDTH, LAYERS, WORDS = 4, 2, 8, 24, 2, 60
TOKENS = np.random.default_rng(0).integers(1, WORDS, (4, 9))


@pytest.fixture(autouse=True)
def promotion():
    """Their code adds arrays of different ranks."""
    with jax.numpy_rank_promotion("allow"):
        yield


def tunix(family, kind, **changes):
    """A small model of one of Tunix's classes, its weights drawn large enough that heads differ."""
    module = importlib.import_module(f"tunix.models.{family}.model")
    sizes = {"num_layers": LAYERS, "embed_dim": WIDTH, "hidden_dim": 40, "num_heads": HEADS, "head_dim": SIZE}
    fields = {field.name for field in dataclasses.fields(module.ModelConfig)}
    given = {"vocab_size": WORDS, "num_embed": WORDS, "rope_theta": 10_000, "norm_eps": 1e-6, "num_kv_heads": KV_HEADS}
    given |= {"use_tied_embedding": True, "weight_tying": True, "sliding_window_size": 4, "param_dtype": jnp.float32}
    given |= {"final_logit_softcap": None, "use_post_attn_norm": False, "use_post_ffw_norm": False}
    if family == "gemma":
        given["attention_types"] = (module.AttentionType.GLOBAL,) * LAYERS
    config = module.ModelConfig(**{name: value for name, value in (sizes | given | changes).items() if name in fields})
    mesh = jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        model = getattr(module, kind)(config, rngs=nnx.Rngs(0))
    state = nnx.state(model, nnx.Param)
    drawn = np.random.default_rng(1)
    nnx.update(
        model,
        jax.tree.map(lambda one: jnp.asarray(0.25 * drawn.normal(size=one.shape) + (one.ndim == 1), one.dtype), state),
    )
    return model


def logits(model, tokens):
    batch, length = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(length)[None], (batch, length))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool))[None], (batch, length, length))
    return model(tokens, positions, None, mask)[0]


def loss(model, batch):
    """The negative log-likelihood of every text."""
    tokens = batch["input_ids"]
    return optax.softmax_cross_entropy_with_integer_labels(
        logits(model, tokens)[:, :-1].astype(jnp.float32), tokens[:, 1:]
    ).sum(axis=1)


@pytest.fixture(scope="module")
def qwen():
    return tunix("qwen2", "Qwen2")


CLASSES = {
    "qwen2": ("qwen2", "Qwen2", {}),
    "qwen3": ("qwen3", "Qwen3", {}),
    "llama3": ("llama3", "Llama3", {}),
    "gemma": ("gemma", "Gemma", {}),
    "gemma_multi_head": ("gemma", "Gemma", {"num_kv_heads": HEADS}),
    "gemma3": ("gemma3", "Gemma3", {}),
}


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(
    "heads", [[(0, 1), (0, 3), (1, 0), (1, 2)], [(0, 0), (0, 1), (1, 2), (1, 3)], [(1, 1), (1, 2)]]
)
def test_pruned_equals_gated(name, heads):
    family, kind, changes = CLASSES[name]
    model = tunix(family, kind, **changes)
    removed = [f"layers.{layer}.attn/{head}" for layer, head in heads]
    pruned = headjax.prune(model, removed)
    assert type(pruned) is type(model)
    wanted = np.asarray(logits(without(model, removed), TOKENS))
    difference = np.abs(np.asarray(logits(pruned, TOKENS)) - wanted).max() / np.abs(wanted).max()
    assert difference < 1e-5
    assert len(headjax.score_heads(pruned, [{"input_ids": TOKENS}], loss=loss).score("importance")) == 8 - len(heads)


def test_a_pruned_model_decodes_with_its_cache(qwen):
    pruned = headjax.prune(qwen, [f"layers.{layer}.attn/{head}" for layer in (0, 1) for head in (0, 1)])
    assert (pruned.config.num_heads, pruned.config.num_kv_heads, qwen.config.num_heads) == (2, 1, 4)
    assert [layer.attn.n_rep for layer in pruned.layers] == [2, 2]
    wanted = logits(pruned, TOKENS)
    length = TOKENS.shape[1]
    shape = (4, length, pruned.config.num_kv_heads, pruned.config.head_dim)
    empty = {"k": jnp.zeros(shape), "v": jnp.zeros(shape), "end_index": jnp.zeros((4,), jnp.int32)}
    cache = {f"layer_{number}": empty for number in range(LAYERS)}
    for place in range(length):
        mask = jnp.broadcast_to((jnp.arange(length) <= place)[None, None], (4, 1, length))
        found, cache = pruned(TOKENS[:, place : place + 1], jnp.full((4, 1), place), cache, mask)
        assert np.abs(np.asarray(found[:, 0] - wanted[:, place])).max() < 1e-4 * np.abs(np.asarray(wanted)).max()


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "llama3"])
def test_layers_of_headjax_take_the_place_of_theirs(name):
    family, kind, changes = CLASSES[name]
    model = tunix(family, kind, **changes)
    replaced = headjax.replace_attention(model, lambda layer: layer)
    wanted = np.asarray(logits(model, TOKENS))
    difference = np.abs(np.asarray(logits(replaced, TOKENS)) - wanted).max() / np.abs(wanted).max()
    assert difference < 1e-5
    pruned = headjax.prune(replaced, ["layers.0.attn.inner/0"])  # unequal groups, which their own code cannot hold
    wanted = np.asarray(logits(without(model, ["layers.0.attn/0"]), TOKENS))
    assert np.abs(np.asarray(logits(pruned, TOKENS)) - wanted).max() < 1e-5 * np.abs(wanted).max()
    with pytest.raises(headjax.HeadjaxError, match="cache"):
        replaced(TOKENS, jnp.zeros(TOKENS.shape, int), {f"layer_{number}": {"k": 0} for number in range(LAYERS)}, None)
