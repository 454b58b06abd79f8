from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import numpy as np
import pytest

from headjax.attention import Gated
from headjax.core.serialize import kind
from headjax.core.tensors import head_axis
from headjax.heads import gates
from headjax.heads.head_id import HeadId
from headjax.heads.pruning import prune
from headjax.heads.rescaling import fold_gates, rescale
from headjax.heads.surgery import map_attention
from headjax.models.sublayers import Dense, DenseFeedForward
from tests import tiny
from tests.closeness import assert_close
from tests.models.test_encoder import config as encoder

MASK = np.array([[1] * 8, [1] * 5 + [0] * 3, [1] * 8])
BATCHES = [tiny.tokens(3, 8, seed) | {"attention_mask": MASK} for seed in range(2)]
REMOVED = [HeadId("decoder", 0, 3), HeadId("decoder", 1, 0), HeadId("decoder", 1, 2), HeadId("decoder", 2, 1)]


@pytest.fixture(scope="module")
def model():
    config = tiny.decoder_config(*[tiny.layer(tiny.multi_head(4))] * 2, tiny.layer(tiny.collaborative(2)))
    return tiny.model(config)


def outputs(probe):
    """The layer's attention output without bias, `[batch, query, width]`."""
    context = probe.attended.context
    return probe.module.combine(context) - probe.module.combine(0.0 * context)


def errors(model, at):
    """Squared distance of each layer's output to that with all heads, over tokens."""
    totals = np.zeros(3)
    for batch in BATCHES:
        whole, pruned = (model(batch, g, probe=outputs).probes["decoder"] for g in (gates.ones(model.config), at))
        present = batch["attention_mask"].astype(bool)
        totals += [float((np.asarray(a - b)[present] ** 2).sum()) for a, b in zip(whole, pruned, strict=True)]
    return totals


def test_a_twin_takes_over_the_removed_heads_part(model):
    """Head 3 of layer 0 made equal to head 1: without it, head 1 has to count twice, and nothing is lost."""

    def twin(found):
        twins = {}
        for name, tensor in found.config.tensors(16, 16).items():
            axis = head_axis(tensor)
            array = found.params[name]
            twins[name] = array if axis is None else jax.numpy.take(array, np.array([0, 1, 2, 1]), axis=axis)
        return found.holding(twins)

    twinned = map_attention(model, twin, layers=[0])
    got = rescale(twinned, BATCHES, [HeadId("decoder", 0, 3)])
    np.testing.assert_allclose(got["decoder"][0], [1.0, 2.0, 1.0, 0.0], atol=1e-3)
    np.testing.assert_array_equal(got["decoder"][1], np.ones(4))
    np.testing.assert_allclose(twinned(BATCHES[0], got).logits, twinned(BATCHES[0]).logits, atol=1e-2)


def changed_attention(model, layer, **arrays):
    """The model with other parameters in one attention layer, computed from its own."""

    def change(found):
        return found.holding({name: function(found.params[name]) for name, function in arrays.items()})

    return map_attention(model, change, layers=[layer])


def test_a_head_that_writes_nothing_on_these_examples_keeps_its_gate(model):
    """Least squares say nothing about its gate, and on other examples it may write something."""
    silent = changed_attention(model, 0, output=lambda output: output.at[1].set(0.0))
    at = rescale(silent, BATCHES, [HeadId("decoder", 0, 3)])
    assert at["decoder"][0, 1] == 1.0
    assert at["decoder"][0, 0] != 1.0


def test_a_layer_whose_gates_explode_stays_as_it_is_and_ends_the_rescaling(model):
    """Head 3 is 50 times the difference of heads 0 and 1, so the exact solution would be gates of 51 and -49."""

    def alike(array):
        return array.at[..., [1, 3], :].set(array[..., :1, :])

    def difference(array):
        return array.at[..., 3, :].set(50.0 * (array[..., 0, :] - array[..., 1, :]))

    extreme = changed_attention(
        model,
        1,
        **dict.fromkeys(("query", "query_bias", "key", "key_bias"), alike),
        **dict.fromkeys(("value", "value_bias"), difference),
        output=lambda output: output.at[jax.numpy.array([1, 3])].set(output[0]),
    )
    removed = [HeadId("decoder", 0, 3), HeadId("decoder", 1, 3), HeadId("decoder", 2, 1)]
    at = rescale(extreme, BATCHES, removed)["decoder"]
    assert (np.asarray(at[0, :3]) != 1.0).all()
    np.testing.assert_array_equal(at[1], [1.0, 1.0, 1.0, 0.0])
    np.testing.assert_array_equal(at[2, :2], [1.0, 0.0])


@pytest.fixture(scope="module")
def at(model):
    return rescale(model, BATCHES, REMOVED)


def test_every_layer_is_at_its_least_squares(model, at):
    best = errors(model, at)
    masked = errors(model, gates.without(model.config, REMOVED))
    assert best[0] < masked[0]
    for head in [HeadId("decoder", 0, 1), HeadId("decoder", 1, 3), HeadId("decoder", 2, 0)]:
        for step in (-0.02, 0.02):
            moved = {"decoder": at["decoder"].at[head.layer, head.head].add(step)}
            assert errors(model, moved)[head.layer] > best[head.layer]
    for head in REMOVED:
        assert at["decoder"][head.layer, head.head] == 0.0


def test_folded_and_pruned_computes_the_same(model, at):
    smaller = prune(fold_gates(model, at), REMOVED)
    assert_close(smaller(BATCHES[0]).logits, model(BATCHES[0], at).logits, sums=tiny.SUMS)
    assert [entry["action"] for entry in smaller.history] == ["fold_gates", "prune"]


def test_gates_fold_into_wrapped_formulations():
    gated = tiny.model(tiny.decoder_config(tiny.layer(Gated(inner=tiny.multi_head(2)))))
    at = {"decoder": jax.numpy.array([[0.5, -2.0]])}
    assert_close(fold_gates(gated, at)(BATCHES[0]).logits, gated(BATCHES[0], at).logits, sums=tiny.SUMS)


def test_layers_that_share_parameters_have_one_set_of_gates():
    """Gates are NumPy's least squares over both depths of a head, and fold into the one set of weights."""
    config = encoder("albert", num_layers=2, attention=tiny.multi_head(3))
    whole = tiny.model(config)
    removed = [HeadId("encoder", 1, 1)]
    at = rescale(whole, BATCHES, removed)
    masked = gates.without(config, [HeadId("encoder", layer, 1) for layer in (0, 1)])
    heads, targets = [], []
    for batch in BATCHES:
        wanted, given = (whole(batch, g, probe=by_head).probes["encoder"] for g in (gates.ones(config), masked))
        heads += [np.asarray(layer)[MASK == 1][:, [0, 2]] for layer in given]
        targets += [np.asarray(layer)[MASK == 1].sum(axis=1) for layer in wanted]
    x = np.swapaxes(np.concatenate(heads), 1, 2).reshape(-1, 2)
    expected = np.linalg.lstsq(x, np.concatenate(targets).ravel(), rcond=None)[0]
    np.testing.assert_allclose(at["encoder"], [np.insert(expected, 1, 0.0)] * 2, rtol=1e-3)
    smaller = prune(fold_gates(whole, at), removed)
    assert_close(smaller(BATCHES[0]).hidden, whole(BATCHES[0], at).hidden, sums=tiny.SUMS)


def by_head(probe):
    """The heads' parts of the layer's attention output, `[batch, query, heads, width]`."""
    return jax.numpy.einsum("bqhv,hvw->bqhw", probe.attended.context, probe.module.output_matrices())


@kind("counting")
@dataclasses.dataclass(frozen=True)
class Counting(Dense):
    """A feed-forward that counts how often it is computed."""

    done: ClassVar[list[int]] = []

    def module(self, width):
        return CountingFeedForward(self, width)


class CountingFeedForward(DenseFeedForward):
    def __call__(self, inputs, dropout):
        jax.debug.callback(lambda: Counting.done.append(1))
        return super().__call__(inputs, dropout)


def test_layers_are_not_computed_again_for_each_one():
    """Twice with the sums, in the whole and in the pruned model, and once with the new gates."""
    layers = [tiny.layer(feed_forward=Counting(8))] * 8
    whole = tiny.model(tiny.decoder_config(*layers))
    rescale(whole, BATCHES, [HeadId("decoder", number, 0) for number in range(len(layers))])
    jax.effects_barrier()
    assert len(layers) * len(BATCHES) <= len(Counting.done) <= 3 * len(layers) * len(BATCHES)
