"""The test of an ablation's effect follows from the measure, not from the values that the baseline happens to have."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from headjax.evaluation.head_effects import head_effects
from headjax.evaluation.measures import Classes, Kind, LanguageModelling, Measure, Numbers
from headjax.evaluation.spans import Spans
from headjax.heads.ablation import Ablation
from headjax.heads.head_id import HeadId

HEAD = HeadId("encoder", 0, 0)
BASELINE = np.array([1.0, 0.0, 1.0, 1.0])


@dataclasses.dataclass(frozen=True)
class Mean(Measure):
    """The mean of the outcome `value`."""

    headline: str = "value"
    declared: Kind = "graded"

    @property
    def kind(self) -> Kind:
        return self.declared

    def metrics(self, outcomes):
        return {"value": float(outcomes["value"].mean())}

    def values(self, outcomes):
        return outcomes["value"]


def ablation(changed):
    loss = np.ones(4)
    return Ablation(
        "each",
        (HEAD,),
        {"loss": loss, "value": BASELINE},
        {"loss": loss[None], "value": np.asarray(changed)[None]},
        {"loss": np.ones(4), "value": np.ones(4)},
    )


def test_a_graded_outcome_may_start_whole_and_become_a_fraction():
    """F1 of a few questions is 0 or 1 with all heads; an ablation may leave half an answer."""
    found = head_effects(ablation([0.5, 0.0, 1.0, 1.0]), Mean(), resamples=50)
    assert found.test == "paired bootstrap, 50 resamples"
    assert found.effects() == {HEAD: -0.125}
    assert found.comparisons[HEAD].difference == -0.125


def test_a_graded_outcome_keeps_its_test_where_every_value_is_whole():
    assert head_effects(ablation([0.0, 0.0, 1.0, 1.0]), Mean(), resamples=50).test == "paired bootstrap, 50 resamples"


def test_a_binary_outcome_gets_the_exact_test():
    found = head_effects(ablation([0.0, 0.0, 1.0, 1.0]), Mean(declared="binary"))
    assert found.test == "McNemar's exact test"
    assert found.comparisons[HEAD].p_value == 1.0


@pytest.mark.parametrize(
    ("measure", "kind"),
    [
        (Classes(), "binary"),
        (Classes(headline="f1", chosen=("f1",)), "corpus"),
        (Numbers(), "corpus"),
        (LanguageModelling(), "sum"),
        (Spans(), "graded"),
    ],
)
def test_every_measure_says_its_kind(measure, kind):
    assert measure.kind == kind
