"""Conversions of models as importers build them; BERT, T5 and ALBERT are in test_model.py."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import headjax
from tests import tiny
from tests.closeness import assert_close, tolerance
from tests.hub.directories import BERT, CONFIGS, T5, model_of

pytestmark = pytest.mark.whole  # every one of a product: minutes of compilation

LENGTH = 8
RANDOM = np.random.default_rng(0)
TEXT = {"input_ids": RANDOM.integers(1, 20, (2, LENGTH)), "attention_mask": np.array([[1] * LENGTH, [1] * 5 + [0] * 3])}
PIXELS = {"pixel_values": RANDOM.standard_normal((2, 3, 4, 4)).astype(np.float32)}
FAMILIES = {
    "distilbert": CONFIGS["distilbert"],
    "roberta": CONFIGS["roberta"],
    "mpnet": CONFIGS["mpnet"],
    "gpt2": CONFIGS["gpt2"],
    "vit": CONFIGS["vit"] | {"num_hidden_layers": 4},
    "bart": CONFIGS["bart"] | {"decoder_layers": 2},
}


def hidden(model, name: str) -> np.ndarray:
    if name == "vit":
        return np.asarray(model(PIXELS).hidden)
    labels = {"labels": TEXT["input_ids"][:, :6]} if name in ("bart", "t5") else {}
    found = np.asarray(model(TEXT | labels).hidden)
    return found if labels else found * TEXT["attention_mask"][:, :, None]


def lossless(attention, width: int) -> list[headjax.conversion.Target]:
    """Targets that keep the layer's function, largest sizes first."""
    size = attention.num_heads * attention.head_dim
    return [
        headjax.conversion.ToCollaborative(shared_dim=size),
        headjax.conversion.ToLatent(rank=min(width, 2 * size)),
        headjax.conversion.ToGrouped(kv_heads=attention.num_heads),
        headjax.conversion.ToFixed(head_dim=attention.head_dim + 3),
    ]


@pytest.mark.parametrize("name", list(FAMILIES))
def test_every_family_keeps_its_function(name: str) -> None:
    """Each of its layers becomes something else."""
    source = model_of(FAMILIES[name])
    expected = hidden(source, name)
    attentions = source.config.attentions()
    places = [(stack, layer) for stack, layers in attentions.items() for layer in range(len(layers))]
    turns = itertools.count()
    targets = {
        place: lossless(attentions[place[0]][place[1]], source.config.width)[next(turns) % 4] for place in places
    }
    converted, errors = headjax.convert(source, targets)
    assert max(max(error.relative_error, error.value_error) for error in errors) < tolerance(tiny.SUMS)
    assert_close(hidden(converted, name), expected, sums=tiny.SUMS)
    tiny.assert_as_declared(converted)


@pytest.mark.parametrize("target", ["collaborative:shared_dim={size}", "grouped:kv_heads={heads}"])
def test_conversions_and_pruning_commute_without_loss(target: str) -> None:
    """Cross-attention and both self-attentions of an encoder-decoder, heads removed before or after."""
    source = model_of(T5)
    heads = ["encoder/0/1", "decoder/1/3", "cross/0/0", "cross/0/2"]
    pruned = headjax.prune(source, heads)
    expected = hidden(pruned, "t5")

    def full(model, layer):
        attention = model.config.attentions()[layer[0]][layer[1]]
        count = attention.num_heads
        return target.format(heads=count, size=count * attention.head_dim)

    places = [(stack, layer) for stack in ("encoder", "decoder", "cross") for layer in range(2)]
    after = headjax.convert(pruned, {place: full(pruned, place) for place in places}).model
    before = headjax.prune(headjax.convert(source, {place: full(source, place) for place in places}).model, heads)
    for model in (after, before):
        assert_close(hidden(model, "t5"), expected, sums=tiny.SUMS)
    kept = {stack: [a.ids for a in layers] for stack, layers in pruned.config.attentions().items()}
    for model in (after, before):
        found = {stack: [tuple(sorted(a.ids)) for a in layers] for stack, layers in model.config.attentions().items()}
        assert found == kept


def test_groups_survive_pruning() -> None:
    """Heads that share a key can go one by one; the key goes with the last of them."""
    grouped = headjax.convert(model_of(BERT), "grouped:kv_heads=2,grouping=consecutive").model
    pruned = headjax.prune(grouped, ["encoder/0/0", "encoder/0/1", "encoder/1/3"])
    first, second = pruned.config.attentions()["encoder"]
    assert first.of is headjax.GroupedAttention
    assert (first.num_heads, first.kv_heads) == (2, 1)
    assert second.of is headjax.GroupedAttention
    assert (second.num_heads, second.kv_heads) == (3, 2)
    assert np.isfinite(hidden(pruned, "bert")).all()
