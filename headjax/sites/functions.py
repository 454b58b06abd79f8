"""The public functions over heads: one name for headjax's own models and for any other Flax model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, overload

from flax import nnx

from headjax.core.errors import HeadjaxError
from headjax.core.progress import Update
from headjax.heads import ablation, groups, learned_gates, named_orders, pruning, reconstruction, scores
from headjax.heads.ablation import DEFAULT_BUDGET, Ablation, Mode
from headjax.heads.head_id import HeadId
from headjax.heads.learned_gates import GateDistribution, LearnedGates
from headjax.heads.named_orders import LEARNED, OrderConfig
from headjax.heads.ordering import Order, by_ablation, by_score, random_order
from headjax.heads.reconstruction import Reconstruction
from headjax.heads.refit import RIDGES
from headjax.heads.scores import GRADIENT_SCORES, Scores
from headjax.heads.statistics import STATISTICS
from headjax.heads.units import Place
from headjax.mesh.explicit import on_automatic_axes
from headjax.models.compute import Compute
from headjax.models.model import Model
from headjax.sites.discovery import find_sites
from headjax.sites.program import Applied, Loss, sites_of
from headjax.sites.pruning import part, prune_module
from headjax.sites.reconstruction import ModuleReconstruction, reconstruct_module
from headjax.sites.scoring import score_module
from headjax.sites.site import find_heads
from headjax.sites.trials import ablate_module, learn_module_gates

OWN_LOSS = "a headjax model brings its own; this argument is for other models"
FOR_OWN = "for headjax models alone"


def _refuse(why: str, **given: bool) -> None:
    """Raise `HeadjaxError` for an argument that the given kind of model cannot use."""
    for name, there in given.items():
        if there:
            raise HeadjaxError(f"{name}: {why}")


F = TypeVar("F", bound=Callable[..., Any])


def score_heads(
    model: Model | nnx.Module | Applied,
    batches: Iterable[Any],
    *,
    loss: Loss | None = None,
    gates: Mapping[str, Any] | None = None,
    statistics: Sequence[str] | None = None,
    compute: Compute = Compute(attention="einsum"),
    strict: bool = False,
    progress: Update | None = None,
) -> Scores:
    """Score every head by `headjax.heads.scores.DESCRIPTIONS`, with one forward and backward pass per batch.

    A headjax model brings its loss, the sum of the targets' negative log-likelihoods, and has every score. For any
    other `nnx.Module` the loss is yours, and its structure allows the three forms of importance, and fisher; positions
    that cannot change the loss (padding) are not counted.
    It is scored in evaluation mode, and stays as it is. Its heads are named by path and number, `layers.3.attn/5`.

        >>> model = headjax.demo_model()
        >>> batches = [headjax.text_batch(model.tokenizer, ["for name in names:", "while not found:"])]
        >>> scores = headjax.score_heads(model, batches)
        >>> importance = scores.score("importance")
        >>> len(importance), str(min(importance, key=importance.get))
        (32, 'decoder/1/6')

    Args:
        model: Model to score. A function of a tree of arrays (Linen, Equinox) is `(apply, params, sites)`, with the
            path of W_O in the tree and the axis of its heads for each site, `{"layer_0": ("layer_0/out/kernel", 0)}`,
            and the number of heads where the axis holds `heads * head_dim` entries, `("attn/weight", 1, 12)`;
            loss gets `apply` with the tree filled in for its model. There dL/dxi_h = <dL/dW_O^h, W_O^h>, which takes
            memory for a gradient of W_O for every example of a batch.
        batches: Examples: arrays by Hugging Face's names with labels; for your loss, trees of arrays whose first axis
            is that of the examples.
        loss: Function of a model and a batch that returns the losses of the examples, `[batch]`. If it returns one
            number, it is taken on batches of one example each. None for headjax models.
        gates: Gates at which to score, `[layers, max_heads]` by head stack; `[heads]` by the path of the layer for
            other models. None is all ones.
        statistics: Names of the forward scores to take, of a headjax model alone; None is all that a model has.
        compute: Precision and kernels of a headjax model's forward pass.
        strict: Whether attention that the loss computes and that no site holds is an error; else a warning names it.
        progress: Called after every batch with the number of batches done.

    Raises:
        DataError: There are no examples, or none has a target.
        HeadjaxError: A score is not finite, a statistic does not exist, the model has no attention layer
            (`attention_sites`), or there is no loss.
    """
    if isinstance(model, Model):
        _refuse(OWN_LOSS, loss=loss is not None)
        options: dict[str, Any] = {"gates": gates, "compute": compute, "progress": progress}
        options["statistics"] = tuple(STATISTICS) if statistics is None else statistics
        return on_automatic_axes(scores.score_heads)(model, batches, **options)
    for name in statistics or ():
        raise HeadjaxError(f"statistics: {name}: not of such a model, which has {', '.join(GRADIENT_SCORES)}")
    _refuse(FOR_OWN, compute=compute != Compute(attention="einsum"))
    return score_module(model, batches, loss, gates=gates, strict=strict, progress=progress)


def ablate(
    model: Model | nnx.Module | Applied,
    batches: Iterable[Any],
    mode: Mode = "each",
    *,
    loss: Loss | None = None,
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    heads: Iterable[HeadId | str] | None = None,
    gates: Mapping[str, Any] | None = None,
    budget: int = DEFAULT_BUDGET,
    compute: Compute = Compute(),
    strict: bool = False,
    progress: Update | None = None,
) -> Ablation:
    """Remove every head alone (`each`), all heads of a layer but one (`all-but-one`), or a whole group (`group`).

    The first two are sections 3.2 and 3.3 of Michel et al. (2019). In a headjax model the residual stream that enters
    each layer is computed once, and ablations of one layer run together, as many as fit the budget. Any other model
    (see `score_heads`) runs whole for every head; one compilation serves all of them.

        >>> model = headjax.demo_model()
        >>> batches = [headjax.text_batch(model.tokenizer, ["for name in names:", "while not found:"])]
        >>> found = headjax.ablate(model, batches, heads=["decoder/0/0", "decoder/0/1"])
        >>> found.ablated["loss"].shape  # [heads, examples]
        (2, 2)

    Args:
        model, batches, loss, gates, compute, strict: As for `score_heads`.
        mode: Heads to remove: the head itself, all others of its layer, or all that read its KV head.
        metrics: Metrics besides the loss, by name: functions of a headjax model's output and the batch, or of another
            model and the batch, that return one value per example, higher for better.
        heads: Heads to ablate; None is all.
        budget: Bytes of device memory for temporaries of a headjax model.
        progress: Called after every batch with the number of batches done.

    Raises:
        DataError: No example has a target.
        HeadjaxError: A head or the mode does not exist, the budget is too small for a single ablation, a value of a
            model that is not headjax's is not finite, or as for `score_heads`.
    """
    if isinstance(model, Model):
        _refuse(OWN_LOSS, loss=loss is not None)
        named = None if heads is None else [HeadId.parse(head) if isinstance(head, str) else head for head in heads]
        options: dict[str, Any] = {"metrics": metrics, "heads": named, "gates": gates, "budget": budget}
        return on_automatic_axes(ablation.ablate)(model, batches, mode, **options, compute=compute, progress=progress)
    _refuse(FOR_OWN, budget=budget != DEFAULT_BUDGET, compute=compute != Compute())
    given: dict[str, Any] = {"metrics": metrics, "heads": heads, "gates": gates, "strict": strict}
    return ablate_module(model, batches, mode, loss, **given, progress=progress)


def learn_gates(
    model: Model | nnx.Module | Applied,
    batches: Sequence[Any],
    distribution: GateDistribution,
    *,
    steps: int,
    learning_rate: float,
    loss: Loss | None = None,
    seed: int = 0,
    compute: Compute = Compute(),
    strict: bool = False,
    progress: Update | None = None,
) -> LearnedGates:
    """Train the logits of a gate distribution with Adam; the model's parameters stay as they are.

    Every step draws one set of gates for its batch and descends the mean loss plus the distribution's penalty.

        >>> from headjax.heads.learned_gates import Subset
        >>> model = headjax.demo_model()
        >>> batches = [headjax.text_batch(model.tokenizer, ["for name in names:", "while not found:"])]
        >>> found = headjax.learn_gates(model, batches, Subset(count=24), steps=2, learning_rate=0.1)
        >>> len(found.removed)
        8

    Args:
        model, batches, loss, compute, strict: As for `score_heads`.
        distribution: `HardConcrete` or `Subset` of `headjax.heads.learned_gates`.
        steps: Number of steps.
        learning_rate: Learning rate of Adam.
        seed: Seed of the samples.
        progress: Called after every step with the number of steps done and the latest loss.

    Raises:
        DataError: There are no batches.
        HeadjaxError: The loss is not finite, more heads are to be kept than there are, or as for `score_heads`.
    """
    options: dict[str, Any] = {"steps": steps, "learning_rate": learning_rate, "seed": seed, "progress": progress}
    if isinstance(model, Model):
        _refuse(OWN_LOSS, loss=loss is not None)
        return on_automatic_axes(learned_gates.learn_gates)(model, batches, distribution, **options, compute=compute)
    _refuse(FOR_OWN, compute=compute != Compute())
    return learn_module_gates(model, batches, distribution, loss, **options, strict=strict)


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
        return by_ablation(ablate_module(model, batches, "each", loss, strict=strict, progress=progress))
    if config.by in LEARNED:
        return _by_learned_gates(model, batches, config, count, loss, strict, progress)
    found = score_module(model, batches, loss, strict=strict, progress=progress)
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
    options["strict"] = strict
    return by_score(learn_module_gates(model, batches, distribution, loss, **options, progress=progress).logits)


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
    gone = heads if share is None else _part(model, heads, share)
    return on_automatic_axes(pruning.prune)(model, gone) if isinstance(model, Model) else prune_module(model, gone)


def _part(model: Model | nnx.Module, order: Iterable[HeadId | str], share: float) -> Order:
    """Return the heads of an order that make up a share of all, in numbers that the model can hold."""
    if isinstance(model, Model):
        return groups.part(model.config, order, share)
    return part(find_sites(model), order, share)


def reconstruct(
    model: Model | nnx.Module,
    batches: Sequence[Any],
    removed: Iterable[HeadId | str],
    *,
    share: float | None = None,
    loss: Loss | None = None,
    feed_forward: bool = False,
    units: float | Mapping[Place, int] = 0.0,
    converted: Model | None = None,
    ridges: Sequence[float] = RIDGES,
    compute: Compute = Compute(),
    progress: Update | None = None,
) -> Reconstruction | ModuleReconstruction:
    """Refit the output projections of a model so that it computes without these heads as it did with them.

    Going through the layers in order, W_O and b_O of the kept heads minimise over the calibration tokens

        || C W + b - T ||^2 + ridge || W - W_O ||^2

    C are the kept heads' contexts in the pruned model, whose earlier layers are already repaired. The target T of a
    headjax model is f' + (a / b') (x' - x): the unpruned model's attention output f', and the lead of its residual
    stream x' over the pruned model's x, where the stream becomes a x + b' f (K-prune, arXiv 2308.03449, does so in
    every sub-layer). Of any other model only the layer's own inputs and outputs are known, and T is f'. Maps without a
    bias get none. The ridge is chosen on held-out halves of the examples, and a repair is kept only if it lowers the
    error there.

    Layers of a headjax model that share their parameters (ALBERT) are solved once, from the sums over all of them,
    without x' - x. Under a mesh set with `jax.set_mesh` the examples of its batches are spread over the batch axes.

        >>> model = headjax.demo_model()
        >>> batches = list(headjax.load_task("LICENSE", model, length=64).batches(4))
        >>> found = headjax.reconstruct(model, batches, ["decoder/0/0", "decoder/1/1"])
        >>> len(headjax.all_heads(found.model.config)), found.examples
        (30, 11)

    Args:
        model: Model with all heads.
        batches: Calibration examples. A headjax model needs no labels.
        removed, share: Heads to remove, as for `prune`.
        loss: Function of a model that is not headjax's and a batch, as for `score_heads`; positions that cannot change
            it (padding) do not count.
        feed_forward: Whether to refit the FFN down-projections, too.
        units: Share of the units to remove from every feed-forward of a headjax model, at least 0 and below 1: those
            whose removal costs least once the others have been refitted (`headjax.heads.refit.least_needed`). Every
            layer loses the same number. Or a number for some by (stack, layer).
        converted: The model to repair, a conversion of a headjax model with as many layers and heads; None is `model`.
        ridges: Ridges to choose from, see `headjax.heads.refit.refit`.
        compute: How to compute a headjax model.
        progress: Called after every solved map with the number of maps done.

    Raises:
        HeadjaxError: A head does not exist, a headjax model loses all heads, the code of another model cannot hold what
            would be left (nothing is solved then), a layer has no output projection that can be solved, or sums are not
            finite.
        DataError: There are no batches, fewer than two examples, or no tokens.
        ConfigError: A batch does not divide over the mesh.
    """
    removed = removed if share is None else _part(model, removed, share)
    if isinstance(model, Model):
        _refuse(OWN_LOSS, loss=loss is not None)
        options: dict[str, Any] = {"feed_forward": feed_forward, "units": units, "converted": converted}
        options |= {"ridges": ridges, "compute": compute, "progress": progress}
        return on_automatic_axes(reconstruction.reconstruct)(model, batches, removed, **options)
    _refuse(FOR_OWN, units=bool(units), converted=converted is not None, compute=compute != Compute())
    return reconstruct_module(
        model, batches, removed, loss, feed_forward=feed_forward, ridges=ridges, progress=progress
    )
