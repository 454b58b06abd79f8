"""Scores and ablations of a decoder in which every layer has another formulation."""

from __future__ import annotations

import pytest

from headjax.evaluation.task import measure_batch
from headjax.heads import gates
from headjax.heads.ablation import ablate
from headjax.heads.attended import head_roles
from headjax.heads.head_id import all_heads
from headjax.heads.scores import SCORES, score_heads
from headjax.models import Compute
from tests import tiny
from tests.attention.formulations import FORMULATIONS
from tests.closeness import assert_close, tolerance

pytestmark = pytest.mark.whole  # every one of a product: minutes of compilation

NAMES = ("fixed_head_size", "ragged_grouped", "tucker", "latent_rotary", "talking", "gated")
BATCH = tiny.tokens(2, 6)
COMPUTE = Compute(attention="einsum")


@pytest.fixture(scope="module")
def model():
    return tiny.model(tiny.decoder_config(*[tiny.layer(FORMULATIONS[name]) for name in NAMES]))


@pytest.fixture(scope="module")
def ablation(model):
    return ablate(model, [BATCH], compute=COMPUTE)


def test_every_head_has_every_score_and_a_role(model):
    scores, heads = score_heads(model, [BATCH]), list(all_heads(model.config))
    assert set(scores.values) == set(SCORES)
    for name, values in scores.values.items():
        assert list(values) == heads, name
        assert min(values.values()) >= -tolerance(tiny.SUMS), name
    for name in ("importance", "fisher", "context_norm", "output_norm", "confidence"):
        assert min(scores.score(name).values()) > 0.0, name
    assert max(scores.score("normalized_entropy").values()) <= 1.0 + tolerance(tiny.SUMS)
    assert list(head_roles(model, [BATCH])) == heads


def test_ablations_equal_whole_forwards(model, ablation):
    by_layer = {head.layer: (i, head) for i, head in enumerate(ablation.heads)}
    for i, head in by_layer.values():
        at = gates.without(model.config, [head])
        expected = measure_batch(model.config, None, COMPUTE, model.params, BATCH, at)[0].total
        assert_close(ablation.ablated["loss"][i], expected, sums=tiny.SUMS, message=str(head))
