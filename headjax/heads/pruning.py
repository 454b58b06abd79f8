"""Remove heads and their parameters: at once, or step by step with training in between."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core import history
from headjax.heads.head_id import HeadId, position, tied_heads
from headjax.heads.surgery import LayerModule, kept_heads, map_attention
from headjax.models.model import Model
from headjax.nn import CollaborativeAttention
from headjax.nn.module import AttentionModule

PERCENTAGES = tuple(range(5, 101, 5))
"""5, 10, ..., 100: the steps of Michel et al.'s BERT experiments."""


def percent_steps(total: int, percentages: Iterable[int] = PERCENTAGES) -> list[int]:
    """Return floor(total * p / 100) for each p: 7, 14, 21, 28, 36, ..., 144 of 144 (Michel et al.'s code for BERT)."""
    return [total * percentage // 100 for percentage in percentages]


def prune(model: Model, heads: Iterable[HeadId | str]) -> Model:
    """Return the model without these heads.

    See `headjax.heads.removal.prune`. A layer that loses its last head becomes `NoHeadsAttention`, and shared query and
    key dimensions (collaborative) that no other head reads are removed too.
    """
    removed = {HeadId.parse(head) if isinstance(head, str) else head for head in heads}
    for head in removed:
        position(model.config, head)
    removed = {tied for head in removed for tied in tied_heads(model.config, head)}
    if not removed:
        return model
    left = kept_heads(model.config, removed)

    def keep(found: LayerModule) -> AttentionModule:
        kept = left.get((found.stack, found.layer))
        module: AttentionModule = found.module
        return module if kept is None else drop_unused(module.keep_heads(kept))

    pruned = map_attention(model, keep, {head.stack for head in removed})
    entry = history.entry("prune", removed=[str(head) for head in sorted(removed)])
    return pruned.replace(history=(*model.history, entry))


def drop_unused(module: AttentionModule) -> AttentionModule:
    """Return a layer of the same function without the shared dimensions whose mixing weights are 0 for every head.

    A converted layer at full rank gives every head separate dimensions, which are unused once the head is removed.
    Formulations that share no dimensions are returned unchanged.
    """
    params = module.params
    if not isinstance(module, CollaborativeAttention) or isinstance(params["mixing"], jax.core.Tracer):
        return module  # of shapes alone nothing is known to be unused
    used = np.flatnonzero(np.any(np.asarray(params["mixing"]) != 0.0, axis=0))
    used = used if len(used) else np.array([0])  # a layer needs one dimension
    names = {"query", "query_bias", "key", "key_bias", "mixing"} & params.keys()
    kept = {name: jnp.take(params[name], used, axis=-1) for name in names}
    return module.like(module.kind.replace(shared_dim=len(used)), params | kept)
