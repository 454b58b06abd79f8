from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from headjax.core.errors import DataError, HeadjaxError
from headjax.heads.fisher import exchange, fisher_blocks, fisher_selection
from headjax.heads.gates import to_values
from headjax.heads.head_id import HeadId, all_heads
from headjax.heads.scores import score_heads
from tests import tiny


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


def test_heads_that_make_up_for_each_other_go_together():
    """Removing heads 2 and 3, which pull the loss in opposite directions, costs nothing; 0 and 1 add up."""
    gradients = np.array([[1.0, 1.0, 1.5, -1.5], [0.5, 0.6, 0.0, 0.0]])
    removed = exchange(gradients.T @ gradients, np.array([True, True, False, False]))
    assert removed.tolist() == [False, False, True, True]


def test_blocks_have_the_fisher_scores_on_their_diagonal():
    config = tiny.decoder_config(tiny.layer(tiny.multi_head(3)), tiny.layer(tiny.multi_head(2)))
    model, batches = tiny.model(config), [tiny.tokens(3, 6, 0), tiny.tokens(3, 6, 1)]
    blocks = fisher_blocks(model, batches)
    diagonal = to_values(config, {"decoder": np.diagonal(blocks["decoder"], axis1=1, axis2=2)})
    assert diagonal == pytest.approx(score_heads(model, batches, statistics=()).score("fisher"), rel=1e-4)
    eigenvalues = np.linalg.eigvalsh(blocks["decoder"])
    assert eigenvalues.min() > -1e-4 * eigenvalues.max()
    with pytest.raises(DataError, match="no example"):
        fisher_blocks(model, [])


def test_the_diagonal_says_how_many_heads_a_layer_loses():
    config = tiny.decoder_config(tiny.layer(tiny.multi_head(4)), tiny.layer(tiny.multi_head(2)))
    gradients = np.array([[1.0, 1.0, 1.5, -1.5], [0.5, 0.6, 0.0, 0.0]])
    blocks = {"decoder": np.stack([gradients.T @ gradients, np.diag([9.0, 0.1, 0.0, 0.0])])}
    assert fisher_selection(config, blocks, 1) == (HeadId("decoder", 1, 1),)
    three = fisher_selection(config, blocks, 3)
    assert sorted(head.layer for head in three) == [0, 0, 1]
    assert len(fisher_selection(config, blocks, 6)) == 6
    assert sorted(fisher_selection(config, blocks, 4, minimum=1)) != sorted(all_heads(config))
    with pytest.raises(HeadjaxError, match="only 4 may be removed"):
        fisher_selection(config, blocks, 5, minimum=1)
