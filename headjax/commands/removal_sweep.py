"""The part of `headjax sweep` that removes heads: orders x shares x repairs x draws, each evaluated once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headjax.commands.examples import open_model_and_examples
from headjax.commands.options import argument, option
from headjax.commands.repair import LENGTHS, MEASURES
from headjax.commands.results import OnExamples, found, table_of
from headjax.commands.surgery import ConversionOptions
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Listed
from headjax.core.files import write_file
from headjax.core.paths import path_of
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.trials.removals import Removal, RemovalTrial, RemovalTrials

T = TypeVar("T")

CALIBRATE = 512
"""Default number of calibration examples of a draw."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemovalOptions(ConversionOptions):
    """Options of a sweep over removals."""

    out: str = argument("OUT", "folder of the trials and of a plot; trials there are kept", writes="folder")
    remove: tuple[str, ...] = option(
        help="shares or numbers of heads to remove, such as 25%,50%,75%",
        default=(),
        metavar="SHARES",
        read=lambda text: tuple(text.split(",")),
        one_of="sweep",
    )
    by: tuple[str, ...] = option(
        ("importance", "reconstruction", "random"),
        "orders, also as importance+normalize",
        "ORDERS",
        requires="remove",
    )
    repair: tuple[str, ...] = option(
        ("none", "reconstruct"),
        "repairs, of none, rescale, reconstruct and feed_forward",
        "REPAIRS",
        requires="remove",
    )
    draws: Listed = option(1, "draws of the calibration examples, one after another from --seed on", requires="remove")
    stacks: tuple[str, ...] = option((), "only heads of these: encoder,decoder,cross", "STACKS", requires="remove")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Removals(OnExamples):
    """Removals of heads, each in several draws.

    Attributes:
        draws: number of draws.
    """

    headline: str = found("the main metric")
    baseline: Mapping[str, float] = found("metrics with all heads")
    examples: int = found()
    agreement: str = found("its measure: `kl`, `cosine` or `squared_difference`")
    test: str = found("the paired test")
    removals: Sequence[RemovalTrial] = found(
        "with `--remove`: `order`, `remove`, `draw`, `stacks`, `repair`, `removed`, `solved`, `kept_repairs`, "
        "`metrics`, `agreement`, `against_whole` and `against_none` (`difference`, `p_value`, `low`, `high`), "
        "`order_seconds`, `repair_seconds`"
    )
    plot: Path = found(said="plot")
    draws: int

    def tables(self) -> Sequence[Table]:
        drawn = "One draw of" if self.draws == 1 else f"Means over {self.draws} draws, and their range, of"
        note = (
            f"All heads: {self.headline} {self.baseline[self.headline]:.4f} on {self.examples:,} examples. "
            f"{drawn} calibration examples; p is the largest, by {self.test}. "
            f"{MEASURES[self.agreement]}. Seconds of processor time: of the order, and of the repair."
        )
        rows = [_row(group, self.headline) for group in _groups(self.removals).values()]
        return [table_of(_columns(self.headline), rows, notes=(note, *self.about))]


def sweep_removals(options: RemovalOptions, progress: Progress) -> Removals:
    """Try every removal and evaluate the model; trials that are in OUT already are not run again."""
    from headjax.heads.head_id import require_stack
    from headjax.heads.named_orders import parse_order
    from headjax.heads.ordering import amount_of
    from headjax.trials.removals import Removal, parse_repair, prepare_removals

    for order in options.by:
        parse_order(order)
    for share in options.remove:
        amount_of(share)
    repairs = tuple(parse_repair(repair) for repair in options.repair)
    if options.fine_tune:
        raise HeadjaxError("--fine-tune: a sweep over removals trains nothing; use headjax prune")
    model, examples = open_model_and_examples(options)
    for stack in options.stacks:
        require_stack(model.config, stack, "--stacks")
    calibrate = options.selected or CALIBRATE
    trials = prepare_removals(
        model,
        examples.evaluation,
        examples.selection,
        calibrate=calibrate,
        batch_size=options.batch_size,
        buckets=options.buckets or LENGTHS,
        limit=options.limit,
    )
    wanted = [
        Removal(order, share, options.seed + draw, options.stacks)
        for draw in range(options.draws)
        for order in options.by
        for share in options.remove
    ]
    headline = examples.evaluation.headline
    file = path_of(options.out) / "removals.jsonl"
    done = {_key(trial): trial for trial in read_rows(file, _trial)}
    with progress("removing heads", len(wanted) * len(repairs), "trial") as bar:
        for number, removal in enumerate(wanted, start=1):
            missing = [repair for repair in repairs if (removal, repair) not in done]
            ended = number * len(repairs) - len(missing)
            for trial in trials.run(removal, missing) if missing else ():
                done[_key(trial)] = trial
                write_rows(file, done.values())
                ended += 1
                bar(ended, {headline: trial.metrics[headline]})
            bar(number * len(repairs), {})
    tried = [done[removal, repair] for removal in wanted for repair in repairs]
    return Removals(
        headline=headline,
        baseline=trials.own.metrics,
        examples=trials.own.examples,
        agreement=trials.agreed,
        test=trials.test,
        removals=tried,
        plot=write_file(path_of(options.out) / "removals.png", _plot(tried, trials, headline)),
        draws=options.draws,
        **examples.described(selected=calibrate, purpose="Calibration"),
    )


def _trial(row: dict[str, Any]) -> RemovalTrial:
    from headjax.trials.removals import RemovalTrial

    return RemovalTrial(**{**row, "stacks": tuple(row["stacks"])})


def read_rows(file: Path, build: Callable[[dict[str, Any]], T]) -> list[T]:
    """Return the trials of an earlier sweep, built from JSON lines; none where there is no file.

    Raises:
        HeadjaxError: the file holds something else.
    """
    if not file.is_file():
        return []
    try:
        return [build(json.loads(line)) for line in file.read_text().splitlines()]
    except (ValueError, TypeError, KeyError) as error:
        raise HeadjaxError(f"{file}: not written by headjax sweep ({error})") from None


def write_rows(file: Path, rows: Iterable[Any]) -> None:
    """Write named tuples, one JSON object a line."""
    write_file(file, "".join(f"{json.dumps(row._asdict())}\n" for row in rows).encode())


def _key(trial: RemovalTrial) -> tuple[Removal, str]:
    from headjax.trials.removals import Removal

    return Removal(trial.order, trial.remove, trial.draw, trial.stacks), trial.repair


def _groups(tried: Sequence[RemovalTrial]) -> Mapping[tuple[str, str, str], list[RemovalTrial]]:
    """Return the trials by share, order and repair: those of all draws."""
    groups: dict[tuple[str, str, str], list[RemovalTrial]] = {}
    for trial in tried:
        groups.setdefault((trial.remove, trial.order, trial.repair), []).append(trial)
    return groups


def _plot(tried: Sequence[RemovalTrial], trials: RemovalTrials, headline: str) -> bytes:
    from headjax.report.presets import sharing_curves

    total = trials.total_heads(tried[0].stacks)
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for (_, order, repair), group in _groups(tried).items():
        mean = sum(trial.metrics[headline] for trial in group) / len(group)
        panels.setdefault(f"repair: {repair}", {}).setdefault(order, []).append((group[0].removed / total, mean))
    return sharing_curves(
        panels,
        baseline=trials.own.metrics[headline],
        metric=headline,
        cost="Heads removed",
        cost_format=numbers.percent,
        title="Quality without heads, by order and repair",
        same_scale=True,
    ).png()


def _columns(headline: str) -> dict[str, Column]:
    return {
        "remove": Column("Heads removed"),
        "order": Column("Order"),
        "repair": Column("Repair"),
        "mean": Column(headline, numbers.fixed(4)),
        "low": Column("Lowest", numbers.fixed(4)),
        "high": Column("Highest", numbers.fixed(4)),
        "agreement": Column("Agreement", numbers.fixed(4)),
        "against_whole": Column("p against all heads", numbers.significant),
        "against_none": Column("p against no repair", numbers.significant),
        "seconds": Column("Seconds", numbers.fixed(1)),
    }


def _row(group: Sequence[RemovalTrial], headline: str) -> dict[str, Any]:
    """Return the row of the draws of a removal and its repair."""
    values = [trial.metrics[headline] for trial in group]
    unrepaired = [float(trial.against_none["p_value"]) for trial in group if trial.against_none is not None]
    return group[0]._asdict() | {
        "mean": sum(values) / len(values),
        "low": min(values),
        "high": max(values),
        "agreement": sum(trial.agreement for trial in group) / len(group),
        "against_whole": max(trial.against_whole["p_value"] for trial in group),
        "against_none": max(unrepaired, default=None),
        "seconds": sum(trial.order_seconds + trial.repair_seconds for trial in group) / len(group),
    }
