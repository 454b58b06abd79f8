from __future__ import annotations

import itertools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np

from headjax.heads.fisher import exchange, fisher_blocks, fisher_selection
from headjax.heads.gates import to_values
from headjax.heads.head_id import HeadId, all_heads
from headjax.models.shared_stack import SharedStack
from tests import tiny
from tests.closeness import assert_close, assert_numbers_close


def cost(block, removed):
    return removed @ block @ removed


@hypothesis.given(st.integers(0, 10_000), st.integers(1, 6))
def test_no_single_exchange_improves_on_the_result(seed, count):
    gradients = np.random.default_rng(seed).standard_normal((5, 7))
    block = gradients.T @ gradients
    start = np.arange(7) < count
    end = exchange(block, start)
    assert end.sum() == count
    assert cost(block, end) <= cost(block, start) + 1e-9
    for i in np.flatnonzero(end):
        for j in np.flatnonzero(~end):
            other = end.copy()
            other[i], other[j] = False, True
            assert cost(block, other) >= cost(block, end) - 1e-6


def test_exchanges_nearly_always_find_the_best_subset():
    """All subsets are tried: 8 heads, gradients of 6 examples, 300 draws with 1 to 7 heads to remove."""
    generator, best = np.random.default_rng(0), []
    for draw in range(300):
        gradients, count = generator.standard_normal((6, 8)) * generator.uniform(0.2, 2.0, 8), 1 + draw % 7
        block = gradients.T @ gradients
        start = np.isin(np.arange(8), np.argsort(np.diagonal(block))[:count])
        subsets = [np.isin(np.arange(8), chosen) for chosen in itertools.combinations(range(8), count)]
        least = min(cost(block, subset) for subset in subsets)
        found = cost(block, exchange(block, start))
        assert found <= cost(block, start) + 1e-9
        best.append(found <= least + 1e-9)
    assert np.mean(best) > 0.85


def test_heads_that_make_up_for_each_other_go_together():
    """Removing heads 2 and 3, which pull the loss in opposite directions, costs nothing; 0 and 1 add up."""
    gradients = np.array([[1.0, 1.0, 1.5, -1.5], [0.5, 0.6, 0.0, 0.0]])
    removed = exchange(gradients.T @ gradients, np.array([True, True, False, False]))
    assert removed.tolist() == [False, False, True, True]


def test_blocks_have_the_fisher_scores_on_their_diagonal(model, batches, scores):
    blocks = fisher_blocks(model, batches)
    diagonal = to_values(model.config, {"decoder": np.diagonal(blocks["decoder"], axis1=1, axis2=2)})
    assert_numbers_close(diagonal, scores.score("fisher"), sums=2 * tiny.SUMS, name="fisher")
    eigenvalues = np.linalg.eigvalsh(blocks["decoder"])
    assert eigenvalues.min() > -1e-4 * eigenvalues.max()


def test_blocks_are_sums_over_every_examples_own_gradient():
    """Brute force: one example at a time, one gate per head, differentiated by itself."""
    config = tiny.decoder_config(tiny.layer(tiny.multi_head(4)), tiny.layer(tiny.multi_head(4)))
    model, batch = tiny.model(config), tiny.tokens(5, 6)
    expected = np.zeros((2, 4, 4))

    @jax.jit
    def gradient(example):
        def loss(gates):
            return config.loss(model({"input_ids": example}, {"decoder": gates}), {"input_ids": example}).total.sum()

        return jax.grad(loss)(jnp.ones((2, 4)))

    for example in batch["input_ids"]:
        own = np.asarray(gradient(jnp.asarray(example)[None]), np.float64)
        expected += own[:, :, None] * own[:, None, :]
    parts = [{"input_ids": batch["input_ids"][:3]}, {"input_ids": batch["input_ids"][3:]}]
    for batches in ([batch], parts):
        assert_close(fisher_blocks(model, batches)["decoder"], expected, sums=400)


def test_the_diagonal_says_how_many_heads_a_layer_loses():
    config = tiny.decoder_config(tiny.layer(tiny.multi_head(4)), tiny.layer(tiny.multi_head(2)))
    gradients = np.array([[1.0, 1.0, 1.5, -1.5], [0.5, 0.6, 0.0, 0.0]])
    blocks = {"decoder": np.stack([gradients.T @ gradients, np.diag([9.0, 0.1, 0.0, 0.0])])}
    assert fisher_selection(config, blocks, 1) == (HeadId("decoder", 1, 1),)
    three = fisher_selection(config, blocks, 3)
    assert sorted(head.layer for head in three) == [0, 0, 1]
    assert len(fisher_selection(config, blocks, 6)) == 6
    assert sorted(fisher_selection(config, blocks, 4, minimum=1)) != sorted(all_heads(config))


def test_layers_that_share_their_parameters_are_exchanged_as_one():
    """Heads 2 and 3 make up for each other; the depth that says nothing would lose all of its heads by itself."""
    config = tiny.decoder_config(decoder=SharedStack(layers=(tiny.layer(tiny.multi_head(4)),) * 2))
    gradients = np.array([[1.0, 1.0, 1.5, -1.5], [0.5, 0.6, 0.0, 0.0]])
    blocks = {"decoder": np.stack([np.zeros((4, 4)), gradients.T @ gradients])}
    expected = [HeadId("decoder", layer, head) for layer in (0, 1) for head in (2, 3)]
    for count in (4, 5):
        assert sorted(fisher_selection(config, blocks, count)) == expected
