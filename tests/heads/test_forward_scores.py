"""Scores of a forward pass alone are those of `score_heads`, in every kind of model, and need no labels."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.attention import NoHeads
from headjax.heads import gates
from headjax.heads.forward_scores import forward_scores
from headjax.heads.head_id import HeadId
from headjax.heads.scores import score_heads
from headjax.heads.statistics import STATISTICS
from headjax.models.outputs import IGNORED
from headjax.models.tasks import Classification
from tests import tiny
from tests.closeness import assert_numbers_close, close_to
from tests.models.test_layerwise import albert, t5
from tests.selected import first

NAMES = tuple(STATISTICS)
MASK = np.array([[1] * 8, [1] * 5 + [0] * 3, [1] * 8])


def decoder():
    """Groups of several layers, of one, and of a layer without heads; the last example has no target."""
    layers = (tiny.layer(), tiny.layer(), tiny.layer(tiny.collaborative(2)), tiny.layer(NoHeads()))
    labels = tiny.tokens(3, 8)["input_ids"].copy()
    labels[2] = IGNORED
    return tiny.model(tiny.decoder_config(*layers)), tiny.tokens(3, 8) | {"attention_mask": MASK, "labels": labels}


@pytest.mark.parametrize("case", first(1, [decoder, t5, albert]))
def test_they_are_those_of_all_scores(case):
    model, batch = case()
    if case is albert:
        model = tiny.model(dataclasses.replace(model.config, output=Classification(classes=3)))
        batch = batch | {"labels": np.array([0, 2])}
    batches = [batch, {name: array[:1] for name, array in batch.items()}]
    at = gates.without(model.config, [HeadId(next(iter(model.config.attentions())), 1, 0)])
    expected = score_heads(model, batches, gates=at).values
    seen = []
    found = forward_scores(model, batches, NAMES, gates=at, progress=lambda done, _: seen.append(done))
    for name in NAMES:
        assert_numbers_close(found[name], expected[name], sums=tiny.SUMS, name=name)
    assert seen == sorted(seen)
    assert seen[-1] == len(batches)


def test_they_need_no_labels():
    """Of a language model, and of one whose loss cannot do without."""
    model, batch = decoder()
    plain = {name: array for name, array in batch.items() if name != "labels"}
    whole = forward_scores(model, [plain], ("output_norm",))["output_norm"]
    parts = [
        forward_scores(model, [{name: array[i : i + 1] for name, array in plain.items()}], ("output_norm",))
        for i in range(3)
    ]
    tokens = MASK.sum(axis=1)
    for head, value in whole.items():
        mean = np.dot([part["output_norm"][head] for part in parts], tokens) / tokens.sum()
        assert value == close_to(mean, sums=tiny.SUMS)
    encoder, batch = albert()
    assert len(forward_scores(encoder, [batch], ("entropy",))["entropy"]) == 6


def test_no_layer_is_computed_with_more_than_its_own_parameters():
    """Parameters in bfloat16 are converted layer by layer: no array of all layers in float32."""
    from headjax.heads import forward_scores as module

    model, batch = decoder()
    half = jax.tree.map(lambda array: jnp.asarray(array, jnp.bfloat16), model.params)
    weights = model.config.decoder.groups[0].one_of(half["decoder"]["layers_0_1"], 1)
    for name, array in half["decoder"]["layers_0_1"]["feed_forward"].items():
        np.testing.assert_array_equal(weights["feed_forward"][name], array[1])
    found = module.forward_scores(model.replace(params=half), [batch], ("output_norm",))["output_norm"]
    assert all(np.isfinite(value) and value > 0 for value in found.values())
