"""`headjax report`."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headjax.commands.inputs import ABLATING, REFITTING, SCORING, cost_of_order, start, tell_time
from headjax.commands.models import milliseconds
from headjax.commands.options import ExamplesOptions, option
from headjax.commands.outputs import ExamplesResult, key, record
from headjax.core.fields import Count, Listed, Size
from headjax.core.progress import Progress
from headjax.report.tables import Table

if TYPE_CHECKING:
    from headjax.head_report.study import HeadStudy


class Options(ExamplesOptions):
    calibrate: Count | None = option(256, "number of examples that choose; 0 is all")
    out: str = option("heads.html", "file of the page", "FILE.html", writes="file")
    orders: tuple[str, ...] = option((), "reconstruction+reconstruct,importance_layer,random,...", "ORDERS")
    seeds: Listed = option(2, "repeats of every order")
    percentages: tuple[Size, ...] = option((25, 50, 75), "shares of the heads that are removed along the curves", "P")
    judged: Count = option(512, "judge curves on N of the evaluation examples, drawn at random; 0 is all")
    ablated: Count = option(96, "ablate single heads on N of them; 0 is all")


class Result(ExamplesResult):
    study: HeadStudy = record(
        "headjax.head_report.study.HeadStudy", "baseline", "ordered_by", "scores", "curves", "roles", "seconds"
    )
    examples: int = key()
    metric: str = key("the primary metric")
    effects: Mapping[str, Any] = key("of every head removed alone: `effect`, `p_value` and `test`")
    ablated_examples: int = key()
    answer: str = key("how many heads can go, what that costs, and the command")
    report: str = key("the page")

    def tables(self) -> Sequence[Table]:
        from headjax.head_report.page import curve_table

        table = curve_table(self.study)
        return [dataclasses.replace(table, notes=(*table.notes, *self.about))]

    def message(self) -> str:
        return f"report: {self.report}"


def run(options: Options, progress: Progress) -> Result:
    """Prunes by gates, scores, ablates and shows the heads of a model; writes one HTML page."""
    from headjax.head_report.page import answer, write_report
    from headjax.head_report.study import ORDERS, CurveConfig, StudyConfig, study_heads
    from headjax.heads.head_id import all_heads

    model, examples = start(options)
    examples.require_labels()
    config = StudyConfig(
        **options.reading,
        judged=options.judged,
        ablated=options.ablated,
        orders=options.orders or ORDERS,
        seeds=options.seeds,
        scored=examples.number,
        percentages=options.percentages,
    )
    batches, whole = examples.calibrating(), examples.evaluation.count(options.limit)
    curves, points = [CurveConfig.parse(order) for order in config.orders], len(config.percentages)
    orders = [cost_of_order(curve.order.by, model.config, len(batches)) for curve in curves]
    orders += [REFITTING] * (points * sum(curve.reconstruct for curve in curves))
    judged, ablated = (min(count or whole, whole) / max(whole, 1) for count in (options.judged, options.ablated))
    passes = judged * (1 + config.seeds * points * len(curves)) + ablated * ABLATING * len(all_heads(model.config))
    tell_time(model, examples, batches=batches, chosen=[SCORING, *orders * config.seeds], judged=passes)
    parts: Any = {"selection": examples.selection, "draw": examples.calibrating}
    study = study_heads(model, examples.evaluation, config, progress=progress, **parts)
    names = shlex.quote(str(options.model)), shlex.quote(str(options.task))
    best = answer(study, *names, lambda models: milliseconds(models, progress))
    return Result(
        study=study,
        examples=study.task.count(),
        metric=study.task.primary_metric,
        effects={name: getattr(study.effects, name) for name in ("effect", "p_value", "test")},
        ablated_examples=study.few.count(),
        answer=best.text,
        report=str(write_report(study, best, options.out)),
        **dataclasses.replace(examples, evaluation=study.task).described(),
    )
