"""The quickstart's report."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from headjax.heads.gates import from_values
from headjax.models.model import Model
from headjax.models.summary import summarize
from headjax.quickstart.study import Study, Variant
from headjax.report import numbers
from headjax.report.curves import learning_curves, pruning_curves
from headjax.report.maps import head_map
from headjax.report.page import Picture, Section, write_page
from headjax.report.scatter import trade_off
from headjax.report.tables import Column, Table
from headjax.version import __version__

TITLES = {
    "standard": "standard (8 heads of 16)",
    "fixed": "fixed head size (8 heads of 32)",
    "collaborative": "collaborative (8 heads share 64)",
}


def cost_table(study: Study) -> Table:
    """Parameters, work, cache, speed and perplexity of every model of the study."""
    models = [
        (TITLES[name], name, result.model, result.metrics["perplexity"]) for name, result in study.trained.items()
    ]
    models += [(variant.name, variant.name, variant.model, variant.perplexity) for variant in variants(study)]
    length = study.data.train[0]["input_ids"].shape[0]
    rows = []
    for title, name, model, perplexity in models:
        summary = summarize(model.config, length)
        speed = study.timed_tokens / study.timings[name].median
        rows.append(
            (
                title,
                perplexity,
                summary.parameters,
                summary.heads,
                summary.flops / length,
                summary.cache_bytes_per_token,
                speed,
            )
        )
    return Table(
        columns=(
            Column("Model"),
            Column("Perplexity", numbers.significant, "lower"),
            Column("Parameters", numbers.count),
            Column("Heads", numbers.count),
            Column("Work/token", numbers.flops, "lower"),
            Column("Cache/token", numbers.size, "lower"),
            Column("Tokens/s", numbers.count, "higher"),
        ),
        rows=rows,
        notes=(
            f"Work: floating-point operations of one forward at length {length}, per token. Cache: float32.",
            f"Speed: median of {next(iter(study.timings.values())).repeats} forward passes of {study.timed_tokens} "
            f"tokens, the models taken in turns, on {device()}.",
            "Perplexity: per token of the held-out text; pruned and converted models are not trained further.",
        ),
    )


def write_report(study: Study, path: Path) -> Path:
    """Writes the study as one HTML page."""
    standard = study.trained["standard"]
    info = study.data.info
    summary = (
        f"Three decoder language models of {numbers.count(standard.model.num_parameters)} parameters each, with the "
        f"same number of heads, trained for {standard.steps:,} steps on {info['text']} "
        f"({numbers.size(info['train']['bytes'])}, {numbers.count(info['train']['tokens'])} tokens) and judged on "
        f"{numbers.count(info['validation']['tokens'])} held-out tokens. Then the standard model's heads are scored, "
        "removed, and made to share their projections."
    )
    facts = {
        f"perplexity, {name}": numbers.significant(run.metrics["perplexity"]) for name, run in study.trained.items()
    }
    facts["heads that can go within 5 % of the perplexity"] = numbers.percent(prunable(study, 1.05))
    sections = [_models(study), _learning(study), _importance(study), _pruning(study), _sharing(study)]
    footer = f"headjax {__version__}, jax {jax.__version__}, {device()}, {numbers.duration(study.seconds)} in all."
    return write_page(path, "How many heads does a small Transformer need?", summary, sections, footer, facts)


def variants(study: Study) -> list[Variant]:
    """The pruned and the converted models."""
    return [*study.pruned, *study.converted]


def prunable(study: Study, factor: float) -> float:
    """Largest measured share of the standard model's heads that can go at most `factor` times the perplexity."""
    points = study.pruning["standard"]["least important first"]
    limit = points[0][1] * factor
    kept = 0.0
    for fraction, perplexity in points:
        if perplexity > limit:
            break
        kept = fraction
    return kept


def device() -> str:
    """What the models ran on."""
    kind = jax.devices()[0].device_kind
    return f"{platform.machine()} CPU" if kind == "cpu" else kind


def _models(study: Study) -> Section:
    text = (
        "Removing a head makes the model smaller for real: its slices of every projection are gone. Converting keeps "
        "all heads but changes what they share. Both give ordinary models: train, save and load them as any other."
    )
    return Section("Models", text, (), cost_table(study))


def _learning(study: Study) -> Section:
    validation = {TITLES[name]: _curve(records, "validation/loss") for name, records in study.curves.items()}
    train = {TITLES[name]: _curve(records, "train/loss") for name, records in study.curves.items()}
    caption = (
        "Mean loss on the held-out text and on training batches. The fixed-head-size and the collaborative model spend "
        "their parameters differently; all three have equally many."
    )
    return Section("Learning", "", (Picture(learning_curves(validation, train), caption),))


def _importance(study: Study) -> Section:
    figures = []
    for name, scores in study.scores.items():
        model = study.trained[name].model
        values = head_values(model, scores.score("importance"))
        plot = head_map(values, title=f"Head importance: {name}", unit="Importance (nats per block)")
        caption = (
            f"Mean over {scores.examples} training blocks of |dL/dξ|, the change of a block's loss per unit of the "
            "head's gate."
        )
        figures.append(Picture(plot, caption))
    text = (
        "Importance as defined by Michel et al. (2019): how strongly the loss of each example reacts to the gate ξ of "
        "each head, the absolute value taken per example. One backward pass gives all heads."
    )
    return Section("Which heads matter", text, tuple(figures))


def _pruning(study: Study) -> Section:
    curves: dict[str, Any] = {}
    for name, orders in study.pruning.items():
        for label, points in orders.items():
            curves[f"{name}, {label}"] = points
    baseline = study.trained["standard"].metrics["perplexity"]
    plot = pruning_curves(curves, baseline=baseline, scale="log", title="Perplexity against heads removed")
    caption = (
        "Heads gated off without any training afterwards. The band spans three random orders. At 100 % every attention "
        "layer is reduced to its output bias."
    )
    table = Table(
        (
            Column("Removed for real"),
            Column("Parameters", numbers.count),
            Column("Perplexity", numbers.significant),
            Column("|loss - loss with gates at 0|", numbers.significant),
        ),
        [
            (v.name, v.model.num_parameters, v.perplexity, abs(v.details["loss"] - v.details["masked_loss"]))
            for v in study.pruned
        ],
        notes=("Losses in nats per token. Gating a head off and removing it are the same function.",),
    )
    return Section("Removing heads", "", (Picture(plot, caption),), table)


def _sharing(study: Study) -> Section:
    points = {"standard": [_point(study.trained["standard"].model, study.trained["standard"].metrics["perplexity"])]}
    for variant in study.converted:
        family = f"converted to {variant.details['to'].partition(':')[0]}"
        points.setdefault(family, []).append(_point(variant.model, variant.perplexity))
    points["pruned"] = [_point(v.model, v.perplexity) for v in study.pruned if v.details["fraction"] < 1.0]
    plot = trade_off(points, title="Perplexity against parameters, without training", scale="log")
    caption = "The trained standard model and what was made of it. Lower and further left is better."
    rows = [
        (v.details["to"], float(np.mean([e["relative_error"] for e in v.details["error_per_layer"]])), v.perplexity)
        for v in study.converted
    ]
    table = Table(
        (
            Column("Converted to"),
            Column("Relative error, mean over layers", numbers.significant),
            Column("Perplexity", numbers.significant),
        ),
        rows,
        notes=("Relative error: of what the conversion approximates, Frobenius norm; 0 where it is exact.",),
    )
    return Section("Sharing between heads", "", (Picture(plot, caption),), table)


def _point(model: Model, perplexity: float) -> tuple[float, float]:
    return float(model.num_parameters), perplexity


def head_values(model: Model, values: Mapping[Any, float]) -> dict[str, Any]:
    """Head scores as `[layers, heads]` arrays by head stack, NaN where a head does not exist."""
    return {stack: np.asarray(array) for stack, array in from_values(model.config, values, fill=float("nan")).items()}


def _curve(records: Any, name: str) -> list[tuple[float, float]]:
    return [(record["step"], record[name]) for record in records if name in record]
