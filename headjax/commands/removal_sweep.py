"""The part of `headjax sweep` that removes heads: orders x shares x repairs x draws, each evaluated once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headjax.commands.examples import open_model_and_examples
from headjax.commands.options import Result, option
from headjax.commands.repair import LENGTHS, MEASURES
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

CALIBRATE = 512
"""Default number of calibration examples of a draw."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemovalOptions(ConversionOptions):
    """Options of a sweep over removals."""

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


def sweep_removals(options: RemovalOptions, out: str, progress: Progress) -> Result:
    """Try every removal and evaluate the model; trials that are in OUT already are not run again."""
    from headjax.heads.head_id import require_stack
    from headjax.heads.ordering import amount_of
    from headjax.trials.removals import Removal, parse_order, parse_repair, prepare_removals

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
    file = path_of(out) / "removals.jsonl"
    done = {_key(trial): trial for trial in read_removals(file)}
    with progress("removing heads", len(wanted) * len(repairs), "trial") as bar:
        for number, removal in enumerate(wanted, start=1):
            missing = [repair for repair in repairs if (removal, repair) not in done]
            ended = number * len(repairs) - len(missing)
            for trial in trials.run(removal, missing) if missing else ():
                done[_key(trial)] = trial
                write_file(file, "".join(f"{json.dumps(each._asdict())}\n" for each in done.values()).encode())
                ended += 1
                bar(ended, {headline: trial.metrics[headline]})
            bar(number * len(repairs), {})
    found = [done[removal, repair] for removal in wanted for repair in repairs]
    described = examples.described(selected=calibrate, purpose="Calibration")
    plot = write_file(path_of(out) / "removals.png", _plot(found, trials, headline))
    data = {
        "headline": headline,
        "baseline": trials.own.metrics,
        "examples": trials.own.examples,
        "agreement": trials.agreed,
        "test": trials.test,
        "removals": [trial._asdict() for trial in found],
        "plot": str(plot),
        **described.data,
    }
    return Result(data, [_table(found, trials, headline, options.draws, described.notes)], f"plot: {plot}")


def read_removals(file: Path) -> list[RemovalTrial]:
    """Return the trials of an earlier sweep; none where there is no file.

    Raises:
        HeadjaxError: the file holds something else.
    """
    from headjax.trials.removals import RemovalTrial

    if not file.is_file():
        return []
    try:
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        return [RemovalTrial(**{**row, "stacks": tuple(row["stacks"])}) for row in rows]
    except (ValueError, TypeError, KeyError) as error:
        raise HeadjaxError(f"{file}: not written by headjax sweep ({error})") from None


def _key(trial: RemovalTrial) -> tuple[Removal, str]:
    from headjax.trials.removals import Removal

    return Removal(trial.order, trial.remove, trial.draw, trial.stacks), trial.repair


def _groups(found: Sequence[RemovalTrial]) -> Mapping[tuple[str, str, str], list[RemovalTrial]]:
    """Return the trials by share, order and repair: those of all draws."""
    groups: dict[tuple[str, str, str], list[RemovalTrial]] = {}
    for trial in found:
        groups.setdefault((trial.remove, trial.order, trial.repair), []).append(trial)
    return groups


def _plot(found: Sequence[RemovalTrial], trials: RemovalTrials, headline: str) -> bytes:
    from headjax.report.presets import sharing_curves

    total = trials.total_heads(found[0].stacks)
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for (_, order, repair), group in _groups(found).items():
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


def _table(
    found: Sequence[RemovalTrial], trials: RemovalTrials, headline: str, draws: int, notes: tuple[str, ...]
) -> Table:
    columns = (
        Column("Heads removed"),
        Column("Order"),
        Column("Repair"),
        Column(headline, numbers.fixed(4)),
        Column("Lowest", numbers.fixed(4)),
        Column("Highest", numbers.fixed(4)),
        Column("Agreement", numbers.fixed(4)),
        Column("p against whole", numbers.significant),
        Column("p against no repair", numbers.significant),
        Column("Seconds", numbers.fixed(1)),
    )
    rows = []
    for (share, order, repair), group in _groups(found).items():
        values = [trial.metrics[headline] for trial in group]
        rows.append(
            (
                share,
                order,
                repair,
                sum(values) / len(values),
                min(values),
                max(values),
                sum(trial.agreement for trial in group) / len(group),
                max(trial.against_whole["p_value"] for trial in group),
                _largest([trial.against_none for trial in group]),
                sum(trial.order_seconds + trial.repair_seconds for trial in group) / len(group),
            )
        )
    drawn = "One draw of calibration examples" if draws == 1 else f"Means over {draws} draws, and their range"
    note = (
        f"All heads: {headline} {trials.own.metrics[headline]:.4f} on {trials.own.examples:,} examples. {drawn}; "
        f"p is the largest, by {trials.test}. "
        f"{MEASURES[trials.agreed]}. Seconds of processor time: of the order, and of the repair."
    )
    return Table(columns, rows, notes=(note, *notes))


def _largest(tests: Sequence[Mapping[str, Any] | None]) -> float | None:
    return max((float(test["p_value"]) for test in tests if test is not None), default=None)
