import jax
import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from tests import tiny
from tests.closeness import assert_numbers_close, close_to


def test_importance_is_the_finite_difference_of_each_examples_loss(model, batches):
    """Central differences of every example's loss in every gate, in float32."""
    step, given = 3e-2, batches[0]
    found = headjax.score_heads(model, [given])
    for head in headjax.all_heads(model.config):
        up, down = (headjax.gated(model, {head: 1.0 + move}).loss(given).total for move in (step, -step))
        slopes = np.asarray(up - down) / (2 * step)
        assert found.score("importance")[head] == pytest.approx(np.abs(slopes).mean(), abs=5e-3, rel=2e-2)
        assert found.score("fisher")[head] == pytest.approx(np.square(slopes).sum(), abs=5e-3, rel=5e-2)


def test_statistics_are_means_over_tokens(model, batches, scores):
    total, count = 0.0, 0
    for given in batches:
        attention = model(given, attention=True).attention["decoder"][1]
        probabilities = np.swapaxes(np.asarray(attention, np.float64), 1, 2)[given["attention_mask"] == 1]
        total += -np.where(probabilities > 0, probabilities * np.log(probabilities + 1e-300), 0.0).sum((0, 2))
        count += len(probabilities)
    for h in range(3):
        assert scores.score("entropy")[headjax.HeadId("decoder", 1, h)] == close_to(total[h] / count, sums=tiny.SUMS)


def test_filler_examples_and_what_stands_in_padding_change_nothing(model, batches, scores):
    halves = []
    for given in batches:
        for rows in ([1, 1, 0, 0], [0, 0, 1, 1]):
            mask = given["attention_mask"] * np.array(rows)[:, None]
            halves.append({"attention_mask": mask, "input_ids": np.where(mask == 1, given["input_ids"], 7)})
    got = headjax.score_heads(model, halves)
    assert (got.examples, got.loss) == (scores.examples, close_to(scores.loss, sums=tiny.SUMS))
    for name in scores.values:
        assert_numbers_close(got.score(name), scores.score(name), sums=2 * tiny.SUMS, name=name)


def test_scoring_at_gates_is_scoring_the_pruned_model(model, batches):
    removed = [headjax.HeadId("decoder", 0, 1), headjax.HeadId("decoder", 2, 0), headjax.HeadId("decoder", 2, 1)]
    pruned = headjax.prune(model, removed)
    assert pruned.config.attentions()["decoder"][2].of is headjax.nn.NoHeadsAttention
    expected = headjax.score_heads(pruned, batches)
    got = headjax.score_heads(model, batches, gates=dict.fromkeys(removed, 0.0))
    for name in ("importance", "fisher", "entropy"):
        masked = {head: got.score(name)[head] for head in expected.score(name)}
        assert_numbers_close(masked, expected.score(name), sums=2 * tiny.SUMS, name=name)


def test_a_score_that_is_not_finite_names_its_head(model, batches):
    broken = jax.tree.map(lambda array: array, model.params)
    layer = broken["decoder"]["layers_2_2"]["attention"]
    layer["value"] = layer["value"].at[0, :, 1].set(jnp.nan)
    with pytest.raises(headjax.HeadjaxError, match=r"score: \w+ of head decoder/\d/\d is nan in batch 0"):
        headjax.score_heads(model.replace(params=broken), batches)


def test_statistics_of_one_head_and_a_loss_of_one_number():
    """Batches of one example are then scored one by one."""
    one, given = tiny.model(tiny.decoder_config(tiny.layer(tiny.multi_head(1)))), tiny.tokens(3)
    expected = headjax.score_heads(one, [given]).score("entropy")
    found = headjax.score_heads(one, [given], loss=lambda model, batch: model.loss(batch).total.sum())
    assert_numbers_close(found.score("entropy"), expected, sums=tiny.SUMS, name="entropy")


def test_hies_is_the_mean_of_importance_and_certainty(scores):
    """Each min-max normalised over all heads (arXiv 2510.13832, alpha = 0.5)."""
    found, importance, entropy = (scores.score(name) for name in ("hies", "importance", "normalized_entropy"))

    def scaled(values):
        low, high = min(values.values()), max(values.values())
        return {head: (value - low) / (high - low) for head, value in values.items()}

    expected = {head: (value + 1.0 - scaled(entropy)[head]) / 2 for head, value in scaled(importance).items()}
    assert_numbers_close(found, expected, sums=tiny.SUMS, name="hies")
