"""`headjax sweep`: conversions to many sizes, or removals by orders x shares x repairs x draws, each evaluated once."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headjax.commands.examples import Examples, open_model_and_examples
from headjax.commands.options import argument, option
from headjax.commands.repair import LENGTHS, MEASURES
from headjax.commands.results import OnExamples, found, table_of
from headjax.commands.surgery import ConversionOptions, Tuned, fine_tuning_of
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Count, Listed, Size
from headjax.core.progress import Progress, Update
from headjax.core.serialize import unknown_name
from headjax.report import numbers
from headjax.report.tables import Column, Table
from headjax.storage.files import write_file
from headjax.storage.kept import Kept
from headjax.storage.paths import path_of

if TYPE_CHECKING:
    from headjax.models.model import Model
    from headjax.trials.conversions import Trial, Trials
    from headjax.trials.removals import RemovalTrial, RemovalTrials

CALIBRATE = 512
"""Default number of calibration examples of a draw."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ConversionOptions):
    """Options of `headjax sweep`."""

    out: str = argument(
        "OUT", "folder of the trials and of a plot; trials of the same model and settings are kept", writes="folder"
    )
    remove: tuple[str, ...] = option(
        help="shares or numbers of heads to remove, such as 25%,50%,75%",
        default=(),
        metavar="SHARES",
        read=lambda text: tuple(text.split(",")),
        one_of="sweep",
    )
    by: tuple[str, ...] = option(
        ("importance", "reconstruction", "random"),
        "orders",
        "ORDERS",
        requires="remove",
    )
    repair: tuple[str, ...] = option(
        ("none", "reconstruct"),
        "repairs, of none, reconstruct and feed_forward",
        "REPAIRS",
        requires="remove",
    )
    draws: Listed = option(1, "draws of the calibration examples, one after another from --seed on", requires="remove")
    stacks: tuple[str, ...] = option((), "only heads of these: encoder,decoder,cross", "STACKS", requires="remove")
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
        columns = {
            "remove": Column("Heads removed"),
            "order": Column("Order"),
            "repair": Column("Repair"),
            "mean": Column(self.headline, numbers.fixed(4)),
            "low": Column("Lowest", numbers.fixed(4)),
            "high": Column("Highest", numbers.fixed(4)),
            "agreement": Column("Agreement", numbers.fixed(4)),
            "against_whole": Column("p against all heads", numbers.significant),
            "against_none": Column("p against no repair", numbers.significant),
            "seconds": Column("Seconds", numbers.fixed(1)),
        }
        rows = [_row(group, self.headline) for group in _groups(self.removals).values()]
        return [table_of(columns, rows, notes=(note, *self.about))]


def sweep_removals(options: Options, progress: Progress) -> Removals:
    """Try every removal and evaluate the model; trials that are in OUT already are not run again."""
    from headjax.heads.head_id import require_stack
    from headjax.heads.named_orders import OrderConfig
    from headjax.heads.ordering import amount_of
    from headjax.trials.removals import Removal, RemovalTrial, parse_repair, prepare_removals

    for order in options.by:
        OrderConfig(by=order)
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
    removals = [
        Removal(order, share, options.seed + draw, options.stacks)
        for draw in range(options.draws)
        for order in options.by
        for share in options.remove
    ]
    wanted = [(removal, repair) for removal in removals for repair in repairs]
    headline = examples.evaluation.headline
    with progress("removing heads", len(wanted), "trial") as bar:
        kept = kept_trials("removals", options, model, examples)
        tried = [RemovalTrial(**fields) for fields in each_trial(kept, wanted, trials.run, headline, bar)]
    return Removals(
        headline=headline,
        baseline=trials.own.metrics,
        examples=trials.own.examples,
        agreement=trials.agreed,
        test=trials.test,
        removals=tried,
        plot=write_file(path_of(options.out) / "removals.png", _removal_plot(tried, trials, headline)),
        draws=options.draws,
        **examples.described(selected=calibrate, purpose="Calibration"),
    )


OTHERWISE = {"json", "overwrite", "modules", "model", "out", "to", "variants", "remove", "by", "repair", "draws"}
"""Options that do not change a trial, or that its name or the model's numbers stand for."""


def kept_trials(kind: str, options: Options, model: Model, examples: Examples) -> Kept:
    """Return the trials in OUT of the same model, examples and settings; sweeps over others have files of their own."""
    from headjax.head_report.study import fingerprint

    names = [field.name for field in dataclasses.fields(options) if field.name not in OTHERWISE]
    settings = {name: getattr(options, name) for name in names}
    key = fingerprint(model, [examples.evaluation, examples.selection], settings)
    return Kept(path_of(options.out) / f"{kind}-{key[:12]}.json", key)


def each_trial(
    kept: Kept, wanted: Sequence[Any], run: Callable[..., Any], headline: str, bar: Update
) -> list[dict[str, Any]]:
    """Return the fields of the wanted trials; those that are not kept are run, and each is kept at once.

    Args:
        kept: trials by what they tried.
        wanted: what to try, each the arguments of `run`.
        run: tries it.
        headline: the metric that the progress bar shows.
        bar: called after each trial.
    """
    trials: list[dict[str, Any]] = []
    for place in wanted:
        trials.append(kept(str(place), lambda place=place: run(*place)._asdict()))  # type: ignore[misc]
        bar(len(trials), {headline: trials[-1]["metrics"][headline]})
    return trials


def _groups(tried: Sequence[RemovalTrial]) -> Mapping[tuple[str, str, str], list[RemovalTrial]]:
    """Return the trials by share, order and repair: those of all draws."""
    groups: dict[tuple[str, str, str], list[RemovalTrial]] = {}
    for trial in tried:
        groups.setdefault((trial.remove, trial.order, trial.repair), []).append(trial)
    return groups


def _removal_plot(tried: Sequence[RemovalTrial], trials: RemovalTrials, headline: str) -> bytes:
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
    from headjax.conversion.named import parse_target
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
    with progress("converting", len(wanted), "model") as bar:
        kept = kept_trials("trials", options, model, examples)
        run_one = functools.partial(trials.run, seed=options.seed)
        tried = [Trial(**fields) for fields in each_trial(kept, wanted, run_one, trials.task.headline, bar)]
    tried.insert(0, trials.original())
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
