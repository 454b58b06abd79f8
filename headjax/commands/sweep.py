"""`headjax sweep`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headjax.commands.examples import open_model_and_examples
from headjax.commands.options import option
from headjax.commands.removal_sweep import RemovalOptions, Removals, read_rows, sweep_removals, write_rows
from headjax.commands.results import found, table_of
from headjax.commands.surgery import Tuned, fine_tuning_of
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Count, Size
from headjax.core.files import write_file
from headjax.core.paths import path_of
from headjax.core.progress import Progress
from headjax.core.serialize import unknown_name
from headjax.report import numbers
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.trials.conversions import Trial, Trials


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(RemovalOptions):
    """Options of `headjax sweep`."""

    to: tuple[str, ...] = option(
        (),
        help="targets of several sizes, such as collaborative:shared_dim=384/192/96; may be given again",
        metavar="TARGETS",
        words="repeated",
        one_of="sweep",
    )
    variants: tuple[str, ...] = option(
        (),
        "plain, calibrated and fine-tuned, or some of them (default: all that the options allow)",
        "NAMES",
        requires="to",
    )
    batch_size: Size = option(32, "examples per batch")
    selected: Count | None = option(512, "calibrate on N examples, in full batches; 0 is all", name="--calibrate")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conversions(Tuned):
    """Conversions of a model, the original first."""

    headline: str = found("the main metric")
    examples: int = found()
    test: str = found("the paired test")
    trials: Sequence[Trial] = found(
        "`to`, `variant`, `parameters`, `relative_error`, `value_error`, `logit_error`, `cosine`, `metrics`, `cache`, "
        "`against_original`"
    )
    plot: Path = found(said="plot")

    def tables(self) -> Sequence[Table]:
        columns = {
            "to": Column("Conversion"),
            "variant": Column("Variant"),
            "parameters": Column("Parameters", numbers.count),
            "cache": Column("Cached a token", numbers.count),
            "relative_error": Column("Error", numbers.fixed(3)),
            "value_error": Column("Values", numbers.fixed(3)),
            "logit_error": Column("Logits", numbers.fixed(3)),
            "cosine": Column("Cosine", numbers.fixed(4)),
            "metric": Column(self.headline, numbers.fixed(4)),
            "p": Column("p", numbers.significant),
        }
        if not any(trial.cache for trial in self.trials):  # encoders have no cache
            del columns["cache"]
        rows = [
            {
                **trial._asdict(),
                "metric": trial.metrics[self.headline],
                "p": (trial.against_original or {}).get("p_value"),
            }
            for trial in self.trials
        ]
        note = (
            "Errors are root mean squares over the layers: of the products of queries and keys, of values and outputs, "
            "and of the logits of the inputs seen; before training. Cosine: between the embeddings and the original's. "
            f"{self.headline} on {self.examples:,} examples; p against the original: {self.test}."
        )
        return [table_of(columns, rows, notes=(note, *self.about))]


def run(options: Options, progress: Progress) -> Conversions | Removals:
    """Converts a model to every size of every target, or removes heads in many ways, and evaluates each once."""
    from headjax.conversion.model import parse_target
    from headjax.trials.conversions import BUCKETS, Trial, expand, prepare_trials

    if options.remove:
        return sweep_removals(options, progress)
    targets = [target for text in options.to for target in expand(text)]
    for target in targets:
        parse_target(target)
    fine_tuning = fine_tuning_of(options)
    variants = _variants(options)
    model, examples = open_model_and_examples(options)
    batches = options.calibration(examples, options.batch_size).batches
    file = path_of(options.out) / "trials.jsonl"
    done = {(trial.to, trial.variant): trial for trial in read_rows(file, lambda row: Trial(**row))}
    trials = prepare_trials(
        model,
        examples.evaluation,
        selection=examples.selection,
        calibration=batches,
        fine_tuning=fine_tuning,
        limit=options.limit,
        batch_size=options.batch_size,
        buckets=options.buckets or BUCKETS,
        progress=progress,
    )
    calibrated = examples.selection.count_full(batches, options.batch_size)
    described = examples.described(
        selection=bool(calibrated), selected=calibrated, training=fine_tuning is not None, purpose="Calibration"
    )
    wanted = [(target, variant) for target in targets for variant in variants]
    with progress("converting", len(wanted), "models") as bar:
        for number, (target, variant) in enumerate(wanted, start=1):
            if (target, variant) not in done:
                done[target, variant] = trials.run(target, variant, options.seed)
                write_rows(file, done.values())
            bar(number, {trials.task.headline: done[target, variant].metrics[trials.task.headline]})
    tried = [trials.original(), *(done[place] for place in wanted)]
    return Conversions(
        headline=trials.task.headline,
        examples=trials.own.examples,
        test=trials.test,
        trials=tried,
        plot=write_file(path_of(options.out) / "sweep.png", _plot(tried, trials)),
        **described,
    )


def _variants(options: Options) -> tuple[str, ...]:
    """Return the variants to try, in their order.

    Raises:
        HeadjaxError: an unknown variant, or one that the options do not allow.
    """
    from headjax.trials.conversions import VARIANTS

    allowed = VARIANTS if options.fine_tune else VARIANTS[:-1]
    for name in options.variants:
        if name not in VARIANTS:
            raise HeadjaxError(f"--variants: {unknown_name('variant', name, VARIANTS)}")
        if name not in allowed:
            raise HeadjaxError(f"--variants: {name} needs --fine-tune N")
    return tuple(name for name in allowed if name in options.variants or not options.variants)


def _plot(tried: Sequence[Trial], trials: Trials) -> bytes:
    from headjax.report.presets import sharing_curves

    headline = trials.task.headline
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for trial in tried[1:]:
        panel = panels.setdefault(trial.to.partition(":")[0], {})
        panel.setdefault(trial.variant, []).append((trial.parameters, trial.metrics[headline]))
    return sharing_curves(panels, baseline=tried[0].metrics[headline], metric=headline).png()
