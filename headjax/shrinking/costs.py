"""Costs of every sub-layer, counted from architectures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headjax.core.modules import declared
from headjax.core.tensors import count
from headjax.models.config import ModelConfig
from headjax.models.summary import summarize
from headjax.models.walk import FEED_FORWARD


class Costs(NamedTuple):
    """Costs of a model."""

    by_place: Mapping[str, Mapping[str, float]]
    rest: Mapping[str, float]


def costs_of(config: ModelConfig, length: int) -> Costs:
    """Return the costs of a model, for examples of this length."""
    summary = summarize(config, length)
    by_place = {
        f"{layer.stack}/{layer.layer}": {
            "parameters": float(layer.parameters),
            "flops": float(layer.flops),
            "cache": float(layer.cache_bytes_per_token * (layer.stack == "decoder")),
        }
        for layer in summary.layers
    }
    for stack, own in config.stacks().items():
        tokens = config.attention_lengths(stack, length)[0]
        for number, layer in enumerate(own.layers):
            by_place[f"{stack}/{number}/{FEED_FORWARD}"] = {
                "parameters": float(count(declared(layer.make_feed_forward()))),
                "flops": float(layer.feed_forward_flops(tokens)),
                "cache": 0.0,
            }
    flops = float(summary.flops) - sum(one["flops"] for one in by_place.values())
    return Costs(by_place, {"parameters": 0.0, "flops": flops, "cache": 0.0, "latency": 0.0})
