"""Head work on models with several head stacks, position biases, shared layers, and every kind of formulation."""

import numpy as np
import pytest

from headjax.evaluation.task import measure_batch
from headjax.heads import gates
from headjax.heads.attended import head_roles
from headjax.heads.head_id import HeadId, all_heads
from headjax.heads.named_orders import OrderConfig, order_heads
from headjax.heads.pruning import prune
from headjax.heads.scores import DESCRIPTIONS
from headjax.models import Compute, Model
from headjax.models.tasks import MaskedLanguageModel
from headjax.sites.ablation import ablate
from headjax.sites.scoring import score_heads
from tests import tiny
from tests.attention.formulations import FORMULATIONS
from tests.closeness import assert_close, tolerance
from tests.models import test_encoder as encoder
from tests.models import test_encoder_decoder as encoder_decoder

pytestmark = pytest.mark.whole  # every one of a product: minutes of compilation

GENERATOR = np.random.default_rng(1)
MASK = np.array([[1] * 8, [1] * 5 + [0] * 3])


def t5() -> tuple[Model, dict]:
    """An encoder and a decoder of other lengths, relative positions in both, and padding on both sides."""
    model = tiny.model(encoder_decoder.t5(attention=tiny.multi_head(3, scale=1.0)))
    labels = GENERATOR.integers(1, tiny.VOCABULARY, (2, 6))
    labels[1, 4:] = -100
    return model, tiny.tokens(2, 8) | {"attention_mask": MASK, "labels": labels}


def albert() -> tuple[Model, dict]:
    """A masked language model of one layer used twice."""
    config = encoder.config("albert", num_layers=2, attention=tiny.multi_head(3), task=MaskedLanguageModel())
    labels = np.where(GENERATOR.random((2, 8)) < 0.5, GENERATOR.integers(0, tiny.VOCABULARY, (2, 8)), -100)
    labels[:, 0] = 7
    given = {"attention_mask": MASK, "labels": np.where(MASK == 1, labels, -100)}
    return tiny.model(config), tiny.tokens(2, 8) | given


NAMES = ("fixed_head_size", "ragged_grouped", "collaborative", "latent_rotary", "gated")


def mixed() -> tuple[Model, dict]:
    """A decoder in which every layer has another formulation."""
    return tiny.model(tiny.decoder_config(*[tiny.layer(FORMULATIONS[name]) for name in NAMES])), tiny.tokens(2, 8)


MODELS = {"t5": t5, "albert": albert, "mixed": mixed}


@pytest.fixture(scope="module")
def case(request):
    return MODELS[request.param]()


t5_and_albert = pytest.mark.parametrize("case", ["t5", "albert"], indirect=True, scope="module")


def losses(model, batch, at):
    return np.asarray(measure_batch(model.config.for_evaluation(), None, Compute(), model.params, batch, at)[0].total)


@t5_and_albert
def test_importance_is_the_finite_difference_in_every_head_stack(case):
    model, batch = case
    scores = score_heads(model, [batch])
    assert set(scores.values) == set(DESCRIPTIONS)
    assert set(scores.score("importance")) == set(all_heads(model.config))
    ones, step = gates.ones(model.config), 2e-2
    for head in all_heads(model.config):
        off = gates.without(model.config, [head])
        up, down = (
            losses(model, batch, {name: array + sign * step * (array - off[name]) for name, array in ones.items()})
            for sign in (1, -1)
        )
        expected = np.abs((up - down) / (2 * step)).mean()
        assert scores.score("importance")[head] == pytest.approx(expected, rel=3e-2, abs=2e-2), head


@pytest.mark.parametrize("case", MODELS, indirect=True, scope="module")
def test_ablations_equal_whole_forwards(case):
    model, batch = case
    got = ablate(model, [batch])
    assert got.heads == all_heads(model.config)
    for i, head in enumerate(got.heads):
        expected = losses(model, batch, gates.without(model.config, [head]))
        assert_close(got.ablated["loss"][i], expected, sums=tiny.SUMS, message=str(head))


@pytest.mark.parametrize("by", ["importance", "ablation", "reconstruction", "subset", "random"])
def test_layers_that_share_their_parameters_lose_as_many_heads_as_are_asked_for(by):
    """A head that goes from one layer goes from all, so an order of single heads would take nearly every head."""
    model, batch = albert()
    order = order_heads(model, [batch], OrderConfig(by=by, gate_steps=3, seed=1))(2)
    assert sorted(order) == sorted(all_heads(model.config))
    pruned = prune(model, order[:2])
    assert [attention.num_heads for attention in pruned.config.attentions()["encoder"]] == [2, 2]
    masked = model(batch, gates.without(model.config, order[:2]))
    assert_close(pruned(batch).logits, masked.logits, sums=tiny.SUMS)


def test_gates_of_some_head_stacks_leave_the_others_at_one():
    model, batch = t5()
    some = {"decoder": gates.without(model.config, [HeadId("decoder", 1, 2)])["decoder"]}
    every = gates.ones(model.config) | some
    assert score_heads(model, [batch], gates=some).values == score_heads(model, [batch], gates=every).values
    found, expected = (ablate(model, [batch], heads=[HeadId("cross", 0, 1)], gates=at) for at in (some, every))
    assert found.effects() == expected.effects()


@pytest.mark.parametrize("case", ["mixed"], indirect=True, scope="module")
def test_every_head_of_every_formulation_has_every_score_and_a_role(case):
    model, batch = case
    scores, heads = score_heads(model, [batch]), list(all_heads(model.config))
    assert set(scores.values) == set(DESCRIPTIONS)
    for name, values in scores.values.items():
        assert list(values) == heads, name
        assert min(values.values()) >= -tolerance(tiny.SUMS), name
    for name in ("importance", "fisher"):
        assert min(scores.score(name).values()) > 0.0, name
    assert max(scores.score("normalized_entropy").values()) <= 1.0 + tolerance(tiny.SUMS)
    assert list(head_roles(model, [batch])) == heads
