"""Removing heads for real: at once, or step by step with training in between."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from headjax.attention import Collaborative, Tucker
from headjax.attention.formulation import Attention
from headjax.core import history
from headjax.core.errors import HeadjaxError
from headjax.core.tensors import Params
from headjax.heads.head_id import HeadId, position, tied_heads
from headjax.heads.ordering import Order
from headjax.heads.surgery import map_attention
from headjax.models.model import Model

PERCENTAGES = tuple(range(5, 101, 5))
"""5, 10, ..., 100, the steps of Michel et al.'s BERT experiments."""


def percent_steps(total: int, percentages: Iterable[int] = PERCENTAGES) -> list[int]:
    """floor(total * p / 100) for each p: 7, 14, 21, 28, 36, ..., 144 of 144 (Michel et al.'s code for BERT)."""
    return [total * percentage // 100 for percentage in percentages]


def fraction_steps(total: int, fractions: Sequence[float]) -> list[int]:
    """The number of heads nearest to each fraction of them."""
    return [round(total * fraction) for fraction in fractions]


def prune(model: Model, heads: Iterable[HeadId | str]) -> Model:
    """The model without these heads.

    Their slices of every tensor with a head axis (W_Q, W_K, W_V, their biases, the rows of W_O, ...) are gone; output
    biases stay, and a layer that loses its last head becomes `NoHeads`. Shared query and key dimensions (collaborative,
    Tucker) that no other head reads go with them. The result computes what the model computes with these heads' gates
    at 0, up to the rounding of a shorter sum. Kept heads keep their original numbers, also when pruning is repeated.
    The removal is added to the history. In layers that share their parameters (ALBERT) a head is one head at every
    depth, so that naming it at one of them removes it from all.

    Args:
        model: the model.
        heads: the heads to remove, as `HeadId`s or as text such as `encoder/3/7`.

    Raises:
        HeadjaxError: a head does not exist (any more); the message names it. Nothing is removed then.
    """
    removed = {HeadId.parse(head) if isinstance(head, str) else head for head in heads}
    for head in removed:
        position(model.config, head)
    removed = {tied for head in removed for tied in tied_heads(model.config, head)}
    if not removed:
        return model
    width = model.config.width

    def keep(stack: str, layer: int, attention: Attention, params: Params) -> tuple[Attention, Params]:
        kept = [p for p, head in enumerate(attention.ids) if HeadId(stack, layer, head) not in removed]
        if len(kept) == attention.num_heads:
            return attention, params
        return drop_unused(*attention.keep_heads(params, kept, width, width))

    pruned = map_attention(model, keep, stacks={head.stack for head in removed})
    entry = history.entry("prune", removed=[str(head) for head in sorted(removed)])
    return pruned.replace(history=(*model.history, entry))


class Gradual(NamedTuple):
    """A model pruned step by step.

    Attributes:
        model: what is left.
        removed: the heads that went, in the order in which they did.
    """

    model: Model
    removed: Order


def prune_gradually(
    model: Model, counts: Sequence[int], order_of: Callable[[Model, int], Order], tune: Callable[[Model], Model]
) -> Gradual:
    """Removes heads for real, tunes what is left, orders the remaining heads anew, and so on.

    Args:
        model: the whole model.
        counts: numbers of heads that are gone after each step (`headjax.heads.pruning`), rising.
        order_of: from a model and how many heads go next to those that may go, in the order of their removal.
        tune: trains a pruned model (`headjax.training.distillation`).

    Raises:
        HeadjaxError: counts that do not rise, or fewer heads may go than asked for.
    """
    if sorted(counts) != list(counts):
        raise HeadjaxError(f"counts: must rise, got {list(counts)}")
    removed: Order = ()
    for count in counts:
        wanted = count - len(removed)
        if not wanted:
            continue
        step = order_of(model, wanted)[:wanted]
        if len(step) < wanted:
            raise HeadjaxError(f"remove: {count} heads, only {len(removed) + len(step)} may be removed")
        model, removed = tune(prune(model, step)), removed + step
    return Gradual(model, removed)


def drop_unused(attention: Attention, params: Params) -> tuple[Attention, Params]:
    """The layer without the shared dimensions whose mixing weights are 0 for every head; the same function.

    A converted layer at full rank gives every head dimensions of its own, which are unused as soon as the head is
    gone. Formulations that share no dimensions come back as they are.

    Args:
        attention: the formulation.
        params: its parameters.
    """
    smaller: Attention
    if isinstance(attention, Collaborative):
        queries = keys = _used(params, (0,))
        smaller = dataclasses.replace(attention, shared_dim=len(keys))
        mixing = params["mixing"][:, keys]
    elif isinstance(attention, Tucker):
        queries, keys = _used(params, (0, 2)), _used(params, (0, 1))
        smaller = dataclasses.replace(attention, query_rank=len(queries), key_rank=len(keys))
        mixing = params["mixing"][:, queries][:, :, keys]
    else:
        return attention, params
    kept = {
        name: jnp.take(params[name], index, axis=-1)
        for name, index in (("query", queries), ("query_bias", queries), ("key", keys), ("key_bias", keys))
        if name in params
    }
    return smaller, params | kept | {"mixing": mixing}


def _used(params: Params, others: tuple[int, ...]) -> np.ndarray:
    """The dimensions with a weight other than 0, or the first one if there is none: a layer needs at least one."""
    used = np.flatnonzero(np.any(np.asarray(params["mixing"]) != 0.0, axis=others))
    return used if len(used) else np.array([0])
