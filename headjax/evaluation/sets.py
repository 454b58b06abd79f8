"""Measures of sets: several labels of an example, and candidates ranked for a query."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.data import metrics as formulas
from headjax.evaluation.measures import Kind, Measure, Outcome, Outcomes, Similarities
from headjax.models.config import Batch, Output
from headjax.models.inputs import batch_array
from headjax.models.tasks import MultiLabel

CUT = 10  # candidates of a ranking that count


@dataclasses.dataclass(frozen=True)
class SeveralLabels(Measure):
    """F1 of several labels an example, a class being predicted where its probability is above a half."""

    headline: str = "micro_f1"
    names: tuple[str, ...] = ()

    takes = (MultiLabel,)

    def outcomes(self) -> Mapping[str, Outcome]:
        return {f"class {number}": OfClass(number) for number in range(len(self.names))}

    def metrics(self, outcomes: Outcomes) -> dict[str, float]:
        codes = np.stack([outcomes[f"class {number}"] for number in range(len(self.names))], axis=1).astype(int)
        predicted, given = (codes & 1).astype(bool), (codes & 2).astype(bool)
        return {
            "micro_f1": formulas.f1(predicted.ravel(), given.ravel()),
            "macro_f1": float(np.mean([formulas.f1(*columns) for columns in zip(predicted.T, given.T, strict=True)])),
            "subset_accuracy": float((predicted == given).all(axis=1).mean()),
        }


@dataclasses.dataclass(frozen=True)
class OfClass:
    """Whether a class is predicted (1) and given (2)."""

    number: int

    def __call__(self, output: Output, batch: Batch) -> jax.Array:
        """Return the sum, `[batch]`."""
        predicted = output.require_logits()[:, self.number] > 0.0
        return predicted + 2.0 * jnp.nan_to_num(batch_array(batch, "labels")[:, self.number])


@dataclasses.dataclass(frozen=True)
class Ranking(Similarities):
    """The candidates of each query in the order of their similarities; queries without a relevant one do not count."""

    headline: str = f"ndcg_at_{CUT}"
    chosen: tuple[str, ...] = (f"ndcg_at_{CUT}", f"mrr_at_{CUT}")

    def outcomes(self) -> Mapping[str, Outcome]:
        return {**super().outcomes(), "query": query_number}

    @property
    def kind(self) -> Kind:
        return "graded"

    def metrics(self, outcomes: Outcomes) -> dict[str, float]:
        ranked = rankings(outcomes)
        reciprocal = float(np.mean([formulas.reciprocal_rank(one, CUT) for one in ranked]))
        return {f"ndcg_at_{CUT}": float(self.values(outcomes).mean()), f"mrr_at_{CUT}": reciprocal}

    def values(self, outcomes: Outcomes) -> np.ndarray:
        return np.asarray([formulas.ndcg(one, CUT) for one in rankings(outcomes)])


def query_number(output: Output, batch: Batch) -> jax.Array:
    """Return the number of the query, `[batch]`."""
    return batch_array(batch, "query")


def rankings(outcomes: Outcomes) -> list[np.ndarray]:
    """Return for every query with a relevant candidate the relevances in the order of falling predictions."""
    found = []
    for query in np.unique(outcomes["query"]):
        mine = outcomes["query"] == query
        order = np.argsort(-outcomes["prediction"][mine], kind="stable")
        relevance = outcomes["label"][mine][order]
        if (relevance > 0).any():
            found.append(relevance)
    if not found:
        raise HeadjaxError("retrieval: no query has a relevant text")
    return found
