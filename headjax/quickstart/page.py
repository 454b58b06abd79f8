"""The quickstart's page: the head report's figures, and smaller forms of a small decoder."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

from headjax.core.tensors import Tensors, flatten
from headjax.head_report.sections import pruning_picture, score_picture
from headjax.heads.head_id import HeadId
from headjax.models.summary import summarize
from headjax.quickstart.study import DECODER, GENERATED, Study, Variant
from headjax.quickstart.text import BATCH
from headjax.report import numbers
from headjax.report.page import Picture, Section, write_page
from headjax.report.presets import learning_curves, trade_off
from headjax.report.tables import Column, Table
from headjax.version import __version__

TITLES = {
    DECODER: "the decoder",
    "standard": "standard (8 heads of 16)",
    "fixed": "fixed head size (8 heads of 32)",
    "collaborative": "collaborative (8 heads share 64)",
}

REPAIRED, RANDOM = "reconstruction+reconstruct", "random"


def write_report(study: Study, path: Path) -> Path:
    """Write the study as one HTML page."""
    heads, whole = study.heads, study.heads.at(REPAIRED, 0.0)
    half, at_random, none = (
        relative_change(heads.at(order, share), whole) for order, share in ((REPAIRED, 0.5), (RANDOM, 0.5), (RANDOM, 1))
    )
    best = min((one for one in study.converted if one.details["calibrated"]), key=lambda one: (one.loss, one.name))
    shared = relative_change(study.text.bits(best.loss), whole)
    cache, before = (
        summarize(one.config, study.text.length).cache_bytes_per_token for one in (best.model, study.model)
    )
    summary = (
        f"A language model of {numbers.count(study.model.num_parameters)} parameters needs its "
        f"{len(heads.scores['importance'])} heads: without any, a byte of {study.text.name} costs {none} more bits. It "
        f"does not need all of them: without the half that the others can best stand in for, their output projections "
        f"refitted, it costs {half} more, without a random half {at_random}. And heads can share, as "
        f"`{best.details['to']}` shows, which keeps {cache / before:.0%} of the cache at {shared} more.\n\n"
        f"Heads are chosen on training text and judged on {study.text.held_out.size:,} held-out tokens. The page ends "
        f"with what {len(study.trained)} formulations learn from the same text in {study.steps} steps."
    )
    facts = {
        "bits per byte of held-out text": numbers.significant(whole),
        "more without half of the heads, the others refitted": half,
        "more without a random half": at_random,
        "more without any head": none,
    }
    sections = [
        _writes(study),
        _shrunk(study),
        _removing(study),
        _importance(study),
        _sharing(study, whole),
        _trained(study),
    ]
    sections.insert(5, Section("Generating", "", table=cost_table(study)))
    footer = (
        f"headjax {__version__}, jax {jax.__version__}, Python {platform.python_version()}, {device()}, "
        f"{numbers.duration(study.seconds)} in all."
    )
    return write_page(path, "What do a small language model's heads do?", summary, sections, footer, facts)


def relative_change(value: float, whole: float) -> str:
    """Return a relative change, such as `12 %`; small ones with a digit more. Lines do not break at the space."""
    change = 100.0 * (value / whole - 1.0)
    return f"{change:.1f}\N{NO-BREAK SPACE}%" if abs(change) < 10 else f"{change:.0f}\N{NO-BREAK SPACE}%"


def device() -> str:
    """Return the device of the models."""
    kind = jax.devices()[0].device_kind
    return f"{platform.machine()} CPU" if kind == "cpu" else kind


def _writes(study: Study) -> Section:
    if study.subject == DECODER:
        origin = (
            "The decoder comes with headjax. It was trained on the source code of Python's standard library; whole "
            "files were held out."
        )
    else:
        origin = f"The standard formulation was trained on the text for {study.steps} steps."
    samples = "Text that it writes (temperature 0.5, 96 tokens each); the given beginning is set in bold."
    return Section("What the model writes", f"{origin}\n\n{samples}", listings=study.samples)


def _shrunk(study: Study) -> Section:
    whole, bits = study.text.bits(study.loss), study.text.bits(study.shrunk.loss)
    kept = numbers.percent(study.shrunk.model.num_parameters / study.model.num_parameters)
    text = (
        "Half of the parameters of attention and feed-forwards, as `headjax shrink` chooses them: smaller forms of "
        "every layer are measured, with fewer heads, shared keys and values or fewer units, and an integer program "
        f"takes one a layer. With {kept} of all parameters a byte costs {relative_change(bits, whole)} more bits. "
        "Nothing is trained."
    )
    caption = "Shares of its heads, of its attention's parameters and of its units that every layer keeps."
    picture = Picture(study.story.layer_plot(), caption)
    return Section("Shrunk to a budget", text, (picture,), study.story.layer_table())


def _importance(study: Study) -> Section:
    values = study.heads.scores["importance"]
    rows = [
        (name, str(role.head), role.weight, role.uniform, _rank(values, role.head))
        for name, role in study.roles.items()
    ]
    columns = (
        Column("Attends to"),
        Column("Head that does it most"),
        Column("Its weight there", numbers.percent),
        Column("Equal attention", numbers.percent),
        Column("Rank by importance", numbers.count),
    )
    note = (
        "Weight: attention on those keys, a mean over the queries that have such a key. Equal attention gives every "
        f"key up to the query the same. Rank 1 of {len(values)} is the most important head."
    )
    figures = (score_picture(study.heads, "importance"),)
    return Section("Which heads matter, and what some of them do", "", figures, Table(columns, rows, notes=(note,)))


def _rank(values: Mapping[HeadId, float], head: HeadId) -> int:
    return 1 + sum(value > values[head] for value in values.values())


def _removing(study: Study) -> Section:
    columns = (
        Column("Removed for real"),
        Column("Parameters", numbers.count),
        Column("Bits per byte", numbers.significant),
        Column("Change", numbers.percent),
        Column("Difference from gating, nats", numbers.significant),
    )
    whole = study.text.bits(study.loss)
    rows = []
    for variant in study.pruned:
        bits, apart = study.text.bits(variant.loss), abs(variant.loss - variant.details["masked_loss"])
        rows.append((variant.name, variant.model.num_parameters, bits, bits / whole - 1.0, apart))
    note = (
        "The least important heads, and nothing repaired. Removing cuts a head's slices out of every projection; "
        "gating it off gives the same function."
    )
    return Section("Removing heads", "", (pruning_picture(study.heads),), Table(columns, rows, notes=(note,)))


def _sharing(study: Study, whole: float) -> Section:
    def point(variant: Variant) -> tuple[float, float]:
        cache = summarize(variant.model.config, study.text.length).cache_bytes_per_token
        return float(cache), study.text.bits(variant.loss)

    cache = float(summarize(study.model.config, study.text.length).cache_bytes_per_token)
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
    text = (
        "The same weights, written as another formulation: `collaborative` heads share their key and query dimensions, "
        "`grouped` heads share whole keys and values, `latent` heads read keys and values from one short vector. A "
        "plain conversion keeps the weights' products as well as it can; a calibrated one keeps what the layer "
        "computes on a few training blocks."
    )
    return Section("Letting heads share", text, (Picture(plot, caption),), _conversion_table(study, whole))


def _conversion_table(study: Study, whole: float) -> Table:
    found = {(variant.details["to"], variant.details["calibrated"]): variant for variant in study.converted}
    rows = []
    for target in dict.fromkeys(variant.details["to"] for variant in study.converted):
        pair = found[target, False], found[target, True]
        summary = summarize(pair[0].model.config, study.text.length)
        changes = [study.text.bits(variant.loss) / whole - 1.0 for variant in pair]
        rows.append((target, summary.parameters, summary.cache_bytes_per_token, *changes))
    columns = (
        Column("Converted to"),
        Column("Parameters", numbers.count),
        Column("Cache per token", numbers.size),
        Column("Bits per byte, plain", numbers.percent, "lower"),
        Column("Bits per byte, calibrated", numbers.percent, "lower"),
    )
    note = f"Changes are relative to all heads, {numbers.significant(whole)} bits per byte. No model was trained."
    return Table(columns, rows, notes=(note,))


def cost_table(study: Study) -> Table:
    """Return quality, size and generation speed of the models that generate."""
    models = {study.subject: (study.model, study.loss)}
    models |= {
        variant.name: (variant.model, variant.loss) for variant in (*study.pruned, *study.converted, study.shrunk)
    }
    prompts = min(BATCH, len(study.text.held_out))
    rows = []
    for name, timing in study.timings.items():
        model, loss = models[name]
        summary = summarize(model.config, study.text.length)
        cells = (summary.parameters, summary.heads, summary.cache_bytes_per_token, prompts * GENERATED / timing.median)
        rows.append((TITLES.get(name, name), study.text.bits(loss), *cells))
    columns = (
        Column("Model"),
        Column("Bits per byte", numbers.significant, "lower"),
        Column("Parameters", numbers.count),
        Column("Heads", numbers.count),
        Column("Cache/token", numbers.size, "lower"),
        Column("Tokens/s", numbers.count, "higher"),
    )
    note = (
        f"Speed: {prompts} prompts continued by {GENERATED} tokens, reading the prompts included; median of "
        f"{next(iter(study.timings.values())).repeats} runs, the models taken in turns, on {device()}. A model this "
        "small leaves little to save: most of a step is not attention."
    )
    return Table(columns, rows, notes=(note,))


def _trained(study: Study) -> Section:
    validation, train = (
        {TITLES[name]: _curve(records, f"{part}/loss") for name, records in study.curves.items()}
        for part in ("validation", "train")
    )
    rows = []
    for name, runs in study.trained.items():
        parameters = runs[0].model.config.tensors()
        parts = (_count(parameters, part) for part in ("attention", "feed_forward"))
        rows.append((TITLES[name], runs[0].model.num_parameters, *parts, *(run.metrics["loss"] for run in runs)))
    seeds = len(next(iter(study.trained.values())))
    columns = (
        Column("Formulation"),
        Column("Parameters", numbers.count),
        Column("in attention", numbers.count),
        Column("in feed-forward", numbers.count),
        *(Column(f"Loss, seed {seed}", numbers.fixed(3)) for seed in range(seeds)),
    )
    note = (
        "Nats per held-out token. All have as many parameters, but not in the same places: what a formulation saves in "
        f"attention goes into its feed-forward layer. So a lower loss does not mean better heads. {seeds} seeds show "
        "how far runs differ by chance; such differences mean nothing."
    )
    caption = f"Loss on held-out text and on training batches, first seed, {study.steps} steps each."
    text = "The formulations learn from the same blocks in the same order for a short time, each from its random start."
    figures = (Picture(learning_curves(validation, train), caption),)
    return Section("Training three formulations", text, figures, Table(columns, rows, notes=(note,)))


def _count(tensors: Tensors, part: str) -> int:
    """Return the number of parameters below every entry of a name."""
    return sum(tensor.size for path, tensor in flatten(tensors).items() if part in path.split("/"))


def _curve(records: Sequence[Mapping[str, float]], name: str) -> list[tuple[float, float]]:
    return [(record["step"], record[name]) for record in records if name in record]
