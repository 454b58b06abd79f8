"""Models that scan over the parameters of stacked layers by hand, against the same layers in a plain loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import headjax
from tests.sites import houses
from tests.sites.houses import HEADS, batches, evaluated, loss, snapshot, without

BATCHES = batches()


class Split(houses.Scanned):
    """Scanned over parameters and the rest, which goes back into the layers, as in MaxText."""

    def hidden(self, x):
        graph, params, rest = nnx.split(self.layers, nnx.Param, ...)

        def body(x, layer):
            block = nnx.merge(graph, *layer)
            return block(x), nnx.state(block)

        x, after = jax.lax.scan(jax.checkpoint(body), x, (params, rest))
        nnx.update(self.layers, after)
        return x


class Params(houses.Scanned):
    """Scanned over parameters alone, beside a rest that all layers share."""

    def hidden(self, x):
        graph, params, rest = nnx.split(self.layers, nnx.Param, ...)
        return jax.lax.scan(lambda x, own: (nnx.merge(graph, own, rest)(x), None), x, params)[0]


class State(houses.Scanned):
    """Scanned over parameters that are the whole state of its layers."""

    def __init__(self, attention, seed=0):
        super().__init__(attention, seed)
        self.layers.dropout = nnx.Dropout(0.3)

    def hidden(self, x):
        graph = nnx.graphdef(self.layers)
        return jax.lax.scan(lambda x, own: (nnx.merge(graph, own)(x), None), x, nnx.state(self.layers, nnx.Param))[0]


def plain_flax_attention(rngs):
    return houses.flax_attention(rngs, dropout_rate=0.0, keep_rngs=False)


MODELS = [(Split, houses.EinsumAttention), (Params, houses.own_attention), (State, plain_flax_attention)]


def looped(model):
    """The same layers one by one."""
    graph, state = nnx.split(model.layers)
    found = houses.Classifier(houses.EinsumAttention, layers=0)
    slices = (jax.tree.map(lambda array, layer=layer: array[layer], state) for layer in range(3))
    found.layers = nnx.List([nnx.merge(graph, own) for own in slices])
    found.head = model.head
    return found


def by_layer(values):
    return np.array([values[head] for head in sorted(values, key=lambda head: (head.layer, head.head))])


@pytest.mark.parametrize("scan, attention", MODELS)
def test_heads_are_those_of_a_plain_loop(scan, attention):
    model = scan(attention)
    before, loop = snapshot(model), looped(model)
    found, expected = (headjax.score_heads(one, BATCHES, loss=loss) for one in (model, loop))
    for score in ("importance", "importance_token", "fisher"):
        values = by_layer(found.score(score))
        assert values.shape == (3 * HEADS,)
        np.testing.assert_allclose(values, by_layer(expected.score(score)), rtol=1e-6, atol=1e-6)
    found, expected = (headjax.ablate(one, BATCHES, loss=loss).effects() for one in (model, loop))
    np.testing.assert_allclose(by_layer(found), by_layer(expected), atol=1e-6)
    assert snapshot(model)[0] == before[0]


def test_gates_are_learned_and_heads_are_pruned():
    model = Split(plain_flax_attention)
    found = headjax.learn_gates(
        model, BATCHES, headjax.Subset(count=3 * HEADS - 3), steps=5, learning_rate=0.1, loss=loss
    )
    assert len(found.removed) == 3
    removed = [f"layers.attn.{layer}/{layer}" for layer in range(3)]  # stacked layers keep equal numbers
    pruned = headjax.prune(model, removed)
    expected = evaluated(without(model, removed), BATCHES[0])
    np.testing.assert_allclose(evaluated(pruned, BATCHES[0]), expected, atol=1e-5)
    assert headjax.attention_sites(pruned)[0].shape == (3, HEADS - 1)


def test_weight_decay_within_the_loss_sees_no_gates():
    def decayed(model, batch):
        weights = jax.tree.leaves(nnx.state(model, nnx.Param))
        return loss(model, batch) + 0.1 * sum(jnp.abs(array).sum() for array in weights)

    model = State(houses.EinsumAttention)
    for by in (
        lambda loss: headjax.score_heads(model, BATCHES, loss=loss).score("importance"),
        lambda loss: headjax.ablate(model, BATCHES, loss=loss).effects(),
    ):
        np.testing.assert_allclose(by_layer(by(decayed)), by_layer(by(loss)), atol=2e-5)
