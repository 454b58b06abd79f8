"""Whether a model can be computed with the attention kernel asked for, checked before anything is."""

from __future__ import annotations

import math

from headjax.attention import Attention, explain
from headjax.attention.kernels import KERNELS
from headjax.core.errors import ConfigError, KernelError
from headjax.core.serialize import kind_of
from headjax.models.base import ModelConfig
from headjax.models.compute import Compute

SLOTS = ("attention", "cross_attention")


def check_kernels(model: ModelConfig, compute: Compute, *, training: bool) -> None:
    """Refuses a kernel asked for by name that some layer cannot use, whatever the machine and the lengths.

    Args:
        model: the architecture.
        compute: its `attention` names the kernel; `auto` fits every model.
        training: whether dropout is on.

    Raises:
        ConfigError: the message names the kernel, the layer and what does not fit.
    """
    if compute.attention == "auto":
        return
    for stack, layers in ((name, stack.layers) for name, stack in model.stacks().items()):
        for index, layer in enumerate(layers):
            for slot in SLOTS:
                attention = getattr(layer, slot)
                if attention is None:
                    continue
                refused = _refusal(attention, compute, layer.attention_dropout if training else 0.0)
                if refused is not None:
                    at = f"{stack}.layers[{index}].{slot} ({kind_of(attention)})"
                    raise ConfigError(f"compute.attention: {compute.attention} cannot compute {at}: {refused}")


def _refusal(attention: Attention, compute: Compute, dropout: float) -> str | None:
    can = KERNELS[compute.attention].can
    try:
        explain(
            attention,
            query_length=math.lcm(128, can.length_multiple),
            dtype=compute.dtype,
            dropout=dropout,
            implementation=compute.attention,
            platform=can.platforms[0],
        )
    except KernelError as error:
        return error.reason
    return None
