"""Removals of heads tried in many ways on one task: orders x shares x repairs x draws of calibration examples.

    trials = prepare_removals(model, task, ...)      # the unpruned model is evaluated once
    trial = trials.run(Removal("importance", "60%", draw=0), "reconstruct")

Heads are gated off and not cut out, which computes the same, so that every trial shares one compiled program.
"""

from __future__ import annotations

import dataclasses
import functools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax

from headjax.core.errors import HeadjaxError
from headjax.core.serialize import unknown_name
from headjax.core.tensors import Params
from headjax.evaluation.measures import Measure, Outcomes
from headjax.evaluation.paired import RESAMPLES, paired_test
from headjax.evaluation.task import Evaluation, Task, reduce_batches, require_finite_losses
from headjax.heads import gates as head_gates
from headjax.heads.agreement import (
    Agreement,
    Predictions,
    agreement_kind,
    compare,
    mean_agreement,
    predictions_of,
)
from headjax.heads.head_id import HeadId, all_heads
from headjax.heads.named_orders import OrderConfig, order_heads
from headjax.heads.ordering import Order, requested_count
from headjax.heads.reconstruction import reconstruct
from headjax.heads.significance import Comparison
from headjax.models.compute import Compute
from headjax.models.config import Batch, Gates, ModelConfig, Options
from headjax.models.inputs import device_batch
from headjax.models.model import Model

Repair = Literal["none", "reconstruct", "feed_forward"]
"""Repairs of the kept heads: none, W_O refitted, and W_O with the second map of the feed-forwards."""

KEPT_BYTES = 2**28
"""Most memory for the unpruned model's predictions; the agreement is taken on the first batches that fit."""


class Removal(NamedTuple):
    """A removal to try.

    Attributes:
        order: name in `headjax.heads.named_orders.ORDERS`.
        remove: number of heads, or share of those of the stacks, such as `60%`.
        draw: seed of the calibration examples, and of whatever the order itself draws.
        stacks: head stacks to remove from; empty is all.
    """

    order: str
    remove: str
    draw: int
    stacks: tuple[str, ...] = ()


class RemovalTrial(NamedTuple):
    """A removal with one repair, and its effect on the model.

    Attributes:
        order, remove, draw, stacks: the removal.
        repair: how the kept heads were repaired.
        removed: number of removed heads.
        kept_repairs, solved: number of maps that keep their repair, and that were solved.
        metrics: the task's, by name.
        agreement: with the unpruned model, on the first examples (`RemovalTrials.agreed`).
        against_whole: paired test of the headline against the unpruned model's.
        against_none: paired test of the headline against that without a repair; None for the trial without one.
        order_seconds, repair_seconds: processor time, compilation included; the order's is shared by its trials.
    """

    order: str
    remove: str
    draw: int
    stacks: tuple[str, ...]
    repair: Repair
    removed: int
    kept_repairs: int
    solved: int
    metrics: Mapping[str, float]
    agreement: float
    against_whole: Mapping[str, float]
    against_none: Mapping[str, float] | None
    order_seconds: float
    repair_seconds: float


def parse_repair(text: str) -> Repair:
    """Return the repair of this name.

    Raises:
        HeadjaxError: an unknown repair.
    """
    if text not in get_args(Repair):
        raise HeadjaxError(f"repair: {unknown_name('repair', text, get_args(Repair))}")
    return text  # type: ignore[return-value]


@dataclasses.dataclass
class RemovalTrials:
    """A model and a task to try removals on.

    Attributes:
        model: the unpruned model, with an output for the task.
        selection: gives the calibration examples.
        measure: the task's measure.
        batches: the evaluation examples, on the device.
        wanted: the unpruned model's predictions for the first of them.
        own: the unpruned model's evaluation.
        test, against: name of the paired test, and the test of other outcomes against the unpruned model's.
        calibrate: number of calibration examples of a draw.
        batch_size: examples of a calibration batch.
        buckets: lengths that calibration batches are padded to.
    """

    model: Model
    selection: Task
    measure: Measure
    batches: Sequence[Mapping[str, jax.Array]]
    wanted: Sequence[Predictions]
    own: Evaluation
    test: str
    against: Callable[[Outcomes], Comparison]
    calibrate: int
    batch_size: int
    buckets: tuple[int, ...]
    _orders: dict[tuple[str, int, tuple[str, ...]], tuple[Callable[[int], Order], float]] = dataclasses.field(
        default_factory=dict
    )
    _bare: dict[Removal, _Bare] = dataclasses.field(default_factory=dict)

    @property
    def agreed(self) -> str:
        """Kind of the agreement."""
        return agreement_kind(self.model.config)

    def calibration(self, draw: int) -> list[Batch]:
        """Return the calibration batches of a draw."""
        return list(self.selection.sample(self.calibrate, self.batch_size, seed=draw, buckets=self.buckets))

    def run(self, removal: Removal, repair: Repair) -> RemovalTrial:
        """Try a removal with a repair; shared results of a removal's repairs are kept from one to the next.

        Raises:
            HeadjaxError: an unknown order, more heads than there are, or a repair that the model does not allow.
        """
        bare = self._without(removal)
        repaired = _repair(self.model, bare.removed, repair, bare.batches)
        found, agreed = bare.judged if repair == "none" else self._judge(repaired.params, repaired.gates)
        return RemovalTrial(
            *removal,
            repair=repair,
            removed=len(bare.removed),
            kept_repairs=repaired.kept,
            solved=repaired.solved,
            metrics=found.metrics,
            agreement=agreed.value,
            against_whole=self.against(found.outcomes)._asdict(),
            against_none=None if repair == "none" else bare.against(found.outcomes)._asdict(),
            order_seconds=bare.seconds,
            repair_seconds=repaired.seconds,
        )

    def _without(self, removal: Removal) -> _Bare:
        """Return a removal without a repair, of which the last one is kept."""
        if removal not in self._bare:
            batches = self.calibration(removal.draw)
            choose, seconds = self._order(removal, batches)
            count = requested_count(self.model.config, removal.remove, removal.stacks)
            removed = choose(count)[:count]
            judged = self._judge(self.model.params, head_gates.without(self.model.config, removed))
            _, against = paired_test(judged[0].outcomes, self.measure, RESAMPLES)
            self._bare = {removal: _Bare(batches, removed, judged, against, seconds)}
        return self._bare[removal]

    def _order(self, removal: Removal, batches: Sequence[Batch]) -> tuple[Callable[[int], Order], float]:
        key = (removal.order, removal.draw, removal.stacks)
        if key not in self._orders:
            start = time.process_time()
            config = OrderConfig(by=removal.order, seed=removal.draw, stacks=removal.stacks)
            choose = order_heads(self.model, batches, config)
            self._orders[key] = choose, time.process_time() - start
        return self._orders[key]

    def total_heads(self, stacks: Sequence[str]) -> int:
        """Return the number of heads of these stacks; empty is all."""
        return len(all_heads(self.model.config, stacks or None))

    def _judge(self, params: Params, gates: Gates) -> tuple[Evaluation, Agreement]:
        config, found, agreed = self.model.config, [], []
        for number, batch in enumerate(self.batches):
            wanted = self.wanted[number] if number < len(self.wanted) else None
            loss, outcomes, apart = _judge_batch(config, self.measure, params, batch, gates, wanted)
            found.append((loss, outcomes))
            if wanted is not None:
                agreed.append(apart)
        require_finite_losses([loss for loss, _ in found], params)
        return reduce_batches(self.measure, found), mean_agreement(agreement_kind(config), agreed)


class _Bare(NamedTuple):
    """A removal without a repair: calibration batches, heads, evaluation and agreement, test, processor time."""

    batches: Sequence[Batch]
    removed: Order
    judged: tuple[Evaluation, Agreement]
    against: Callable[[Outcomes], Comparison]
    seconds: float


class _Repaired(NamedTuple):
    """A model without some heads: parameters, gates, the repairs that were kept and solved, and processor time."""

    params: Params
    gates: Gates
    kept: int
    solved: int
    seconds: float


def _repair(model: Model, removed: Sequence[HeadId], repair: Repair, batches: Sequence[Batch]) -> _Repaired:
    """Return the model with the heads gated off and the others repaired."""
    start, gates = time.process_time(), head_gates.without(model.config, removed)
    if repair == "none":
        return _Repaired(model.params, gates, 0, 0, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # fewer tokens than unknowns
        solution = reconstruct(model, batches, removed, feed_forward=repair == "feed_forward")
    kept, solved = sum(layer.kept for layer in solution.layers), len(solution.layers)
    return _Repaired(solution.repaired.params, gates, kept, solved, time.process_time() - start)


def prepare_removals(
    model: Model,
    task: Task,
    selection: Task,
    *,
    calibrate: int = 512,
    batch_size: int = 32,
    buckets: tuple[int, ...] = (),
    limit: int = 0,
) -> RemovalTrials:
    """Evaluate the unpruned model and keep its predictions.

    Args:
        model: the model.
        task: its evaluation examples judge.
        selection: the task whose examples choose and calibrate, a part of `headjax.evaluation.selection.split_task`.
        calibrate: number of calibration examples of a draw.
        batch_size: number of examples of a batch.
        buckets: lengths that texts are padded to.
        limit: number of evaluation examples, the first ones; 0 is all.

    Raises:
        HeadjaxError: the model's output is for another task.
    """
    model = task.fit(model)
    batches = [device_batch(model.config, batch) for batch in task.batches(batch_size, limit=limit, buckets=buckets)]
    gates, room = head_gates.ones(model.config), KEPT_BYTES
    wanted: list[Predictions] = []
    found = []
    for batch in batches:
        loss, outcomes, predictions = _judge_batch(model.config, task.measure, model.params, batch, gates)
        found.append((loss, outcomes))
        room -= predictions.values.nbytes
        if room >= 0 or not wanted:
            wanted.append(predictions)
    require_finite_losses([loss for loss, _ in found], model.params)
    own = reduce_batches(task.measure, found)
    test = paired_test(own.outcomes, task.measure, RESAMPLES)
    return RemovalTrials(model, selection, task.measure, batches, wanted, own, *test, calibrate, batch_size, buckets)


@functools.partial(jax.jit, static_argnames=("config", "measure"))
def _judge_batch(
    config: ModelConfig, measure: Measure, params: Params, batch: Any, gates: Gates, wanted: Predictions | None = None
) -> Any:
    """Return one batch's losses and outcomes, and the sums of its agreement with the wanted predictions.

    Without any, its predictions take the place of the sums.
    """
    output = config.apply(params, batch, Options(gates=gates, compute=Compute()))
    loss = config.for_evaluation().loss(output, batch)
    outcomes = {name: outcome(output, batch) for name, outcome in measure.outcomes().items()}
    predictions = predictions_of(config, output, batch)
    return loss, outcomes, predictions if wanted is None else compare(agreement_kind(config), wanted, predictions)
