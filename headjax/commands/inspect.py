"""`headjax inspect`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from headjax.commands.options import MODEL, ConfigOptions, argument, option
from headjax.commands.outputs import ABSENT, CommandResult, key, record, summary, table_of
from headjax.core import numbers
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Size
from headjax.core.progress import Progress
from headjax.models.summary import LayerSummary, ModelSummary, summarize
from headjax.report.tables import Column, Table

SHARES = (0.9, 0.95, 0.99)
"""Shares of the variance that ranks are given for."""

PARTS = {"query": "W_Q", "key": "W_K", "product": "W_Q W_K^T", "product_by_head": "one head's product"}
"""Decomposed matrices, and their names in the table."""


class Options(ConfigOptions):
    model: str = argument("MODEL", MODEL, "", reads="model")
    config: str = option("", "config file, instead of a model directory", "FILE[:ARGS]", reads="config")
    length: Size = option(128, "number of tokens that FLOPs are given for")
    captured_variance: bool = option(
        False, "also read the weights: the rank that captures 90, 95 and 99 % of queries, keys and their products"
    )


class Result(CommandResult):
    model: ModelSummary = record("headjax.models.summary.ModelSummary")
    captured_variance: Mapping[str, Any] = key(
        "with `--captured-variance`: ranks by layer, by `query`, `key`, `product` (of all heads together) and "
        "`product_by_head` (mean of single heads), and by share of the squared norm",
        ABSENT,
    )

    def tables(self) -> Sequence[Table]:
        model = self.model
        rows = {
            "parameters": f"{model.parameters:,}",
            "heads": f"{model.heads:,}",
            "FLOPs of an example": numbers.flops(model.flops),
            "cache per token": numbers.size(model.cache_bytes_per_token),
            "tokens of an example": numbers.count(model.length),
        }
        tables = [summary("Model", rows), _layers(model.layers)]
        if self.captured_variance is ABSENT:
            return tables
        shares = [f"{share:.0%}" for share in SHARES]
        columns = [Column("Layer")]
        columns += [Column(f"{name} {share}", numbers.significant) for name in PARTS.values() for share in shares]
        ranks = [
            (layer, *(of_part[part][share] for part in PARTS for share in shares))
            for layer, of_part in self.captured_variance.items()
        ]
        note = "Ranks that capture so much of the squared norm, of all heads together and of single heads (mean)."
        return [*tables, Table(columns, ranks, notes=(note,))]


def run(options: Options, progress: Progress) -> Result:
    """Counts parameters, heads, FLOPs and cache from the config; captured variance from the weights."""
    if bool(options.model) == bool(options.config):
        raise HeadjaxError("inspect: give a model directory or --config, one of them")
    if options.captured_variance and not options.model:
        raise HeadjaxError("--captured-variance: needs a model directory")

    from headjax.hub.either import read_config, read_model
    from headjax.initialization import ModelSource
    from headjax.training.config_file import load_config

    if options.model:
        config = read_config(options.model)
    else:
        config = ModelSource.of(load_config(options.config, options.overrides).to_dict()).architecture()
    ranks: Any = ABSENT
    if options.captured_variance:
        from headjax.conversion.target import captured_variance, rank_for

        ranks = {
            f"{stack}/{layer}": {
                part: {f"{share:.0%}": float(rank_for(getattr(curves, part), share).mean()) for share in SHARES}
                for part in PARTS
            }
            for (stack, layer), curves in captured_variance(read_model(options.model)).items()
        }
    return Result(model=summarize(config, options.length), captured_variance=ranks)


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

    def alike(layer: LayerSummary) -> LayerSummary:
        """Return what layers that share a row have in common."""
        heads = layer.heads if len(layer.heads) != 1 else ()
        return layer._replace(layer=0, heads=heads, tied_layers=layer.tied_layers if len(layer.tied_layers) > 1 else ())

    rows = []
    for group in (list(group) for _, group in itertools.groupby(layers, key=alike)):
        first, heads = group[0], sorted({head for layer in group for head in layer.heads})
        of_each = "one each of " if len(heads) > len(first.heads) else ""  # where each layer has but one head
        row = {
            "place": f"{first.stack}/{number_list([layer.layer for layer in group])}",
            "heads": f"{of_each}{number_list(heads)}",
            "sizes": ", ".join(f"{name} {size}" for name, size in sorted(first.sizes.items())),
        }
        rows.append(first._asdict() | row)
    return table_of(columns, rows, notes=("Figures per attention layer; heads keep their original indices.",))


def number_list(indices: Sequence[int]) -> str:
    """Indices as ranges: `0-3, 7`; `none` for none."""
    runs = itertools.groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0])
    listed = [[number for _, number in run] for _, run in runs]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in listed) or "none"
