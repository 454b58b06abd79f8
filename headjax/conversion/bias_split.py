"""Attention by context alone or by content alone: the split of logits that the query bias makes."""

from __future__ import annotations

from collections.abc import Collection

import jax.numpy as jnp

from headjax.attention import Attention, Grouped, MultiHead, NoHeads
from headjax.core import history
from headjax.core.errors import ConfigError
from headjax.core.tensors import Params
from headjax.heads.surgery import map_attention
from headjax.models.base import Model


def context_only(model: Model, stacks: Collection[str] | None = None, layers: Collection[int] | None = None) -> Model:
    """The model whose logits depend on query and key together: x W_Q^h W_K^hT y^T, with b_Q = b_K = 0.

    Cordonnier et al. (2020, section 3.3) split logits into this context term and the content term of `content_only`;
    what else biases add is the same for all keys.

    Args:
        model: the model.
        stacks: head stacks to change; None changes all.
        layers: layers to change; None changes all.

    Raises:
        ConfigError: a chosen layer has no biases of queries and keys.
    """
    return _zeroed(model, "context_only", ("query_bias", "key_bias"), stacks, layers)


def content_only(model: Model, stacks: Collection[str] | None = None, layers: Collection[int] | None = None) -> Model:
    """The model whose logits depend on the key alone: b_Q^h W_K^hT y^T, with W_Q = 0 and b_K = 0.

    Every query of a sequence then attends alike. Arguments and errors as for `context_only`.
    """
    return _zeroed(model, "content_only", ("query", "key_bias"), stacks, layers)


def _zeroed(
    model: Model,
    action: str,
    names: tuple[str, ...],
    stacks: Collection[str] | None,
    layers: Collection[int] | None,
) -> Model:
    def zero(stack: str, layer: int, attention: Attention, params: Params) -> tuple[Attention, Params]:
        if isinstance(attention, NoHeads):
            return attention, params
        if not isinstance(attention, MultiHead | Grouped) or not attention.projection_bias:
            raise ConfigError(f"{stack}/{layer}: attention: the split needs per-head queries and keys with biases")
        return attention, params | {name: jnp.zeros_like(params[name]) for name in names}

    changed = map_attention(model, zero, stacks, layers)
    return changed.replace(history=(*model.history, history.entry(action)))
