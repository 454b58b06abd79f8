"""`headjax report`."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from headjax.commands.examples import ExamplesOptions, open_model_and_examples
from headjax.commands.options import Result, argument, option
from headjax.core.fields import Count, Listed, Size
from headjax.core.progress import Progress
from headjax.report import numbers

if TYPE_CHECKING:
    from headjax.head_report.study import HeadStudy
    from headjax.report.page import Section


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ExamplesOptions):
    """Options of `headjax report`."""

    selected: Count | None = option(256, "choose on N of them, drawn at random; 0 is all", also=("--scored",))
    out: str = argument("OUT", "file of the page", "heads.html", also=("--out",), writes="page")
    second: str = option("", "other data, to compare importance on", "TASK", reads=True)
    run: str = option("", "workdir of a training run, to prune its checkpoints", "D", reads=True)
    orders: tuple[str, ...] = option((), "importance,fisher_blocks+rescale,random,...", "ORDERS")
    seeds: Listed = option(2, "repeats of every order")
    percentages: tuple[Size, ...] = option((25, 50, 75), "shares of the heads that are removed along the curves", "P")
    judged: Count = option(512, "judge curves on N of the evaluation examples, drawn at random; 0 is all")
    ablated: Count = option(128, "ablate single heads on N of them; 0 is all")


def run(options: Options, progress: Progress) -> Result:
    """Prunes by gates, scores, ablates and looks at the heads of a model; writes one HTML page as sections finish."""
    from headjax.commands.repair import LENGTHS
    from headjax.evaluation.specs import load_task
    from headjax.head_report.estimate import estimate
    from headjax.head_report.kept import Kept, fingerprint
    from headjax.head_report.measure import measure
    from headjax.head_report.sections import best_head_table, curve_table, tolerance, write_report
    from headjax.head_report.study import ORDERS, StudyConfig, begin
    from headjax.heads.head_id import all_heads
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
    data = _to_json(study) | described.data | {"report": str(page)}
    best = best_head_table(study)
    best = dataclasses.replace(best, notes=(*best.notes, *described.notes))
    return Result(data, [curve_table(study, tolerance(study)), best], f"report: {page}")


def _to_json(study: HeadStudy) -> dict[str, Any]:
    second = study.second
    return {
        "baseline": dict(study.baseline),
        "examples": study.examples,
        "metric": study.task.headline,
        "best_heads": [str(head) for head in study.best],
        "ordered_by": study.ordered_by,
        "scores": {name: _named(values) for name, values in study.scores.items()},
        "effects": {
            mode: {"effect": _named(found.effect), "p_value": _named(found.p_value), "test": found.test}
            for mode, found in study.effects.items()
        },
        "ablated_examples": study.few.count(),
        "curves": {name: [point._asdict() for point in points] for name, points in study.curves.items()},
        "transfer": None
        if second is None
        else {
            "task": second.name,
            "pearson": second.transfer.pearson._asdict(),
            "spearman": second.transfer.spearman._asdict(),
        },
        "snapshots": [
            {
                "step": snapshot.step,
                "baseline": snapshot.baseline,
                "agreement": snapshot.agreement,
                "curve": [point._asdict() for point in snapshot.points],
            }
            for snapshot in study.snapshots
        ],
        "roles": {str(head): role._asdict() for head, role in study.roles.items()},
        "seconds": study.seconds,
    }


def _named(values: Any) -> dict[str, float]:
    return {str(head): value for head, value in values.items()}
