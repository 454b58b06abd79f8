"""Repair of the kept heads by refitted output maps: options, the repair, its agreement with the original."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headjax.commands.examples import Examples
from headjax.commands.options import option
from headjax.commands.results import table_of
from headjax.commands.surgery import FineTuningOptions
from headjax.core.fields import Size, read_amount
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.heads.ordering import Order
    from headjax.heads.reconstruction import Reconstruction
    from headjax.models.config import Batch
    from headjax.models.model import Model


AGREED = 512
"""Greatest number of evaluation examples on which the models' agreement is measured."""


LENGTHS = (32, 64, 128, 256)
"""Lengths to which calibration examples are padded where `--buckets` names none."""


APART = 1.5
"""Factor between the mean lengths of calibration and evaluation examples from which a hint is given."""


MEASURES = {
    "kl": "KL divergence from the original's predictions",
    "cosine": "Cosine to the original's embeddings",
    "squared_difference": "Squared difference from the original's numbers",
}
"""Measures of agreement in words."""


def share_of(text: str) -> float:
    """Return the share that `30%` or `0.3` means.

    Raises:
        ValueError: the text is no share of at least 0 and below 1.
    """
    return read_amount(text, "0.3, or 30%", lambda amount: amount.number < 1.0).number


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepairOptions(FineTuningOptions):
    """Options of commands that can refit the output projections of kept heads."""

    reconstruct: bool = option(
        False, "refit the output projections of kept heads so that layers compute as before; needs no labels"
    )
    feed_forward: bool = option(False, "solve the second map of every feed-forward, too", requires="reconstruct")
    units: float = option(
        0.0,
        "remove this share of every feed-forward's units, too, such as 30%",
        "SHARE",
        read=share_of,
        shown="0%",
        requires="reconstruct",
    )
    calibrate: Size = option(512, "with --reconstruct or --by reconstruction: selection examples to read")


class Repaired(NamedTuple):
    """A pruned model with its repair.

    Attributes:
        model: the smaller model.
        data: JSON entries about the repair.
        tables: tables about the repair.
    """

    model: Model
    data: Mapping[str, Any] = {}
    tables: tuple[Table, ...] = ()


def calibration_batches(examples: Examples, options: RepairOptions) -> list[Batch]:
    """Return the selection examples that `--calibrate` asks for, drawn by `--seed`."""
    buckets = options.buckets or LENGTHS
    return list(examples.selection.sample(options.calibrate, options.batch_size, seed=options.seed, buckets=buckets))


def reconstructed(
    model: Model, examples: Examples, removed: Order, options: RepairOptions, progress: Progress
) -> Repaired:
    """Return the model without these heads, its maps refitted, with the layers, examples and agreement."""
    from headjax.evaluation.selection import describe
    from headjax.heads.reconstruction import reconstruct

    fitted = examples.selection.fit(model)
    layers = sum(map(len, model.config.attentions().values()))
    feed_forward = options.feed_forward or options.units > 0.0
    layers += sum(len(stack.layers) for stack in model.config.stacks().values()) * feed_forward
    with progress("reconstructing", layers, "map") as bar, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        batches = calibration_batches(examples, options)
        found = reconstruct(fitted, batches, removed, feed_forward=feed_forward, units=options.units, progress=bar)
    pruned = found.model
    agreed = _agreement(fitted, found, examples, options, progress)
    said = [str(warning.message) for warning in caught]
    said += _hint(_mean_tokens(batches), agreed["tokens_per_example"])
    calibration = describe(examples.selection, found.examples) | {"tokens": found.tokens}
    data = {
        "calibration": calibration,
        "layers": [layer._asdict() for layer in found.layers],
        "units_removed": {f"{stack}/{layer}": len(units) for (stack, layer), units in found.units.items()},
        "agreement": agreed,
        "warnings": said,
    }
    notes = (
        f"Calibration: {found.examples:,} examples of {calibration['task']}, {calibration['split']}; "
        f"{found.tokens:,} tokens.",
        f"{MEASURES[agreed['measure']]}, on {agreed['examples']:,} evaluation examples: {agreed['before']:.4g} "
        f"before the repair, {agreed['after']:.4g} after it.",
        *(f"{text[:1].upper()}{text[1:]}." for text in said),
    )
    params, config = pruned.params, pruned.config
    if hasattr(model.config, "output"):  # the model keeps the task output that it came with
        config = dataclasses.replace(config, output=model.config.output)  # type: ignore[call-arg]
    repaired = model.replace(config=config, params=params, history=pruned.history)
    return Repaired(repaired, data, (_table(found, notes),))


def _agreement(
    whole: Model, found: Reconstruction, examples: Examples, options: RepairOptions, progress: Progress
) -> dict[str, Any]:
    """Return the agreement with the unpruned model on evaluation examples, before and after the repair.

    Heads are gated off and not cut out, which computes the same, so that one program serves all three models.
    """
    from headjax.heads import gates as head_gates
    from headjax.heads.agreement import agreements
    from headjax.heads.units import mask_units

    judged = min(options.limit or AGREED, AGREED)
    buckets = options.buckets or LENGTHS
    batches = list(examples.evaluation.batches(options.batch_size, limit=judged, buckets=buckets))
    gates = head_gates.without(whole.config, found.removed)
    others = [(mask_units(whole, found.units), gates), (found.repaired, gates)]
    with progress("comparing with the original", len(batches), "batch") as bar:
        before, after = agreements(whole, others, batches, progress=bar)
    return {
        "measure": before.kind,
        "before": before.value,
        "after": after.value,
        "examples": examples.evaluation.count(judged),
        "tokens_per_example": _mean_tokens(batches),
    }


def _mean_tokens(batches: Sequence[Batch]) -> float:
    """Return the mean number of tokens of a text; 0 where examples are no texts."""
    import numpy as np

    texts = [batch for batch in batches if "input_ids" in batch]
    present = [np.asarray(batch.get("attention_mask", np.ones(np.shape(batch["input_ids"])))) for batch in texts]
    return float(sum(mask.sum() for mask in present) / max(sum(map(len, present)), 1))


def _hint(calibrated: float, judged: float) -> list[str]:
    """Return a hint if calibration examples are far shorter or longer than those that the model will read."""
    if not judged or 1.0 / APART < calibrated / judged < APART:
        return []
    return [
        f"calibration examples have {calibrated:.0f} tokens on average and evaluation examples {judged:.0f}; examples "
        "as long as those that the model will read repair it better (--select FILE)"
    ]


def _table(reconstruction: Reconstruction, notes: tuple[str, ...]) -> Table:
    """Return the solved maps, one a row."""
    columns = {
        "name": Column("Solved"),
        "unknowns": Column("Unknowns", numbers.significant),
        "ridge": Column("Ridge", numbers.significant),
        "held_out": Column("Held-out error", numbers.significant, better="lower"),
        "repair": Column("Repair"),
    }
    rows = [{**layer._asdict(), "repair": "kept" if layer.kept else "left out"} for layer in reconstruction.layers]
    title = "Squared error with the repair over that without, on held-out examples"
    return table_of(columns, rows, title=title, notes=notes)
