"""`headjax inspect`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from headjax.commands.options import MODEL, ConfigOptions, argument, option
from headjax.commands.outputs import ABSENT, CommandResult, key, record, table_of
from headjax.core import numbers
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Size
from headjax.core.progress import Progress
from headjax.models.summary import LayerSummary, ModelSummary, summarize
from headjax.report.tables import Column, Table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ConfigOptions):
    """Options of `headjax inspect`."""

    model: str = argument("MODEL", MODEL, "", reads="model")
    config: str = option("", "config file, instead of a model directory", "FILE[:ARGS]", reads="config")
    length: Size = option(128, "number of tokens that FLOPs are given for")
    captured_variance: bool = option(
        False, "also read the weights: the rank that captures 90, 95 and 99 % of queries, keys and their products"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result(CommandResult):
    """Sizes and costs of a model."""

    title = "Model"

    model: ModelSummary = record("headjax.models.summary.ModelSummary")
    captured_variance: Mapping[str, Any] = key(
        "with `--captured-variance`: ranks by layer, by `query`, `key`, `product` (of all heads together) and "
        "`product_by_head` (mean of single heads), and by share of the squared norm",
        default=ABSENT,
    )

    def tables(self) -> Sequence[Table]:
        ranks = [] if self.captured_variance is ABSENT else [_rank_table(self.captured_variance)]
        model = self.model
        rows = [("parameters", f"{model.parameters:,}"), ("heads", f"{model.heads:,}")]
        rows += [("FLOPs of an example", numbers.flops(model.flops))]
        rows += [("cache per token", numbers.size(model.cache_bytes_per_token))]
        rows += [("tokens of an example", numbers.count(model.length))]
        return [self.summary(*rows), _layers(model.layers), *ranks]


def run(options: Options, progress: Progress) -> Result:
    """Counts parameters, heads, FLOPs and cache from the config; captured variance from the weights."""
    if bool(options.model) == bool(options.config):
        raise HeadjaxError("inspect: give a model directory or --config, one of them")
    if options.captured_variance and not options.model:
        raise HeadjaxError("--captured-variance: needs a model directory")

    from headjax.hub.either import read_config
    from headjax.initialization import ModelSource
    from headjax.training.config_file import load_config

    if options.model:
        config = read_config(options.model)
    else:
        config = ModelSource.of(load_config(options.config, options.overrides).to_dict()).architecture()
    ranks = _ranks(options.model) if options.captured_variance else ABSENT
    return Result(model=summarize(config, options.length), captured_variance=ranks)


SHARES = (0.9, 0.95, 0.99)
"""Shares of the variance that ranks are given for."""

PARTS = {"query": "W_Q", "key": "W_K", "product": "W_Q W_K^T", "product_by_head": "one head's product"}
"""Decomposed matrices, and their names in the table."""


def _ranks(model: str) -> dict[str, dict[str, dict[str, float]]]:
    """Return the ranks of every layer by part and share."""
    from headjax.conversion.target import captured_variance, rank_for
    from headjax.hub.either import read_model

    return {
        f"{stack}/{layer}": {
            part: {f"{share:.0%}": float(rank_for(getattr(curves, part), share).mean()) for share in SHARES}
            for part in PARTS
        }
        for (stack, layer), curves in captured_variance(read_model(model)).items()
    }


def _rank_table(ranks: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Table:
    shares = [f"{share:.0%}" for share in SHARES]
    columns = [Column("Layer")]
    columns += [Column(f"{name} {share}", numbers.significant) for name in PARTS.values() for share in shares]
    rows = [(layer, *(found[part][share] for part in PARTS for share in shares)) for layer, found in ranks.items()]
    note = "Ranks that capture so much of the squared norm, of all heads together and of single heads (mean)."
    return Table(columns, rows, notes=(note,))


def _layers(layers: Sequence[LayerSummary]) -> Table:
    columns = {
        "place": Column("Layers"),
        "kind": Column("Formulation"),
        "heads": Column("Heads"),
        "sizes": Column("Sizes"),
        "parameters": Column("Parameters", numbers.count),
        "flops": Column("FLOPs", numbers.flops),
        "cache_bytes_per_token": Column("Cache per token", numbers.size),
    }
    groups = [list(group) for _, group in itertools.groupby(layers, key=_alike)]
    rows = [
        {
            **group[0]._asdict(),
            "place": f"{group[0].stack}/{number_list([layer.layer for layer in group])}",
            "heads": _heads(group),
            "sizes": ", ".join(f"{name} {size}" for name, size in sorted(group[0].sizes.items())),
        }
        for group in groups
    ]
    return table_of(columns, rows, notes=("Figures per attention layer; heads keep their original indices.",))


def _alike(layer: LayerSummary) -> LayerSummary:
    """Return what layers that share a row have in common."""
    return layer._replace(
        layer=0,
        heads=layer.heads if len(layer.heads) != 1 else (),
        tied_layers=layer.tied_layers if len(layer.tied_layers) > 1 else (),
    )


def _heads(layers: Sequence[LayerSummary]) -> str:
    """Return the heads of layers that are alike; where each has but one, all of them."""
    heads = sorted({head for layer in layers for head in layer.heads})
    return f"one each of {number_list(heads)}" if len(heads) > len(layers[0].heads) else number_list(heads)


def number_list(indices: Sequence[int]) -> str:
    """Indices as ranges: `0-3, 7`; `none` for none."""
    if not indices:
        return "none"
    ranges: list[list[int]] = []
    for number in indices:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
