"""Pruning curves of several orders, each repeated with several seeds."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from headjax.core.fields import Checked
from headjax.heads.discovery import find_sites
from headjax.heads.head_id import all_heads
from headjax.heads.ordering import Order, fitting, removals
from headjax.heads.orders import LEARNED, OrderConfig, order_heads
from headjax.heads.program import gated
from headjax.heads.pruning import percent_steps
from headjax.heads.reconstruct import reconstruct
from headjax.heads.significance import Comparison
from headjax.models.config import Batch
from headjax.models.model import Model

WORDS = {"importance_layer": "importance within the layer", "random": "chance"}


@dataclasses.dataclass(frozen=True)
class CurveConfig(Checked):
    """An order of removal, and the repair that follows.

    Attributes:
        order: the order.
        reconstruct: whether the output projections of kept heads are refitted (`headjax.reconstruct`).
    """

    order: OrderConfig
    reconstruct: bool = False

    @property
    def words(self) -> str:
        """The order in words."""
        words = WORDS.get(self.order.by, self.order.by.replace("_", " "))
        return f"{words}, refitted" if self.reconstruct else words

    @classmethod
    def parse(cls, text: str) -> CurveConfig:
        """`importance`, `reconstruction+reconstruct`, ..."""
        order = text.removesuffix("+reconstruct")
        return cls(OrderConfig(by=order), order != text)


class Judged(NamedTuple):
    """A model's headline on a task, and its change from the original's, tested on the same examples."""

    value: float
    change: Comparison | None = None


Judge = Callable[[Model], Judged]


class CurvePoint(NamedTuple):
    """One point of one order: the share of heads removed, their number, the seed, the headline without them."""

    fraction: float
    removed: int
    seed: int
    value: float
    change: Comparison | None = None
    heads: Order = ()


def curve(
    model: Model,
    config: CurveConfig,
    batches: Sequence[Batch],
    percentages: Sequence[int],
    judge: Judge,
    *,
    seed: int = 0,
) -> Iterator[CurvePoint]:
    """Yield the headline with more and more heads gated off; heads that layers share go together."""
    total = len(all_heads(model.config))
    order = _orders(model, batches, dataclasses.replace(config.order, seed=seed))
    for percentage, count in zip(percentages, percent_steps(total, percentages), strict=True):
        heads = order(count)
        removed, _ = fitting(removals(find_sites(model), heads), count)
        repaired = _reconstructed(model, batches, removed) if config.reconstruct and count < total else model
        judged = judge(gated(repaired, dict.fromkeys(removed, 0.0)))
        yield CurvePoint(percentage / 100.0, len(removed), seed, *judged, tuple(removed))


def _orders(model: Model, batches: Sequence[Batch], config: OrderConfig) -> Callable[[int], Order]:
    """Return a function from a number of heads to remove to their order, which learned gates choose together."""
    ordered = functools.partial(order_heads, model, batches, config)
    if config.by in LEARNED:
        return lambda count: ordered(count=count)
    order = ordered()
    return lambda count: order


def _reconstructed(model: Model, batches: Sequence[Batch], removed: Order) -> Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # fewer tokens than unknowns: the page says how many examples
        return reconstruct(model, batches, removed).repaired


def removable(points: Sequence[CurvePoint], baseline: float, drop: float, higher_is_better: bool) -> float:
    """Return the largest share of heads up to which every measured share loses at most `drop`, seeds averaged."""
    sign = 1.0 if higher_is_better else -1.0
    best = 0.0
    for fraction in sorted({point.fraction for point in points}):
        values = [point.value for point in points if point.fraction == fraction]
        if sign * (baseline - sum(values) / len(values)) > drop:
            break
        best = fraction
    return best
