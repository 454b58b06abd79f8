"""Every formulation x {forward, gates, prune, save, shard, decode}: each model has a layer of each formulation.

The examples of one batch do not see each other, so that one forward holds the original and all its variations. Which
formulation it is that fails, `tests/nn/test_formulation.py` says.
"""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import headjax
from tests import tiny
from tests.closeness import assert_close, assert_trees_equal
from tests.models.mixed import MODELS
from tests.nn.formulations import FORMULATIONS
from tests.nn.test_cache import piecewise
from tests.tiny import flatten

LENGTH, SEEN, ROWS = 6, 4, 8
ORIGINAL, PADDING, LAST, FIRST, GATED = range(5)
"""Rows of the batch: as it is; padding changed; last token seen changed; first token changed; head 0 without effect."""

SUMS = 3 * len(FORMULATIONS) * tiny.LAYER_SUMS


def rows() -> np.ndarray:
    tokens = np.tile(np.random.default_rng(0).integers(0, tiny.VOCABULARY, (1, LENGTH)), (ROWS, 1))
    for row, place in ((PADDING, slice(SEEN, None)), (LAST, SEEN - 1), (FIRST, 0)):
        tokens[row, place] = (tokens[row, place] + 1) % tiny.VOCABULARY
    return tokens


MASK = np.tile(np.arange(LENGTH) < SEEN, (ROWS, 1)).astype(np.int32)
TEXT = {"input_ids": rows(), "attention_mask": MASK}


def batch_of(name: str) -> dict[str, np.ndarray]:
    """Variations of a text; of encoder-decoders the target varies in the row LAST only, where the source does not."""
    if name == "vision":
        images = np.tile(np.random.default_rng(0).standard_normal((1, 3, 6, 6)), (ROWS, 1, 1, 1)).astype(np.float32)
        images[LAST, :, -1, -1] += 1.0
        return {"pixel_values": images}
    if name != "encoder_decoder":
        return TEXT
    source, target = rows(), np.tile(rows()[-1:], (ROWS, 1))
    source[LAST], target[LAST] = source[ORIGINAL], rows()[LAST]
    return {"input_ids": source, "attention_mask": MASK, "decoder_input_ids": target}


@pytest.fixture(
    scope="module",
    params=["decoder", *(pytest.param(name, marks=pytest.mark.whole) for name in MODELS if name != "decoder")],
)
def case(request):
    """The name of an architecture, its model, a batch, and the hidden states and the logits of it."""
    name = request.param
    few = ("multi_head", "collaborative", "grouped", "latent")
    names = few if name == "vision" else FORMULATIONS
    # Two layers of each in the decoder, so that they are scanned.
    layers = [FORMULATIONS[each] for each in names for _ in range(2 if name == "decoder" else 1)] + [tiny.no_heads()]
    model = tiny.model(MODELS[name](layers))
    batch = batch_of(name)
    hidden, logits = forward(rowwise(model), batch, headjax.Compute())
    return name, model, batch, np.asarray(hidden), logits


def rowwise(model, removed=()):
    """The model with gates for each example: all ones but those of head 0, and of removed heads, in the row `GATED`."""
    off = {head for head in headjax.all_heads(model.config) if head.head == 0} | set(removed)
    gates = {}
    for site in headjax.attention_sites(model):
        array = np.ones((*site.shape[:-1], ROWS, 1, site.heads), np.float32)
        array[..., GATED, 0, :] = np.reshape([head not in off for head in site.head_ids()], site.shape)
        gates[site.path] = array
    return headjax.gated(model, gates)


@functools.partial(jax.jit, static_argnums=2)
def forward(model, batch, compute):
    output = model.forward(batch, headjax.models.ForwardOptions(compute=compute))
    return output.hidden, output.logits


def differs(states, row):
    """Which of the positions seen differ from the original's."""
    return np.abs(states[row] - states[ORIGINAL])[:SEEN].max(axis=-1) > 3e-5


def test_what_is_seen_has_an_effect_and_nothing_else(case):
    name, _, _, states, _ = case
    assert np.isfinite(states).all()
    np.testing.assert_array_equal(differs(states, GATED), True)
    last = [False, False, False, True] if "decoder" in name else True
    np.testing.assert_array_equal(differs(states, LAST), last)
    if name != "vision":
        np.testing.assert_array_equal(differs(states, PADDING), False)
        np.testing.assert_array_equal(differs(states, FIRST), True)


def test_bfloat16_is_close(case):
    _, model, batch, states, _ = case
    rough = np.asarray(forward(model, batch, headjax.Compute(dtype="bfloat16"))[0], np.float32)
    difference = np.abs(rough - states)[ORIGINAL, :SEEN].max()
    assert 0 < difference < 0.1 * np.abs(states[ORIGINAL]).max()


def test_what_is_pruned_computes_what_is_masked(case):
    """Head 0 of every layer and every head of one layer."""
    _, model, batch, states, _ = case
    removed = [head for head in headjax.all_heads(model.config) if head.head == 0 or head.layer == 1]
    expected, _ = forward(rowwise(model, removed), batch, headjax.Compute())
    assert np.abs(expected[GATED, :SEEN] - states[GATED, :SEEN]).max() > 3e-5
    one = {name: array[GATED : GATED + 1] for name, array in batch.items()}
    assert_close(headjax.prune(model, removed)(one).hidden[0, :SEEN], expected[GATED, :SEEN], sums=SUMS)


def test_what_is_saved_loads_onto_eight_devices_and_computes_the_same(case, tmp_path):
    _, model, batch, states, _ = case
    model.save(tmp_path / "model")
    mesh = headjax.MeshConfig(data=4, fsdp=2).build()
    loaded = headjax.load(tmp_path / "model", mesh=mesh)
    assert loaded.config == model.config
    assert_trees_equal(loaded.params, model.params)
    assert any(not array.sharding.is_fully_replicated for array in flatten(loaded.params).values())
    spread = jax.device_put(batch, NamedSharding(mesh, PartitionSpec(("data", "fsdp"))))
    unrolled = np.asarray(forward(loaded, spread, headjax.Compute(scan=False))[0])
    others = [row for row in range(ROWS) if row != GATED]
    assert_close(unrolled[others], states[others], sums=SUMS)


def test_decoding_is_the_forward_of_all_tokens_at_once_with_gates_too(case):
    name, model, batch, _, logits = case
    if "decoder" not in name:
        pytest.skip("it does not decode")
    decoded = piecewise(rowwise(model), batch, (3, 3))
    assert_close(decoded[:, :SEEN], logits[:, :SEEN], sums=SUMS)  # padding has positions of its own
