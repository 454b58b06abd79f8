import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headjax.attention import NoHeads
from headjax.core.errors import HeadjaxError
from headjax.heads import gates
from headjax.heads.head_id import HeadId, all_heads, position
from headjax.heads.pruning import prune
from headjax.heads.scores import DESCRIPTIONS, hies
from headjax.models.compute import Compute
from headjax.models.config import Options
from headjax.models.shared_stack import SharedStack
from headjax.sites.scoring import score_heads
from tests import tiny
from tests.closeness import assert_close, assert_numbers_close, close_to


@functools.partial(jax.jit, static_argnums=0)
def losses(config, params, given, at):
    return config.loss(config.apply(params, given, Options(gates=at)), given).total


@functools.partial(jax.jit, static_argnums=0)
def gradients(config, params, given):
    """`[layers, batch, query, heads]`."""
    return gate_gradient(config, params, given, gates.ones(config), lambda probe: None, Compute()).gradient["decoder"]


def test_gradient_is_the_finite_difference_of_each_examples_loss(model, batches):
    """Central differences of every example's loss in every gate, in float32."""
    config, given = model.config, batches[0]
    ones = gates.ones(config)["decoder"]
    got = gradients(config, model.params, given).sum(axis=2)
    step = 3e-2
    for head in all_heads(config):
        move = step * (ones - gates.without(config, [head])["decoder"])
        up = losses(config, model.params, given, {"decoder": ones + move})
        down = losses(config, model.params, given, {"decoder": ones - move})
        derived = got[head.layer, :, position(config, head)]
        np.testing.assert_allclose(derived, (up - down) / (2 * step), atol=5e-3, rtol=2e-2)


def test_every_definition_equals_a_loop_over_single_examples(model, batches, scores):
    by_example, by_token, fisher, tokens = 0.0, 0.0, 0.0, 0
    for given in batches:
        for i, length in enumerate(given["attention_mask"].sum(axis=1)):
            single = {"input_ids": given["input_ids"][i : i + 1, :length]}  # no padding at all
            gradient = gradients(model.config, model.params, single)[:, 0]
            example = np.asarray(gradient.sum(axis=1))
            by_example += np.abs(example)
            by_token += np.abs(np.asarray(gradient)).sum(axis=1)
            fisher += example**2
            tokens += length
    expected = {"importance": by_example / 8, "importance_token": by_token / tokens, "fisher": fisher}
    for name, array in expected.items():
        values = gates.to_values(model.config, {"decoder": array})
        assert_numbers_close(scores.score(name), values, sums=2 * tiny.SUMS, name=name)
    assert scores.examples == 8


def test_statistics_are_means_over_tokens(model, batches, scores):
    total, count = 0.0, 0
    for given in batches:
        attention = model(given, attention=True).attention["decoder"][1]
        probabilities = np.swapaxes(np.asarray(attention, np.float64), 1, 2)[given["attention_mask"] == 1]
        total += -np.where(probabilities > 0, probabilities * np.log(probabilities + 1e-300), 0.0).sum((0, 2))
        count += len(probabilities)
    for h in range(3):
        assert scores.score("entropy")[HeadId("decoder", 1, h)] == close_to(total[h] / count, sums=tiny.SUMS)
    assert set(scores.values) == set(DESCRIPTIONS)


def test_filler_examples_and_what_stands_in_padding_change_nothing(model, batches, scores):
    halves = []
    for given in batches:
        for rows in ([1, 1, 0, 0], [0, 0, 1, 1]):
            mask = given["attention_mask"] * np.array(rows)[:, None]
            halves.append({"attention_mask": mask, "input_ids": np.where(mask == 1, given["input_ids"], 7)})
    got = score_heads(model, halves)
    assert (got.examples, got.loss) == (scores.examples, close_to(scores.loss, sums=tiny.SUMS))
    for name in DESCRIPTIONS:
        assert_numbers_close(got.score(name), scores.score(name), sums=2 * tiny.SUMS, name=name)


def test_batches_sharded_over_a_mesh_give_the_same_scores(model, batches, scores):
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    replicated = model.replace(params=jax.device_put(model.params, NamedSharding(mesh, PartitionSpec())))
    got = score_heads(replicated, [jax.device_put(dict(given), sharding) for given in batches])
    for name in DESCRIPTIONS:
        assert_numbers_close(got.score(name), scores.score(name), sums=2 * tiny.SUMS, name=name)


def test_scoring_at_gates_is_scoring_the_pruned_model(model, batches):
    removed = [HeadId("decoder", 0, 1), HeadId("decoder", 2, 0), HeadId("decoder", 2, 1)]
    pruned = prune(model, removed)
    assert isinstance(pruned.config.attentions()["decoder"][2], NoHeads)
    expected = score_heads(pruned, batches)
    got = score_heads(model, batches, gates=gates.without(model.config, removed))
    for name in ("importance", "fisher", "entropy"):
        masked = {head: got.score(name)[head] for head in expected.score(name)}
        assert_numbers_close(masked, expected.score(name), sums=2 * tiny.SUMS, name=name)


def test_a_score_that_is_not_finite_names_its_head(model, batches):
    broken = jax.tree.map(lambda array: array, model.params)
    layer = broken["decoder"]["layers_2_2"]["attention"]
    layer["value"] = layer["value"].at[0, :, 1].set(jnp.nan)
    with pytest.raises(HeadjaxError, match=r"score: \w+ of head decoder/\d/\d is nan in batch 0"):
        score_heads(model.replace(params=broken), batches)


@pytest.mark.parametrize("layers", [4, 1], ids=["own", "shared"])
def test_arrays_for_each_layer_give_the_scores_of_the_scan(monkeypatch, batches, layers):
    shared = layers == 1
    stack = {"decoder": SharedStack(layers=(tiny.layer(),) * 4)} if shared else {}
    model = tiny.model(tiny.decoder_config(*(tiny.layer(),) * 4, **stack))
    split = own_arrays(model.config, model.params, Compute())["decoder"]["layers_0_3"]
    assert isinstance(split, dict if shared else list)
    found = score_heads(model, batches).values
    monkeypatch.setattr("headjax.heads.scores.UNROLLED", 0)
    assert isinstance(own_arrays(model.config, model.params, Compute())["decoder"]["layers_0_3"], dict)
    expected = score_heads(model, batches).values
    for name, heads in expected.items():
        assert_close(list(found[name].values()), list(heads.values()), sums=1_000, message=name)


HEADS = [HeadId(stack, i, h) for stack in ("encoder", "cross") for i in range(2) for h in range(3)]


def test_hies_by_hand():
    importance = {HEADS[0]: 0.0, HEADS[1]: 2.0, HEADS[2]: 1.0}
    entropy = {HEADS[0]: 0.5, HEADS[1]: 0.9, HEADS[2]: 0.1}
    got = hies(importance, entropy, alpha=0.25)
    assert got == pytest.approx({HEADS[0]: 0.75 * 0.5, HEADS[1]: 0.25, HEADS[2]: 0.25 * 0.5 + 0.75})
