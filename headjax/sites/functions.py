"""The public functions over heads: one name for headjax's own models and for any other Flax model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, overload

from flax import nnx

from headjax.core.errors import HeadjaxError
from headjax.core.progress import Update
from headjax.heads import groups, named_orders, pruning
from headjax.heads.head_id import HeadId
from headjax.heads.named_orders import LEARNED, OrderConfig
from headjax.heads.ordering import Order, by_ablation, by_score, random_order
from headjax.heads.scores import GRADIENT_SCORES
from headjax.mesh.explicit import on_automatic_axes
from headjax.models.model import Model
from headjax.sites.ablation import ablate
from headjax.sites.discovery import find_sites
from headjax.sites.learning import learn_gates
from headjax.sites.program import Applied, Loss, sites_of
from headjax.sites.pruning import part, prune_module
from headjax.sites.scoring import score_heads
from headjax.sites.site import find_heads

OWN_LOSS = "a headjax model brings its own; this argument is for other models"
FOR_OWN = "for headjax models alone"


def _refuse(why: str, **given: bool) -> None:
    """Raise `HeadjaxError` for an argument that the given kind of model cannot use."""
    for name, there in given.items():
        if there:
            raise HeadjaxError(f"{name}: {why}")


F = TypeVar("F", bound=Callable[..., Any])


def order_heads(
    model: Model | nnx.Module | Applied,
    batches: Sequence[Any],
    by: str | OrderConfig = "importance_layer",
    *,
    count: int = 0,
    loss: Loss | None = None,
    strict: bool = False,
    progress: Update | None = None,
) -> Order:
    """Return all heads in the order of their removal, the most dispensable first.

        >>> model = headjax.demo_model()
        >>> batches = [headjax.text_batch(model.tokenizer, ["for name in names:", "while not found:"])]
        >>> order = headjax.order_heads(model, batches, "importance_layer")
        >>> len(order), str(order[0])
        (32, 'decoder/1/6')

    Args:
        model, batches, loss, strict: As for `score_heads`.
        by: Name of an order (`headjax.heads.named_orders.ORDERS`): a score, `ablation`, `hard_concrete`, `subset`, ...
        count: Number of heads to remove, for the orders that choose them together (`subset`).
        progress: Called with the number of batches or steps done.

    Raises:
        DataError: There are no batches.
        HeadjaxError: There is no such order, the model has none by this name, or as for `score_heads`.
    """
    config = OrderConfig(by=by) if isinstance(by, str) else by
    if isinstance(model, Model):
        _refuse(OWN_LOSS, loss=loss is not None)
        return on_automatic_axes(named_orders.order_heads)(model, batches, config, progress=progress)(count)
    _refuse(FOR_OWN, stacks=bool(config.stacks), whole_groups=config.whole_groups)
    _require_order(config.by, GRADIENT_SCORES)
    if config.by == "random":
        return random_order(tuple(find_heads(sites_of(model))), config.seed)
    if config.by == "ablation":
        return by_ablation(ablate(model, batches, "each", loss=loss, strict=strict, progress=progress))
    if config.by in LEARNED:
        return _by_learned_gates(model, batches, config, count, loss, strict, progress)
    found = score_heads(model, batches, loss=loss, strict=strict, progress=progress)
    _require_order(config.by, found.values)
    return by_score(found.score(config.by))


def _require_order(by: str, scores: Iterable[str]) -> None:
    """Raise `HeadjaxError` for an order that a model with these scores does not have."""
    known = [*scores, "ablation", *LEARNED, "random"]
    if by not in known:
        raise HeadjaxError(f"by: {by}: not of such a model, which has {', '.join(known)}")


def _by_learned_gates(
    model: Any,
    batches: Sequence[Any],
    config: OrderConfig,
    count: int,
    loss: Loss | None,
    strict: bool,
    progress: Update | None,
) -> Order:
    heads = len(find_heads(sites_of(model)))
    distribution = LEARNED[config.by](config, max(heads - count, 1))
    options: dict[str, Any] = {"steps": config.gate_steps, "learning_rate": config.gate_rate, "seed": config.seed}
    options |= {"loss": loss, "strict": strict, "progress": progress}
    return by_score(learn_gates(model, batches, distribution, **options).logits)


@overload
def prune(model: Model, heads: Iterable[HeadId | str], *, share: float | None = None) -> Model: ...
@overload
def prune(model: nnx.Module, heads: Iterable[HeadId | str], *, share: float | None = None) -> nnx.Module: ...
def prune(model: Model | nnx.Module, heads: Iterable[HeadId | str], *, share: float | None = None) -> Any:
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
    gone = heads if share is None else part_of(model, heads, share)
    return on_automatic_axes(pruning.prune)(model, gone) if isinstance(model, Model) else prune_module(model, gone)


def part_of(model: Model | nnx.Module, order: Iterable[HeadId | str], share: float) -> Order:
    """Return the heads of an order that make up a share of all, in numbers that the model can hold."""
    if isinstance(model, Model):
        return groups.part(model.config, order, share)
    return part(find_sites(model), order, share)
