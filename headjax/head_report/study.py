"""The report's facts about a model's heads: settings, measurements by name, and their meaning."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headjax.core.errors import require
from headjax.core.fields import Checked, Count, Size
from headjax.data.examples import subset
from headjax.evaluation.selection import SEED, split_task
from headjax.evaluation.task import Task
from headjax.head_report.curves import CurveConfig, CurvePoint
from headjax.head_report.views import View
from headjax.heads.attended import Role
from headjax.heads.head_id import HeadId
from headjax.heads.significance import Transfer, transfer
from headjax.models.model import Model
from headjax.storage.kept import Kept, key_of_study

MODES: tuple[Any, ...] = ("each", "all-but-one")
ORDERS = ("reconstruction+reconstruct", "importance", "random")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyConfig(Checked):
    """Settings of the measurements.

    Attributes:
        limit: number of examples to evaluate on, the first ones; 0 is all.
        judged: number of them to draw for the pruning curves; 0 is all.
        ablated: number of them to draw for the ablations of single heads and for what heads look at; 0 is all.
        batch_size: examples of one batch.
        buckets: see `Task.batches`.
        orders: see `CurveConfig.parse`.
        seeds: repeats of every order; each draws other examples to order heads by.
        scored: selection examples that heads are scored and ordered by; 0 is all.
        percentages: shares of heads removed along the curves.
        profile_percentages: the same for the checkpoints of a run.
        resamples: of bootstraps.
    """

    limit: Count = 0
    judged: Count = 512
    ablated: Count = 96
    batch_size: Size = 16
    buckets: tuple[int, ...] = ()
    orders: tuple[str, ...] = ORDERS
    seeds: Size = 2
    scored: Count = 256
    percentages: tuple[int, ...] = (25, 50, 75)
    profile_percentages: tuple[int, ...] = (20, 40, 60, 80)
    resamples: Size = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        require(all(bound >= 1 for bound in self.buckets), "buckets", f"must be positive, got {list(self.buckets)}")
        for name in ("percentages", "profile_percentages"):
            values = getattr(self, name)
            inside = bool(values) and all(0 < value <= 100 for value in values) and list(values) == sorted(values)
            require(inside, name, f"must rise within 1..100, got {list(values)}")
        for order in self.orders:
            CurveConfig.parse(order)


class Effects(NamedTuple):
    """The effect of one kind of ablation of every head.

    Attributes:
        metric: the task's headline.
        effect: its change, by head.
        p_value: of a paired test, by head.
        test: name of the test.
    """

    metric: str
    effect: dict[HeadId, float]
    p_value: dict[HeadId, float]
    test: str


class Snapshot(NamedTuple):
    """A checkpoint of a training run.

    Attributes:
        step: optimizer steps done.
        baseline: the headline with all heads.
        agreement: Spearman's correlation, over heads, of the importance at this checkpoint with that in the model; None
            with one head, or where all are as important.
        points: with the least important heads removed, ordered by this checkpoint's own importance.
    """

    step: int
    baseline: float
    agreement: float | None
    points: list[CurvePoint]


@dataclasses.dataclass(frozen=True)
class HeadStudy:
    """Facts about a model's heads; parts that are not measured yet are empty.

    Attributes:
        model: the model.
        task: the task, whose evaluation examples judge.
        few: the task with those of them on which single heads are ablated.
        selection: the task whose examples heads are scored, ordered and chosen on.
        config: how much is measured.
        kept: the measurements by name, as JSON data.
        second_name: name of the other data set; empty without one.
    """

    model: Model
    task: Task
    few: Task
    selection: Task
    config: StudyConfig
    kept: Kept
    second_name: str = ""

    @property
    def examples(self) -> int:
        """Number of examples that curves are judged on."""
        return self.task.count()

    @property
    def ordered_by(self) -> str:
        """The examples that heads are ordered by, in words."""
        count = scored(self.selection, self.config)
        return f"{count:,} examples of {self.selection.name}, {self.selection.split}, others for each seed"

    @property
    def baseline(self) -> Mapping[str, float]:
        """The task's metrics, with all heads."""
        return self._part("baseline")

    @property
    def scores(self) -> dict[str, dict[HeadId, float]]:
        """Every head score, on the selection examples."""
        return {name: _by_head(values) for name, values in self._part("scores").items()}

    @property
    def effects(self) -> dict[str, Effects]:
        """Effects of ablations, by mode of `ablate`."""
        found = {mode: self._part(mode) for mode in MODES}
        return {
            mode: Effects(part["metric"], _by_head(part["effect"]), _by_head(part["p_value"]), part["test"])
            for mode, part in found.items()
            if part
        }

    @property
    def best(self) -> list[HeadId]:
        """The head of every layer with the least loss on the selection examples when it is the only one left."""
        return [HeadId.parse(head) for head in self._part("best")]

    @property
    def curves(self) -> dict[str, list[CurvePoint]]:
        """Points of the pruning curves, by order."""
        parts = {
            order: [self._part(curve_name(order, seed)) for seed in range(self.config.seeds)]
            for order in self.config.orders
        }
        return {order: [CurvePoint(**p) for part in each for p in part] for order, each in parts.items() if all(each)}

    def at(self, order: str, fraction: float) -> float:
        """Return the headline with this share of the heads removed, seeds averaged."""
        if not fraction:
            return self.baseline[self.task.headline]
        return float(np.mean([point.value for point in self.curves[order] if point.fraction == fraction]))

    @property
    def second(self) -> Transfer | None:
        """How importance on another data set goes with that on the first, if there is one."""
        if "second" not in self.kept.found or "scores" not in self.kept.found:
            return None
        both = self.scores["importance"], _by_head(self._part("second"))
        return transfer(*both, resamples=self.config.resamples)

    @property
    def snapshots(self) -> list[Snapshot]:
        """Checkpoints of a training run."""
        found = [part for name, part in self.kept.found.items() if name.startswith("snapshot/")]
        return [Snapshot(**{**part, "points": [CurvePoint(**point) for point in part["points"]]}) for part in found]

    @property
    def roles(self) -> dict[HeadId, Role]:
        """Attention patterns of every head."""
        return {HeadId.parse(head): Role(**role) for head, role in self._part("roles").items()}

    @property
    def views(self) -> list[View]:
        """Examples with the attention of all heads, and their predictions without some."""
        return list(self._part("views"))

    @property
    def seconds(self) -> float:
        """Wall-clock time of all measurements."""
        return sum(self.kept.seconds.values())

    def _part(self, name: str) -> Any:
        return self.kept.found.get(name, {})


def _by_head(values: Mapping[str, float]) -> dict[HeadId, float]:
    return {HeadId.parse(head): value for head, value in values.items()}


def curve_name(order: str, seed: int) -> str:
    """Return the name of the measurement of one curve."""
    return f"curve/{order}/{seed}"


def begin(
    model: Model,
    task: Task,
    config: StudyConfig,
    *,
    selection: Task | None = None,
    second: Task | None = None,
    kept: Kept | None = None,
) -> HeadStudy:
    """Return a study before its first measurement.

    Args:
        model: the model.
        task: a task that fits it.
        config: how much to measure.
        selection: the task whose `batches` give the examples to choose heads on; None divides `task`
            (`headjax.evaluation.selection.split_task`).
        second: another task, which `measure` compares importance on.
        kept: measurements that are there.

    Raises:
        DataError: a task of one split that cannot be divided.
    """
    if selection is None:
        selection, task = split_task(task)
    judged = drawn(task, config.judged, config.limit)
    few = drawn(judged, config.ablated)
    name = "" if second is None else second.name
    return HeadStudy(model, judged, few, selection, config, Kept() if kept is None else kept, name)


def drawn(task: Task, count: int, limit: int = 0) -> Task:
    """Return the task with `count` of its first `limit` evaluation examples, drawn at random and in their order."""
    total = task.count(limit)
    if total == task.count() and (not count or count >= total):
        return task
    chosen = np.sort(np.random.default_rng(SEED).permutation(total)[: count or total])
    data = task.data._replace(validation=subset(task.data.validation, chosen))
    return dataclasses.replace(task, data=data, part=task.split)


def scored(selection: Task, config: StudyConfig) -> int:
    """Return the number of examples that heads are ordered by."""
    return min(config.scored or selection.count(), selection.count())


READ = 10_000
"""Examples of a split that a fingerprint reads; of more, as many at equal distances."""


def fingerprint(model: Model, tasks: Sequence[Task], config: object, run: str = "") -> str:
    """Return a hash that is another one if the model, the examples or the settings are."""
    digest = hashlib.sha256()
    sources = {id(source): source for task in tasks for source in (task.data.train, task.data.validation)}
    for source in sources.values():  # tasks share sources
        for place in range(0, len(source), -(-len(source) // READ) or 1):
            for name, array in source[place].items():
                digest.update(name.encode() + np.asarray(array).tobytes())
    named = [f"{task.name}/{task.split}/{task.count()}" for task in tasks]
    return key_of_study((model.config, config, run, named, digest.hexdigest()), model.params)
