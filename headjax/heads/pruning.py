"""Removing heads for real: smaller arrays, same function as with their gates at 0."""

from __future__ import annotations

from collections.abc import Iterable

from headjax.attention.formulation import Attention
from headjax.core import history
from headjax.core.tensors import Params
from headjax.heads.head_id import HeadId, position, tied_heads
from headjax.heads.shared_dimensions import drop_unused
from headjax.heads.surgery import map_attention
from headjax.models.model import Model


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
