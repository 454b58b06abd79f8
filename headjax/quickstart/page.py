"""The quickstart's report."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from headjax.core.tensors import Tensors, flatten
from headjax.heads.head_id import HeadId
from headjax.models.summary import summarize
from headjax.plots import score_map
from headjax.quickstart.study import DECODER, Study
from headjax.quickstart.subject import BATCH, GENERATED, IMPORTANCE, RANDOM, Variant
from headjax.report import numbers
from headjax.report.page import Picture, Section, write_page
from headjax.report.presets import learning_curves, pruning_curves, trade_off
from headjax.report.tables import Column, Table
from headjax.version import __version__

TITLES = {
    DECODER: "the decoder",
    "standard": "standard (8 heads of 16)",
    "fixed": "fixed head size (8 heads of 32)",
    "collaborative": "collaborative (8 heads share 64)",
}


def write_report(study: Study, path: Path) -> Path:
    """Write the study as one HTML page."""
    model, heads = study.model, study.heads
    whole, half, none = (heads.at(IMPORTANCE, share) for share in (0.0, 0.5, 1.0))
    at_random = heads.at(RANDOM, 0.5)
    count = len(heads.scores.score(IMPORTANCE_SCORE))
    best = min((one for one in study.converted if one.details["calibrated"]), key=lambda one: (one.loss, one.name))
    least, any_half, shared = (relative_change(value, whole) for value in (half, at_random, study.text.bits(best.loss)))
    cache, before = (summarize(one.config, _length(study)).cache_bytes_per_token for one in (best.model, model))
    summary = (
        f"A language model of {numbers.count(model.num_parameters)} parameters needs its {count} heads: without any, "
        f"a byte of {study.text.name} costs {relative_change(none, whole)} more bits. It does not need all of them: "
        f"without the half that importance places last it costs {least} more, without a random half {any_half}; and "
        f"they can share, as `{best.details['to']}` shows, which keeps {cache / before:.0%} of the cache at {shared} "
        "more.\n\n"
        f"Heads are chosen on training text and judged on {study.text.held_out.size:,} held-out tokens. "
        f"The page ends with what {len(study.trained)} formulations learn from the same text in {study.steps} steps."
    )
    facts = {
        "bits per byte of held-out text": numbers.significant(whole),
        "more without the less important half of the heads": relative_change(half, whole),
        "more without a random half": relative_change(at_random, whole),
        "more without any head": relative_change(none, whole),
    }
    sections = [
        _writes(study),
        _importance(study),
        _removing(study),
        _sharing(study),
        _generating(study),
        _trained(study),
    ]
    footer = (
        f"headjax {__version__}, jax {jax.__version__}, Python {platform.python_version()}, {device()}, "
        f"{numbers.duration(study.seconds)} in all."
    )
    return write_page(path, "What do a small language model's heads do?", summary, sections, footer, facts)


IMPORTANCE_SCORE = "importance"


def relative_change(value: float, whole: float) -> str:
    """Return a relative change, such as `12 %`; small ones with a digit more. Lines do not break at the space."""
    change = 100.0 * (value / whole - 1.0)
    return f"{change:.1f}\N{NO-BREAK SPACE}%" if abs(change) < 10 else f"{change:.0f}\N{NO-BREAK SPACE}%"


def device() -> str:
    """Return what the models ran on."""
    kind = jax.devices()[0].device_kind
    return f"{platform.machine()} CPU" if kind == "cpu" else kind


def _writes(study: Study) -> Section:
    text = study.text
    losses = {f"{name} counts": loss for name, loss in study.counts.items()} | {TITLES[study.subject]: study.loss}
    table = Table(
        (
            Column("Predicts the next token by"),
            Column("Bits per byte", numbers.significant, "lower"),
            Column("Perplexity per token", numbers.significant, "lower"),
        ),
        [(name, text.bits(loss), float(np.exp(loss))) for name, loss in losses.items()],
        notes=(
            f"All on the same {text.held_out.size:,} tokens, in blocks of {text.held_out.shape[1]}. Counts of one, two "
            "and three tokens are taken on the training text, with Witten-Bell smoothing.",
        ),
    )
    prose = (
        "The decoder comes with headjax. It was trained on the source code of Python's standard library; whole files "
        "were held out."
        if study.subject == DECODER
        else f"The standard formulation was trained on the text for {study.steps} steps."
    )
    samples = "Text that it writes (temperature 0.5, 96 tokens each); the given beginning is set in bold."
    return Section("What the model writes", f"{prose}\n\n{samples}", table=table, listings=study.samples)


def _importance(study: Study) -> Section:
    scores = study.heads.scores
    values = scores.score(IMPORTANCE_SCORE)
    more = {name: some for name, some in scores.values.items() if name != IMPORTANCE_SCORE}
    plot = score_map(study.model, values, title="Head importance", unit="Importance (nats per block)", more=more)
    caption = (
        f"Mean over {scores.examples} training blocks of |dL/dξ|: how strongly a block's loss reacts to the head's "
        "gate ξ (Michel et al. 2019, equation 2)."
    )
    table = Table(
        (
            Column("Attends to"),
            Column("Head that does it most"),
            Column("Its weight there", numbers.percent),
            Column("Equal attention", numbers.percent),
            Column("Rank by importance", numbers.count),
        ),
        [
            (name, str(role.head), role.weight, role.uniform, _rank(values, role.head))
            for name, role in study.heads.roles.items()
        ],
        notes=(
            "Weight: attention on those keys, a mean over the queries that have such a key. Equal attention gives "
            f"every key up to the query the same. Rank 1 of {len(values)} is the most important head.",
        ),
    )
    return Section("Which heads matter, and what some of them do", "", (Picture(plot, caption),), table)


def _rank(values: Mapping[HeadId, float], head: HeadId) -> int:
    return 1 + sum(value > values[head] for value in values.values())


def _removing(study: Study) -> Section:
    whole = study.heads.at(IMPORTANCE, 0.0)
    plot = pruning_curves(
        study.heads.curves, metric="Bits per byte", baseline=whole, title="Bits per byte against heads removed"
    )
    caption = (
        "Heads gated off without any training afterwards. The band spans three random orders. At 100 % nothing moves "
        "information between tokens any more."
    )
    rows = [
        (
            variant.name,
            variant.model.num_parameters,
            study.text.bits(variant.loss),
            study.text.bits(variant.loss) / whole - 1.0,
            abs(variant.loss - variant.details["masked_loss"]),
        )
        for variant in study.pruned
    ]
    table = Table(
        (
            Column("Removed for real"),
            Column("Parameters", numbers.count),
            Column("Bits per byte", numbers.significant),
            Column("Change", numbers.percent),
            Column("Difference from gating, nats", numbers.significant),
        ),
        rows,
        notes=("Removing cuts a head's slices out of every projection. Gating it off gives the same function.",),
    )
    return Section("Removing heads", "", (Picture(plot, caption),), table)


def _sharing(study: Study) -> Section:
    whole = study.text.bits(study.loss)

    def point(variant: Variant) -> tuple[float, float]:
        return float(summarize(variant.model.config, _length(study)).cache_bytes_per_token), study.text.bits(
            variant.loss
        )

    cache = float(summarize(study.model.config, _length(study)).cache_bytes_per_token)
    points: dict[str, list[tuple[float, float]]] = {"all heads": [(cache, whole)]}
    for variant in study.converted:
        if variant.details["calibrated"]:
            points.setdefault(f"{variant.details['to'].partition(':')[0]}, calibrated", []).append(point(variant))
    points["heads removed"] = [point(variant) for variant in study.pruned]
    plot = trade_off(
        points,
        title="Bits per byte against cache, without training",
        cost="Cache per token",
        metric="Bits per byte",
        cost_format=numbers.size,
    )
    caption = "Each point is a model made from the one at the right without training. Lower and further left is better."
    return Section("Letting heads share", CONVERSION_TEXT, (Picture(plot, caption),), _conversion_table(study, whole))


CONVERSION_TEXT = (
    "The same weights, written as another formulation: `collaborative` heads share their key and query dimensions, "
    "`grouped` heads share whole keys and values, `latent` heads read keys and values from one short vector. A plain "
    "conversion keeps the weights' products as well as it can; a calibrated one keeps what the layer computes on a few "
    "training blocks."
)


def _conversion_table(study: Study, whole: float) -> Table:
    found = {(variant.details["to"], variant.details["calibrated"]): variant for variant in study.converted}
    targets = dict.fromkeys(variant.details["to"] for variant in study.converted)
    rows = []
    for target in targets:
        plain, calibrated = found[target, False], found[target, True]
        summary = summarize(plain.model.config, _length(study))
        changes = [study.text.bits(variant.loss) / whole - 1.0 for variant in (plain, calibrated)]
        rows.append((target, summary.parameters, summary.cache_bytes_per_token, *changes))
    return Table(
        (
            Column("Converted to"),
            Column("Parameters", numbers.count),
            Column("Cache per token", numbers.size),
            Column("Bits per byte, plain", numbers.percent, "lower"),
            Column("Bits per byte, calibrated", numbers.percent, "lower"),
        ),
        rows,
        notes=(
            f"Changes are relative to all heads, {numbers.significant(whole)} bits per byte. No model was trained.",
        ),
    )


def _generating(study: Study) -> Section:
    return Section("Generating", "", table=cost_table(study))


def cost_table(study: Study) -> Table:
    """Return quality, size and generation speed of the models that generate."""
    models = {study.subject: (study.model, study.loss)}
    models |= {variant.name: (variant.model, variant.loss) for variant in (*study.pruned, *study.converted)}
    rows = []
    for name, timing in study.timings.items():
        model, loss = models[name]
        summary = summarize(model.config, _length(study))
        speed = _batch(study) * GENERATED / timing.median
        quality = study.text.bits(loss)
        cells = (summary.parameters, summary.heads, summary.cache_bytes_per_token, speed)
        rows.append((TITLES.get(name, name), quality, *cells))
    return Table(
        columns=(
            Column("Model"),
            Column("Bits per byte", numbers.significant, "lower"),
            Column("Parameters", numbers.count),
            Column("Heads", numbers.count),
            Column("Cache/token", numbers.size, "lower"),
            Column("Tokens/s", numbers.count, "higher"),
        ),
        rows=rows,
        notes=(
            f"Speed: {_batch(study)} prompts continued by {GENERATED} tokens, reading the prompts included; median of "
            f"{next(iter(study.timings.values())).repeats} runs, the models taken in turns, on {device()}. A model "
            "this small leaves little to save: most of a step is not attention.",
        ),
    )


def _trained(study: Study) -> Section:
    curves = {TITLES[name]: _curve(records, "validation/loss") for name, records in study.curves.items()}
    train = {TITLES[name]: _curve(records, "train/loss") for name, records in study.curves.items()}
    plot = learning_curves(curves, train)
    rows = []
    for name, runs in study.trained.items():
        parameters = runs[0].model.config.tensors()
        attention, feed_forward = (_count(parameters, part) for part in ("attention", "feed_forward"))
        losses = [run.metrics["loss"] for run in runs]
        rows.append((TITLES[name], runs[0].model.num_parameters, attention, feed_forward, *losses))
    seeds = len(next(iter(study.trained.values())))
    table = Table(
        (
            Column("Formulation"),
            Column("Parameters", numbers.count),
            Column("in attention", numbers.count),
            Column("in feed-forward", numbers.count),
            *(Column(f"Loss, seed {seed}", numbers.fixed(3)) for seed in range(seeds)),
        ),
        rows,
        notes=(
            "Nats per held-out token. All have as many parameters, but not in the same places: what a formulation "
            "saves in attention goes into its feed-forward layer. So a lower loss does not mean better heads. "
            f"{seeds} seeds show how far runs differ by chance; such differences mean nothing.",
        ),
    )
    caption = f"Loss on held-out text and on training batches, first seed, {study.steps} steps each."
    text = (
        "Three formulations learn from the same blocks in the same order for a short time, each from its random start."
    )
    return Section("Training three formulations", text, (Picture(plot, caption),), table)


def _count(tensors: Tensors, part: str) -> int:
    """Return the number of parameters below every entry of a name."""
    return sum(tensor.size for path, tensor in flatten(tensors).items() if part in path.split("/"))


def _length(study: Study) -> int:
    return int(study.text.held_out.shape[1])


def _batch(study: Study) -> int:
    return min(BATCH, len(study.text.held_out))


def _curve(records: Sequence[Mapping[str, float]], name: str) -> list[tuple[float, float]]:
    return [(record["step"], record[name]) for record in records if name in record]
