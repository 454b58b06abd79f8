"""From what an encoder made of a batch to the model's output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headjax.core.tensors import Params
from headjax.models.base import Options, Output, by_head_stack
from headjax.models.dropout import fold
from headjax.models.tasks.base import Features, TaskOutput


def answer(
    task: TaskOutput, params: Params, features: Features, reports: Sequence[Mapping[str, Any]], options: Options
) -> Output:
    """The output of an encoder with a task.

    Args:
        task: makes logits.
        params: its parameters.
        features: what it reads.
        reports: per layer of the encoder what the probe made of it.
        options: of the forward.
    """
    logits = task(params, features, fold(options.key, 3))
    return Output(
        hidden=features.hidden,
        logits=logits.logits,
        pooled=features.pooled,
        probes=None if options.probe is None else by_head_stack("encoder", reports),
        extra_logits=logits.extra,
    )
