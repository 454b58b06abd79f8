"""Head work on models with several head stacks, position biases, shared layers, and every kind of formulation."""

import numpy as np
import pytest

import headjax
from tests import tiny
from tests.closeness import assert_close
from tests.models import test_encoder as encoder
from tests.models import test_encoder_decoder as encoder_decoder
from tests.nn.formulations import FORMULATIONS

pytestmark = pytest.mark.whole  # every one of a product: minutes of compilation

GENERATOR = np.random.default_rng(1)
MASK = np.array([[1] * 8, [1] * 5 + [0] * 3])


def t5() -> tuple[headjax.Model, dict]:
    """An encoder and a decoder of other lengths, relative positions in both, and padding on both sides."""
    model = tiny.model(encoder_decoder.t5(attention=tiny.multi_head(3, scale=1.0)))
    labels = GENERATOR.integers(1, tiny.VOCABULARY, (2, 6))
    labels[1, 4:] = -100
    return model, tiny.tokens(2, 8) | {"attention_mask": MASK, "labels": labels}


def albert() -> tuple[headjax.Model, dict]:
    """A masked language model of one layer used twice."""
    config = encoder.config(
        "albert", num_layers=2, attention=tiny.multi_head(3), task=headjax.tasks.MaskedLanguageModel()
    )
    labels = np.where(GENERATOR.random((2, 8)) < 0.5, GENERATOR.integers(0, tiny.VOCABULARY, (2, 8)), -100)
    labels[:, 0] = 7
    given = {"attention_mask": MASK, "labels": np.where(MASK == 1, labels, -100)}
    return tiny.model(config), tiny.tokens(2, 8) | given


NAMES = ("fixed_head_size", "ragged_grouped", "collaborative", "latent_rotary", "compressed")


def mixed() -> tuple[headjax.Model, dict]:
    """A decoder in which every layer has another formulation."""
    return tiny.model(tiny.decoder_config(*[tiny.layer(FORMULATIONS[name]) for name in NAMES])), tiny.tokens(2, 8)


MODELS = {"t5": t5, "albert": albert, "mixed": mixed}


@pytest.fixture(scope="module")
def case(request):
    return MODELS[request.param]()


def losses(model, batch, gates):
    return np.asarray(headjax.gated(model, gates).loss(batch).total)


@pytest.mark.parametrize("case", MODELS, indirect=True, scope="module")
def test_ablations_equal_whole_forwards(case):
    model, batch = case
    got = headjax.ablate(model, [batch])
    assert got.heads == headjax.all_heads(model.config)
    for i, head in enumerate(got.heads):
        expected = losses(model, batch, {head: 0.0})
        assert_close(got.ablated["loss"][i], expected, sums=tiny.SUMS, message=str(head))


@pytest.mark.parametrize("by", ["importance", "ablation", "reconstruction", "subset", "random"])
def test_layers_that_share_their_parameters_lose_as_many_heads_as_are_asked_for(by):
    """A head that goes from one layer goes from all, so an order of single heads would take nearly every head."""
    model, batch = albert()
    order = headjax.order_heads(model, [batch], headjax.OrderConfig(by=by, gate_steps=3, seed=1), count=2)
    assert sorted(order) == sorted(headjax.all_heads(model.config))
    pruned = headjax.prune(model, order[:2])
    assert [attention.num_heads for attention in pruned.config.attentions()["encoder"]] == [2, 2]
    masked = headjax.gated(model, dict.fromkeys(order[:2], 0.0))(batch)
    assert_close(pruned(batch).logits, masked.logits, sums=tiny.SUMS)
