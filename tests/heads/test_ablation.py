import jax
import numpy as np
import pytest

import headjax
from tests import tiny
from tests.closeness import assert_close, close_to


def confident(model, batch):
    """A metric: the mean probability of the likeliest token."""
    return jax.nn.softmax(model(batch).logits).max(axis=-1).mean(axis=-1)


METRICS = {"confident": confident}


@pytest.fixture(scope="module")
def batches(batches):
    """One example of the second batch is padding alone."""
    mask = batches[1]["attention_mask"].copy()
    mask[1] = 0
    return [batches[0], batches[1] | {"attention_mask": mask}]


@pytest.fixture(scope="module")
def each(model, batches):
    return headjax.ablate(model, batches, metrics=METRICS)


def plainly(model, batches, removed):
    """(loss, confident) of every example by whole passes of the model without these heads."""
    gated, values = headjax.gated(model, dict.fromkeys(removed, 0.0)), []
    for given in batches:
        loss = gated.loss(given)
        values.append(np.stack([loss.total, confident(gated, given)])[:, np.asarray(loss.weight) > 0])
    return np.concatenate(values, axis=1)


def test_the_walk_equals_whole_passes_of_gated_models(model, batches, each):
    assert each.heads == headjax.all_heads(model.config)
    assert each.baseline["loss"].shape == (7,)
    for i, head in enumerate(each.heads):
        expected = plainly(model, batches, [head])
        assert_close(each.ablated["loss"][i], expected[0], sums=tiny.SUMS)
        assert_close(each.ablated["confident"][i], expected[1], sums=tiny.SUMS)
    own = plainly(model, batches, [])
    targets = 7 + 4 + 4 + 7 + 7 + 4 + 7
    assert each.mean() == close_to(own[0].sum() / targets, sums=tiny.SUMS)
    effect = plainly(model, batches, each.heads[4:5]) - own
    assert_close(each.effects()[each.heads[4]], effect[0].sum() / targets, sums=tiny.SUMS, scale=each.mean())
    assert_close(each.effects("confident")[each.heads[4]], effect[1].mean(), sums=tiny.SUMS, scale=1.0)


def test_all_but_one_leaves_the_layer_a_single_head(model, batches):
    got = headjax.ablate(model, batches, "all-but-one", metrics=METRICS)
    for i, head in enumerate(got.heads):
        others = [h for h in got.heads if h.layer == head.layer and h != head]
        expected = plainly(model, batches, others)
        assert_close(got.ablated["loss"][i], expected[0], sums=tiny.SUMS)


def test_ablating_from_gates_goes_on_from_what_is_removed(model, batches):
    removed = [headjax.HeadId("decoder", 0, 2), headjax.HeadId("decoder", 2, 0)]
    chosen = [headjax.HeadId("decoder", 0, 0), headjax.HeadId("decoder", 1, 1)]
    at, done = dict.fromkeys(removed, 0.0), []
    got = headjax.ablate(model, batches, heads=chosen, gates=at, metrics=METRICS, progress=lambda n, _: done.append(n))
    assert done == [1, 2], "batches"
    assert got.heads == tuple(chosen)
    for i, head in enumerate(chosen):
        expected = plainly(model, batches, [*removed, head])
        assert_close(got.ablated["loss"][i], expected[0], sums=tiny.SUMS)
