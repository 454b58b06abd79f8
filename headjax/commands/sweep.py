"""`headjax sweep`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headjax.commands.examples import open_model_and_examples
from headjax.commands.options import Result, argument, option
from headjax.commands.removal_sweep import RemovalOptions, sweep_removals
from headjax.commands.surgery import fine_tuning_of
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

    out: str = argument(
        "OUT", "folder of the trials and of a plot; trials there are kept", also=("--out",), writes="folder"
    )
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
    selected: Count | None = option(
        512, "calibrate on N examples, in full batches; 0 is all", name="--calibrate", also=("--selected",)
    )


def run(options: Options, progress: Progress) -> Result:
    """Converts a model to every size of every target, or removes heads in many ways, and evaluates each once."""
    from headjax.conversion.model import parse_target
    from headjax.trials.conversions import BUCKETS, expand, prepare_trials

    if options.remove:
        return sweep_removals(options, options.out, progress)
    targets = [target for text in options.to for target in expand(text)]
    for target in targets:
        parse_target(target)
    fine_tuning = fine_tuning_of(options)
    variants = _variants(options)
    model, examples = open_model_and_examples(options)
    batches = options.calibration(examples, options.batch_size).batches
    file = path_of(options.out) / "trials.jsonl"
    done = {(trial.to, trial.variant): trial for trial in read_trials(file)}
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
                write_trials(file, list(done.values()))
            bar(number, {trials.task.headline: done[target, variant].metrics[trials.task.headline]})
    found = [trials.original(), *(done[place] for place in wanted)]
    plot = write_file(path_of(options.out) / "sweep.png", _plot(found, trials))
    data = {
        "headline": trials.task.headline,
        "examples": trials.own.examples,
        "test": trials.test,
        "trials": [trial._asdict() for trial in found],
        "plot": str(plot),
        **described.data,
    }
    return Result(data, [_table(found, trials, described.notes)], f"plot: {plot}")


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


def read_trials(file: Path) -> list[Trial]:
    """The trials of an earlier run; none where there is no file.

    Raises:
        HeadjaxError: the file holds something else.
    """
    from headjax.trials.conversions import Trial

    if not file.is_file():
        return []
    try:
        return [Trial(**json.loads(line)) for line in file.read_text().splitlines()]
    except (ValueError, TypeError) as error:
        raise HeadjaxError(f"{file}: not written by headjax sweep ({error})") from None


def write_trials(file: Path, trials: Sequence[Trial]) -> None:
    """Writes them, one JSON object a line."""
    write_file(file, "".join(f"{json.dumps(trial._asdict())}\n" for trial in trials).encode())


def _plot(found: Sequence[Trial], trials: Trials) -> bytes:
    from headjax.report.presets import sharing_curves

    headline = trials.task.headline
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for trial in found[1:]:
        panel = panels.setdefault(trial.to.partition(":")[0], {})
        panel.setdefault(trial.variant, []).append((trial.parameters, trial.metrics[headline]))
    return sharing_curves(panels, baseline=found[0].metrics[headline], metric=headline).png()


def _table(found: Sequence[Trial], trials: Trials, notes: tuple[str, ...]) -> Table:
    headline = trials.task.headline
    cached = any(trial.cache for trial in found)  # encoders have no cache
    columns = (
        Column("Conversion"),
        Column("Variant"),
        Column("Parameters", numbers.count),
        *((Column("Cached a token", numbers.count),) if cached else ()),
        Column("Error", numbers.fixed(3)),
        Column("Values", numbers.fixed(3)),
        Column("Logits", numbers.fixed(3)),
        Column("Cosine", numbers.fixed(4)),
        Column(headline, numbers.fixed(4)),
        Column("p", numbers.significant),
    )
    rows = [
        (
            *trial[:3],
            *((trial.cache,) if cached else ()),
            *trial[3:7],
            trial.metrics[headline],
            None if trial.against_original is None else trial.against_original["p_value"],
        )
        for trial in found
    ]
    note = (
        "Errors are root mean squares over the layers: of the products of queries and keys, of values and outputs, and "
        "of the logits of the inputs seen; before training. Cosine: between the embeddings and the original's. "
        f"{headline} on {trials.own.examples:,} examples; p against the original: {trials.test}."
    )
    return Table(columns, rows, notes=(note, *notes))
