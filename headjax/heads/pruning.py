"""Remove heads and their parameters from any model: named ones, or a share of all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.heads import module_pruning, ordering
from headjax.heads.discovery import find_sites
from headjax.heads.head_id import HeadId, named_heads, tied_heads
from headjax.heads.ordering import Order
from headjax.heads.surgery import LayerModule, map_attention, regroups
from headjax.mesh.mesh import on_automatic_axes
from headjax.models.model import Model, history_entry
from headjax.nn import CollaborativeAttention
from headjax.nn.module import AttentionModule

M = TypeVar("M", bound=nnx.Module)

PERCENTAGES = tuple(range(5, 101, 5))
"""5, 10, ..., 100: the steps of Michel et al.'s BERT experiments."""


def percent_steps(total: int, percentages: Iterable[int] = PERCENTAGES) -> list[int]:
    """Return floor(total * p / 100) for each p: 7, 14, 21, 28, 36, ..., 144 of 144 (Michel et al.'s code for BERT)."""
    return [total * percentage // 100 for percentage in percentages]


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
    chosen = heads if share is None else part_of(model, heads, share)
    remove: Any = on_automatic_axes(_prune) if regroups(model) else module_pruning.prune_module
    pruned: M = remove(model, chosen)
    return pruned


def part_of(model: Any, order: Iterable[HeadId | str], share: float) -> Order:
    """Return the heads of an order that make up a share of all, in numbers that the model can hold."""
    if regroups(model):
        return ordering.part(find_sites(model), order, share)
    return module_pruning.part(model, order, share)


def _prune(model: Model, heads: Iterable[HeadId | str]) -> Model:
    """Return a headjax model without heads; a layer that loses its last one becomes `NoHeadsAttention`."""
    removed = {tied for head in named_heads(heads) for tied in tied_heads(model.config, head)}
    if not removed:
        return model

    def keep(found: LayerModule) -> AttentionModule:
        module: AttentionModule = found.module
        kept = [place for place, head in enumerate(module.ids) if HeadId(found.stack, found.layer, head) not in removed]
        return module if len(kept) == len(module.ids) else _drop_unused(module.keep_heads(kept))

    pruned = map_attention(model, keep, {head.stack for head in removed})
    entry = history_entry("prune", removed=[str(head) for head in sorted(removed)])
    return pruned.replace(history=(*model.history, entry))


def _drop_unused(module: AttentionModule) -> AttentionModule:
    """Return a layer without the shared dimensions (collaborative) whose mixing weights are 0 for every head."""
    params = module.params
    if not isinstance(module, CollaborativeAttention) or isinstance(params["mixing"], jax.core.Tracer):
        return module  # of shapes alone nothing is known to be unused
    used = np.flatnonzero(np.any(np.asarray(params["mixing"]) != 0.0, axis=0))
    used = used if len(used) else np.array([0])  # a layer needs one dimension
    names = {"query", "query_bias", "key", "key_bias", "mixing"} & params.keys()
    kept = {name: jnp.take(params[name], used, axis=-1) for name in names}
    return module.like(module.kind.replace(shared_dim=len(used)), params | kept)
