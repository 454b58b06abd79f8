"""The removal of heads from any model: named ones, or a share of all."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, TypeVar

from flax import nnx

from headjax.heads import groups, pruning
from headjax.heads.discovery import find_sites
from headjax.heads.head_id import HeadId
from headjax.heads.module_pruning import part, prune_module
from headjax.heads.ordering import Order
from headjax.mesh.explicit import on_automatic_axes
from headjax.models.model import Model

M = TypeVar("M", bound=nnx.Module)


def prune(model: M, heads: Iterable[HeadId | str], *, share: float | None = None) -> M:
    """Return the model without these heads, or without the first heads of an order until a share of all is gone.

    Their slices of every parameter with a head axis (W_Q, W_K, W_V, their biases, the rows of W_O, ...) are removed;
    output biases stay. The result equals the model with these heads' gates at 0, up to the rounding of a shorter sum.
    The model handed in stays as it is.

    Kept heads keep their original numbers. In a headjax model a layer may lose its last head, and the removal is added
    to the history. Layers that share their parameters (ALBERT) lose a head at every depth.

    Any other `nnx.Module` becomes a model of the same class, whose static sizes (`num_heads`, `num_kv_heads`, `n_rep`,
    shapes of projections, configs) are in step with the smaller arrays. Layers may differ in their numbers of heads
    where they are separate modules. A KV head goes with the last query head that reads it; the others must serve equal
    numbers of query heads, because such code reshapes by heads // kv_heads.

    With `share`, query heads that read one KV head go together, by the mean of their places in the order, as many such
    groups as fit. Where the code of a Flax model needs equal groups, the rest of the share goes as one head of every
    group of a layer; layers along one axis lose equal numbers, and every layer keeps a head. A warning says why fewer
    heads go than the share asks for.

        >>> print(headjax.prune(headjax.demo_model(), ["decoder/0/0", "decoder/3/4"]))
        Model: decoder, width 128, output tied
          heads: decoder 30 in 4 layers
          parameters: 1,071,776 (float32)
          tokenizer: yes; history: import, prune

    Args:
        model: Model to prune.
        heads: Heads to remove, as `HeadId`s or as text: `encoder/3/7`, or `layers.3.attn/7` of a Flax model. With
            `share`, all heads in the order of their removal (`order_heads`).
        share: Share of all heads to remove, from 0 to 1; None removes exactly `heads`.

    Raises:
        HeadjaxError: A head does not exist (any more), or the model's code cannot hold what would be left; the message
            names the head or the layer. Nothing is removed then.
    """
    pruned: M = without_heads(model, heads if share is None else part_of(model, heads, share))
    return pruned


@functools.singledispatch
def without_heads(model: Any, heads: Iterable[HeadId | str]) -> Any:
    """Return a model without heads: of the same class with smaller arrays, or of another config."""
    return prune_module(model, heads)


@without_heads.register
def _(model: Model, heads: Iterable[HeadId | str]) -> Model:
    return on_automatic_axes(pruning.prune)(model, heads)


@functools.singledispatch
def part_of(model: Any, order: Iterable[HeadId | str], share: float) -> Order:
    """Return the heads of an order that make up a share of all, in numbers that the model can hold."""
    return part(find_sites(model), order, share)


@part_of.register
def _(model: Model, order: Iterable[HeadId | str], share: float) -> Order:
    return groups.part(model.config, order, share)
