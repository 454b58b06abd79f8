"""Rotary positions as Hugging Face configs say them, in the fields of transformers 5 and of transformers 4."""

from __future__ import annotations

from typing import Any

from headjax.attention.rotary import FrequencyScaling, LinearScaling, Llama3Scaling, Rotary, RotaryHalves
from headjax.hub.family import InexpressibleError
from headjax.hub.fields import Fields


def read_rotary(fields: Fields) -> RotaryHalves:
    """The rotary positions: `rope_parameters`, or `rope_theta` and `rope_scaling` of transformers 4.

    Raises:
        ConfigError: a kind of scaling that is not supported.
    """
    parameters = dict(fields.group("rope_parameters") or fields.group("rope_scaling"))
    parameters.setdefault("rope_theta", fields.number("rope_theta", 10000.0))
    rope = Fields(parameters, f"{fields.file}: rope_parameters")
    rope.only("partial_rotary_factor", [1.0], 1.0)
    return RotaryHalves(base=rope.number("rope_theta"), scaling=_read_scaling(rope))


def _read_scaling(rope: Fields) -> FrequencyScaling | None:
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(rope.number("factor"))
    if kind == "llama3":
        return Llama3Scaling(
            factor=rope.number("factor"),
            low_frequency=rope.number("low_freq_factor"),
            high_frequency=rope.number("high_freq_factor"),
            original_length=rope.size("original_max_position_embeddings"),
        )
    raise rope.error("rope_type", f"{kind!r} is not supported; supported: default, linear, llama3")


def write_rotary(rotary: Rotary) -> dict[str, Any]:
    """The fields of rotary positions, for both generations of transformers.

    Raises:
        InexpressibleError: a scaling that they cannot say.
    """
    scaling: dict[str, Any] | None = None
    if isinstance(rotary.scaling, LinearScaling):
        scaling = {"rope_type": "linear", "factor": rotary.scaling.factor}
    elif isinstance(rotary.scaling, Llama3Scaling):
        scaling = {
            "rope_type": "llama3",
            "factor": rotary.scaling.factor,
            "low_freq_factor": rotary.scaling.low_frequency,
            "high_freq_factor": rotary.scaling.high_frequency,
            "original_max_position_embeddings": rotary.scaling.original_length,
        }
    elif rotary.scaling is not None:
        raise InexpressibleError(f"rotary.scaling: {type(rotary.scaling).__name__} has no name in a config.json")
    return {
        "rope_theta": rotary.base,
        "rope_scaling": scaling,
        "rope_parameters": {"rope_theta": rotary.base, **(scaling or {"rope_type": "default"})},
    }
