"""Feed-forward units: removal equals activations at 0, padding changes nothing, and both go through exports."""

import numpy as np
import pytest

from headjax.core import tensors
from headjax.heads.surgery import count_units, map_feed_forward, pad_units, prune_units
from tests import tiny
from tests.closeness import assert_close
from tests.hub.directories import CONFIGS, LLAMA, T5, model_of
from tests.selected import first

MODELS = {"llama": LLAMA, "t5": T5, "albert": CONFIGS["albert"], "bert": CONFIGS["bert"]}


def batch_for(model):
    batch = {"input_ids": np.array([[1, 2, 3, 4, 5], [6, 7, 8, 9, 1]])}
    return batch | {"labels": batch["input_ids"]} if len(model.config.stacks()) == 2 else batch


@pytest.mark.parametrize("name", first(1, list(MODELS)))
def test_removed_units_are_activations_of_zero(name):
    model = model_of(MODELS[name])
    places = list(count_units(model))
    removed = {places[0]: [0, 3, 5], places[-1]: [1]}
    pruned = prune_units(model, removed)
    batch = batch_for(model)

    def silence(found):
        gone = np.asarray(removed.get((found.stack, found.layer), ()), int)
        return found.holding({"down": found.params["down"].at[gone].set(0.0)})

    masked = map_feed_forward(model, silence)
    assert_close(pruned(batch).hidden, masked(batch).hidden, sums=4 * tiny.SUMS)
    assert pruned.num_parameters == tensors.count(pruned.config.tensors()) < model.num_parameters
    before, after = count_units(model), count_units(pruned)
    assert {place: before[place] - after[place] for place in places} == {
        place: len(removed.get(place, [])) for place in places
    }
    assert pruned.history[-1]["removed"] == {
        f"{stack}/{layer}": len(units) for (stack, layer), units in removed.items()
    }
    padded = pad_units(pruned)
    assert_close(padded(batch).hidden, pruned(batch).hidden, sums=4 * tiny.SUMS)
    for stack in padded.config.stacks().values():
        assert len({layer.hidden for layer in stack.layers}) == 1


def test_gates_are_cut_by_their_declared_axes():
    model = tiny.model(tiny.decoder_config(tiny.layer(hidden=10), gated=True))
    pruned = prune_units(model, {("decoder", 0): [9]})
    group = pruned.params["decoder"]["layers_0_0"]
    shapes = {name: array.shape for name, array in group["feed_forward"].items()}
    assert shapes["gate_bias"] == shapes["up_bias"] == (1, 9)
    assert shapes["down"] == (1, 9, tiny.WIDTH)
