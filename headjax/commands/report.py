"""`headjax report`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headjax.commands.examples import ExamplesOptions, open_model_and_examples
from headjax.commands.options import option
from headjax.commands.results import OnExamples, found
from headjax.core.fields import Count, Listed, Size
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Table

if TYPE_CHECKING:
    from headjax.head_report.study import HeadStudy
    from headjax.report.page import Section


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ExamplesOptions):
    """Options of `headjax report`."""

    selected: Count | None = option(256, "choose on N of them, drawn at random; 0 is all")
    out: str = option("heads.html", "file of the page", "FILE.html", writes="page")
    second: str = option("", "other data, to compare importance on", "TASK", reads=True)
    run: str = option("", "workdir of a training run, to prune its checkpoints", "D", reads=True)
    orders: tuple[str, ...] = option((), "reconstruction+reconstruct,importance,random,...", "ORDERS")
    seeds: Listed = option(2, "repeats of every order")
    percentages: tuple[Size, ...] = option((25, 50, 75), "shares of the heads that are removed along the curves", "P")
    judged: Count = option(512, "judge curves on N of the evaluation examples, drawn at random; 0 is all")
    ablated: Count = option(96, "ablate single heads on N of them; 0 is all")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found(OnExamples):
    """A report about heads.

    Attributes:
        shown: the tables.
    """

    baseline: Mapping[str, float] = found("metrics with all heads")
    examples: int = found()
    metric: str = found("the headline")
    best_heads: Sequence[Any] = found("one of each layer")
    ordered_by: str = found("what they were found by")
    scores: Mapping[str, Any] = found("by name and head")
    effects: Mapping[str, Any] = found("`effect`, `p_value` and `test` by mode")
    ablated_examples: int = found()
    curves: Mapping[str, Any] = found("points by order")
    transfer: Any = found("`task`, `pearson`, `spearman` with `--second`")
    snapshots: Sequence[Any] = found("`step`, `baseline`, `agreement`, `curve` with `--run`")
    roles: Mapping[str, Any] = found("by head")
    seconds: float = found()
    report: str = found("the page", said="report")
    shown: Sequence[Table]

    def tables(self) -> Sequence[Table]:
        return self.shown


def run(options: Options, progress: Progress) -> Found:
    """Prunes by gates, scores, ablates and shows the heads of a model; writes one HTML page as sections finish."""
    from headjax.commands.repair import LENGTHS
    from headjax.evaluation.specs import load_task
    from headjax.head_report.measure import estimate, measure
    from headjax.head_report.sections import best_head_table, curve_table, tolerance, write_report
    from headjax.head_report.study import ORDERS, StudyConfig, begin, fingerprint
    from headjax.heads.head_id import all_heads
    from headjax.storage.kept import Kept
    from headjax.training.checkpoints import require_run

    if options.run:
        require_run(options.run)
    model, examples = open_model_and_examples(options)
    config = StudyConfig(
        limit=options.limit,
        judged=options.judged,
        ablated=options.ablated,
        batch_size=options.batch_size,
        buckets=options.buckets or LENGTHS,
        orders=options.orders or ORDERS,
        seeds=options.seeds,
        scored=examples.selected,
        percentages=options.percentages,
    )
    second = load_task(options.second, model, options.length or 0) if options.second else None
    tasks = [examples.evaluation, examples.selection, *([] if second is None else [second])]
    # What is measured is kept beside the page until all of it is there, so that the same command goes on after a stop.
    kept = Kept(f"{options.out}.part", fingerprint(model, tasks, config, options.run))
    study = begin(model, examples.evaluation, config, selection=examples.selection, second=second, kept=kept)
    heads = len(all_heads(model.config))
    seconds = numbers.duration(estimate(study, second=second is not None))
    print(f"{heads} heads: about {seconds} once everything is compiled; {options.out} grows meanwhile", file=sys.stderr)
    shown: dict[str, Section] = {}
    for _ in measure(study, second, options.run or None, progress):
        page = write_report(study, options.out, shown)
    kept.remove()
    described = examples.described()
    best = best_head_table(study)
    best = dataclasses.replace(best, notes=(*best.notes, *described["about"]))
    shown_tables = [curve_table(study, tolerance(study)), best]
    return Found(**_to_json(study), **described, report=str(page), shown=shown_tables)


def _to_json(study: HeadStudy) -> dict[str, Any]:
    """Return the fields of a result about a study."""
    second = study.second
    transfer = second and {"task": study.second_name, "pearson": second.pearson, "spearman": second.spearman}
    return {
        "baseline": dict(study.baseline),
        "examples": study.examples,
        "metric": study.task.headline,
        "best_heads": study.best,
        "ordered_by": study.ordered_by,
        "scores": study.scores,
        "effects": {
            mode: {"effect": effects.effect, "p_value": effects.p_value, "test": effects.test}
            for mode, effects in study.effects.items()
        },
        "ablated_examples": study.few.count(),
        "curves": study.curves,
        "transfer": transfer,
        "snapshots": [
            {"step": each.step, "baseline": each.baseline, "agreement": each.agreement, "curve": each.points}
            for each in study.snapshots
        ],
        "roles": study.roles,
        "seconds": study.seconds,
    }
