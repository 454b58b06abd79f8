"""`headjax quickstart`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from headjax.commands.options import CommandOptions, Result, option
from headjax.core.fields import Size
from headjax.core.progress import Progress
from headjax.quickstart.settings import BATCH_SIZE, STEPS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Options of `headjax quickstart`."""

    workdir: str = option("runs/quickstart", "folder of everything that it writes", "D")
    path: str = option("", "your own text: a file, a folder or a glob", "P")
    steps: Size = option(STEPS, "training steps of a model")
    batch_size: Size = option(BATCH_SIZE, "blocks of 128 tokens a step")


def run(options: Options, progress: Progress) -> Result:
    """Trains a small decoder in three formulations, scores, prunes, converts, compares, writes `report.html`."""
    from headjax.quickstart.page import cost_table, write_report
    from headjax.quickstart.study import run_study

    workdir = Path(options.workdir)
    study = run_study(workdir, steps=options.steps, path=options.path, batch_size=options.batch_size, progress=progress)
    report = write_report(study, workdir / "report.html")

    def entry(variant: Any) -> dict[str, Any]:
        common = {
            "model": str(variant.path),
            "parameters": variant.model.num_parameters,
            "perplexity": variant.perplexity,
            "forward_seconds": study.timings[variant.name].median,
        }
        return common | dict(variant.details)

    data = {
        "perplexity": {name: run.metrics["perplexity"] for name, run in study.trained.items()},
        "parameters": {name: run.model.num_parameters for name, run in study.trained.items()},
        "models": {name: str(run.path) for name, run in study.trained.items()},
        "scores": {
            name: {
                score: {str(head): value for head, value in values.items()} for score, values in scores.values.items()
            }
            for name, scores in study.scores.items()
        },
        "selection": {"task": study.text, "split": "train", "examples": study.scores["standard"].examples},
        "evaluation": {"task": study.text, "split": "validation", "examples": len(study.data.validation)},
        "pruning": study.pruning,
        "pruned": [entry(variant) for variant in study.pruned],
        "converted": [entry(variant) for variant in study.converted],
        "report": str(report),
        "seconds": study.seconds,
    }
    return Result(data, [cost_table(study)], f"report: {report}")
