"""`headjax report`."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headjax.commands.inputs import ABLATING, REFITTING, SCORING, Examples, cost_of_order, start, tell_time
from headjax.commands.options import ExamplesOptions, TableOptions, option
from headjax.commands.outputs import ExamplesResult, key, milliseconds
from headjax.core.fields import Count, Listed, Size
from headjax.core.progress import Progress
from headjax.report.tables import Table

if TYPE_CHECKING:
    from headjax.head_report.study import StudyConfig
    from headjax.models.model import Model


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ExamplesOptions, TableOptions):
    """Options of `headjax report`."""

    calibrate: Count | None = option(256, "number of examples that choose; 0 is all")
    out: str = option("heads.html", "file of the page", "FILE.html", writes="file")
    orders: tuple[str, ...] = option((), "reconstruction+reconstruct,importance_layer,random,...", "ORDERS")
    seeds: Listed = option(2, "repeats of every order")
    percentages: tuple[Size, ...] = option((25, 50, 75), "shares of the heads that are removed along the curves", "P")
    judged: Count = option(512, "judge curves on N of the evaluation examples, drawn at random; 0 is all")
    ablated: Count = option(96, "ablate single heads on N of them; 0 is all")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result(ExamplesResult):
    """A report about heads."""

    baseline: Mapping[str, float] = key("metrics with all heads")
    examples: int = key()
    metric: str = key("the primary metric")
    ordered_by: str = key("what they were found by")
    scores: Mapping[str, Any] = key("by name and head")
    effects: Mapping[str, Any] = key("of every head removed alone: `effect`, `p_value` and `test`")
    ablated_examples: int = key()
    curves: Mapping[str, Any] = key("points by order")
    roles: Mapping[Any, Any] = key("by head")
    seconds: float = key()
    answer: str = key("how many heads can go, what that costs, and the command")
    report: str = key("the page", said="report")
    shown: Sequence[Table]

    def tables(self) -> Sequence[Table]:
        return self.shown


def run(options: Options, progress: Progress) -> Result:
    """Prunes by gates, scores, ablates and shows the heads of a model; writes one HTML page."""
    from headjax.head_report.page import answer, curve_table, write_report
    from headjax.head_report.study import ORDERS, StudyConfig, study_heads

    model, examples = start(options)
    config = StudyConfig(
        limit=options.limit,
        judged=options.judged,
        ablated=options.ablated,
        batch_size=options.batch_size,
        buckets=options.lengths,
        orders=options.orders or ORDERS,
        seeds=options.seeds,
        scored=examples.number,
        percentages=options.percentages,
    )
    _tell_time(model, examples, options, config)
    study = study_heads(model, examples.evaluation, config, selection=examples.selection, progress=progress)
    names = shlex.quote(str(options.model)), shlex.quote(str(options.task))
    told = answer(study, *names, lambda models: milliseconds(models, progress))
    page = write_report(study, told, options.out)
    described = dataclasses.replace(examples, evaluation=study.task).described()
    effects, curves = study.effects, curve_table(study)
    return Result(
        baseline=study.baseline,
        examples=study.task.count(),
        metric=study.task.primary_metric,
        ordered_by=study.ordered_by,
        scores=study.scores,
        effects={
            "effect": effects.effects(),
            "p_value": {head: comparison.p_value for head, comparison in effects.comparisons.items()},
            "test": effects.test,
        },
        ablated_examples=study.few.count(),
        curves=study.curves,
        roles=study.roles,
        seconds=study.seconds,
        answer=told.text,
        report=str(page),
        shown=[dataclasses.replace(curves, notes=(*curves.notes, *described["about"]))],
        **described,
    )


def _tell_time(model: Model, examples: Examples, options: Options, config: StudyConfig) -> None:
    """Tell how long the curves and the ablations take, see `tell_time`."""
    from headjax.head_report.study import CurveConfig
    from headjax.heads.head_id import all_heads

    curves, points = [CurveConfig.parse(order) for order in config.orders], len(config.percentages)
    own = [cost_of_order(curve.order.by, model.config, len(examples.scoring())) for curve in curves]
    own += [REFITTING] * (points * sum(curve.reconstruct for curve in curves))
    task, heads = examples.evaluation, len(all_heads(model.config))
    whole = task.count(options.limit)
    judged, ablated = (min(count or whole, whole) / max(whole, 1) for count in (options.judged, options.ablated))
    tell_time(
        model, options, batches=examples.scoring(), chosen=[SCORING, *own * config.seeds], task=task,
        judged=judged * (1 + config.seeds * points * len(curves)) + ablated * ABLATING * heads,
    )  # fmt: skip
