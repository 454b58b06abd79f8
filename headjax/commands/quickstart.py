"""`headjax quickstart`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headjax.commands.options import CommandOptions, option
from headjax.commands.results import OnExamples, found
from headjax.core.fields import Size, Steps
from headjax.core.progress import Progress
from headjax.quickstart.settings import BATCH_SIZE, LENGTH, SEEDS, SHORT, STEPS
from headjax.report.tables import Table
from headjax.storage.paths import path_of

if TYPE_CHECKING:
    from headjax.quickstart.study import Study, Variant
    from headjax.quickstart.text import Text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Options of `headjax quickstart`."""

    workdir: str = option("runs/quickstart", "folder of everything that it writes", "D", writes="folder")
    path: str = option("", "your own text: a file, a folder or a glob", "P", reads=True)
    train_steps: Steps | None = option(
        None, "training steps of each small model", shown=f"{SHORT}; with your own text {STEPS}"
    )
    batch_size: Size = option(BATCH_SIZE, f"blocks of {LENGTH} tokens a step")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found(OnExamples):
    """A small decoder taken apart.

    Attributes:
        costs: the table of the conversions.
    """

    subject: str = found("name of the model whose heads are studied")
    perplexity: Mapping[str, float] = found("by model, as `parameters` and `models`")
    bits_per_byte: Mapping[str, float] = found("of the subject")
    trained: Mapping[str, Any] = found("metrics of small models by name and `seed`")
    train_steps: int = found()
    parameters: Mapping[str, int] = found()
    models: Mapping[str, str] = found("folders")
    samples: Sequence[Any] = found("`prompt`, `text`")
    roles: Mapping[str, Any] = found("`head`, `weight`, `uniform` by role")
    scores: Mapping[str, Any] = found("by model, name and head")
    pruning: Mapping[str, Any] = found("pairs of share and perplexity by model and order")
    pruned: Sequence[Any] = found(
        "`model`, `parameters`, `perplexity`, `bits_per_byte`, `forward_seconds` (8 blocks with their loss)"
    )
    converted: Sequence[Any] = found("the same")
    shrunk: Mapping[str, Any] = found("the same, with `layers`")
    generating: Mapping[str, Any] = found("`seconds`, `low`, `high` by model")
    seconds: float = found("of the study")
    report: str = found("the page", said="report")
    costs: Table

    def tables(self) -> Sequence[Table]:
        return [self.costs]


def run(options: Options, progress: Progress) -> Found:
    """Take a small language model's heads apart, train three formulations, and write `report.html`."""
    from headjax.quickstart.page import cost_table, write_report
    from headjax.quickstart.study import run_study

    workdir = path_of(options.workdir)
    study = run_study(
        workdir, steps=options.train_steps, path=options.path, batch_size=options.batch_size, progress=progress
    )
    report = write_report(study, workdir / "report.html")
    return Found(**study_data(study), report=str(report), costs=cost_table(study))


def study_data(study: Study) -> dict[str, Any]:
    """Return the fields of a result about a study."""
    from headjax.head_report.study import scored

    text, subject, heads = study.text, study.subject, study.heads
    whole = math.exp(study.loss)
    runs = {name: some[0] for name, some in study.trained.items()}
    curves = {order: [(p.fraction, text.perplexity(p.value)) for p in points] for order, points in heads.curves.items()}
    return {
        "subject": subject,
        "perplexity": {name: run.metrics["perplexity"] for name, run in runs.items()} | {subject: whole},
        "bits_per_byte": {subject: text.bits(study.loss)},
        "trained": {
            name: [{"seed": seed, **run.metrics} for seed, run in zip(SEEDS, some, strict=False)]
            for name, some in study.trained.items()
        },
        "train_steps": study.steps,
        "parameters": {name: run.model.num_parameters for name, run in runs.items()}
        | {subject: study.model.num_parameters},
        "models": {name: str(run.path) for name, run in runs.items()} | {subject: str(study.path)},
        "samples": [{"prompt": prompt, "text": written} for prompt, written in study.samples],
        "roles": study.roles,
        "scores": {subject: heads.scores},
        "selection": {"task": text.name, "split": "train", "examples": scored(heads.selection, heads.config)},
        "evaluation": {"task": text.name, "split": "validation", "examples": len(text.held_out)},
        "pruning": {subject: {order: [(0.0, whole), *points] for order, points in curves.items()}},
        "pruned": [_variant(variant, text) for variant in study.pruned],
        "converted": [_variant(variant, text) for variant in study.converted],
        "shrunk": _variant(study.shrunk, text),
        "generating": {
            name: {"seconds": timing.median, "low": timing.low, "high": timing.high}
            for name, timing in study.timings.items()
        },
        "seconds": study.seconds,
    }


def _variant(variant: Variant, text: Text) -> dict[str, Any]:
    return {
        "model": str(variant.path),
        "parameters": variant.model.num_parameters,
        "perplexity": math.exp(variant.loss),
        "bits_per_byte": text.bits(variant.loss),
        **variant.details,
    }
