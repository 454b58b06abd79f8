"""Shrink a model to a budget: the layers, the heads of each, their sizes, their sharing, and the number of units."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.conversion.calibration import collect
from headjax.conversion.model import convert
from headjax.core.errors import DataError, HeadjaxError, require
from headjax.core.fields import Checked
from headjax.core.progress import Progress, Update, silent
from headjax.evaluation.task import Task
from headjax.heads.agreement import agreement_kind
from headjax.heads.head_id import HeadId, HeadLayer, all_heads
from headjax.heads.loss_checks import parameters_of, unrecognised
from headjax.heads.program import Loss, mean_loss, prepare
from headjax.heads.pruning import prune
from headjax.heads.reconstruct import reconstruct
from headjax.heads.scoring import score_heads
from headjax.heads.site import AttentionSite, at_path, kept_along, ones
from headjax.heads.surgery import remove_layers
from headjax.mesh.mesh import on_automatic_axes
from headjax.models.config import Batch
from headjax.models.model import Model
from headjax.models.walk import shows_sub_layers
from headjax.nn.block import Compute
from headjax.shrinking.choice import NO_LAYER, QUANTITIES, Choice, Option, Prices, Shrunk, choose, frontier
from headjax.shrinking.measure import MeasureConfig, count_candidates, kept_moments, measure, missing
from headjax.shrinking.prices import native_levels, prices_of, time_parts
from headjax.shrinking.search_space import sub_layers_of
from headjax.storage.files import Kept, key_of_study
from headjax.storage.paths import path_of

EXAMPLES = 512
"""Calibration examples that are drawn from a task."""

FILE = "measurements.json"
"""File of the measurements in the folder that keeps them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget(Checked):
    """Greatest costs of a model: a share of the original model's up to 1, or a number above 1; None is any.

        >>> budget = headjax.Budget(parameters=0.6, cache=0.5)
        >>> budget.flops is None
        True
        >>> headjax.Budget(parameters=-1.0)
        Traceback (most recent call last):
            ...
        headjax.core.errors.ConfigError: parameters: must be above 0, got -1.0

    Attributes:
        parameters: of attention and feed-forwards; embeddings and outputs stay and do not count.
        flops: floating-point operations of one example.
        cache: bytes that one more token takes in a decoding cache.
        latency: of a forward, as a share of the original model's or in milliseconds; it is measured.
    """

    parameters: float | None = None
    flops: float | None = None
    cache: float | None = None
    latency: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, amount in self.amounts().items():
            require(amount > 0.0, name, f"must be above 0, got {amount}")

    def amounts(self) -> dict[str, float]:

        return {name: getattr(self, name) for name in QUANTITIES if getattr(self, name) is not None}

    def limits(self, prices: Prices) -> dict[str, float]:
        """Return the greatest costs in numbers, of the latency in seconds."""
        units = dict.fromkeys(QUANTITIES, 1.0) | {"latency": 1e-3}
        return {
            name: amount * (prices.whole(name) if amount <= 1.0 else units[name])
            for name, amount in self.amounts().items()
        }


def shrink(
    model: nnx.Module,
    examples: Task | Sequence[Any],
    budget: Budget,
    *,
    loss: Loss | None = None,
    uniform: bool = False,
    native: bool = False,
    measuring: MeasureConfig = MeasureConfig(),
    calibrate: int = EXAMPLES,
    seed: int = 0,
    strict: bool = False,
    progress: Progress = silent,
) -> Shrunk:
    """Choose layers, heads, sizes, sharing and units together, so that the model keeps within a budget.

    Where the model offers the walk and its blocks show their sub-layers, as headjax's models do, the damage of every
    sub-layer at every size is measured (`headjax.shrinking.measure`), and so is that of every layer that goes whole. An
    integer program takes one size a sub-layer, so that the sum of damages is least within the budget. The smaller model
    is then repaired from front to back; nothing is trained. The choice and the history have the old numbers of layers.

    With a loss, and for any other model, only the numbers of heads of attention layers are chosen, by the rise of the
    loss, within a budget of their parameters.

        >>> layer = nnx.MultiHeadAttention(num_heads=4, in_features=16, decode=False, rngs=nnx.Rngs(0))
        >>> def loss(model, x):
        ...     return ((model(x) - x) ** 2).mean((1, 2))
        >>> x = np.random.default_rng(0).normal(size=(2, 3, 16)).astype(np.float32)
        >>> found = headjax.shrink(layer, [x], headjax.Budget(parameters=0.5), loss=loss)
        >>> found.model.num_heads <= 2, len(found.removed) >= 2
        (True, True)

    Args:
        model: the model.
        examples: a task, of which training examples are drawn, or calibration batches. On the walk they need no labels.
        budget: greatest costs; several hold at once.
        loss: as for `score_heads`. None takes the walk where the model offers it, else the model's own loss.
        uniform: whether all layers of a stack that stay take the same form.
        native: on the walk, whether the model stays in its family's native layout, which servers load.
        measuring: on the walk, what is measured and how.
        calibrate, seed: number of examples to draw from a task, and the seed of the draw.
        strict: whether attention layers that are not recognised are an error; else a warning names them.
        progress: shows how far it is.

    Raises:
        HeadjaxError: no choice keeps within the budget, layers share their parameters, or an option needs the walk.
        DataError: there are no examples.
    """
    require(bool(budget.amounts()), "budget", "names no quantity")
    model, batches = _on_examples(model, examples, calibrate, seed)
    if loss is None and shows_sub_layers(model):
        return _shrink_by_walk(cast(Model, model), batches, budget, measuring, native, uniform or native, progress)
    others = {name: name in budget.amounts() for name in QUANTITIES[1:]}
    others |= {"native": native, "measuring": measuring != MeasureConfig()}
    for name, asked in others.items():
        if asked:
            raise HeadjaxError(f"{name}: needs a model that offers the walk (headjax.models.walk), and no loss")
    return _shrink_by_loss(model, batches, budget, loss, uniform, strict, progress)


def _on_examples(model: Any, examples: Task | Sequence[Any], calibrate: int, seed: int) -> tuple[Any, list[Any]]:
    """Return the model, with a task's output where there is one, and the calibration batches."""
    if isinstance(examples, Task):
        model, batches = examples.fit(model), list(examples.sample(calibrate, seed=seed))
    else:
        batches = list(examples)
    if not batches:
        raise DataError("examples: there is no example to calibrate on")
    return model, batches


@on_automatic_axes
def _shrink_by_walk(
    model: Model,
    batches: Sequence[Batch],
    budget: Budget,
    measuring: MeasureConfig,
    native: bool,
    uniform: bool,
    progress: Progress,
) -> Shrunk:
    timed = "latency" in budget.amounts()
    kept = measurements(model, batches, measuring)
    prices = measured_prices(model, batches, measuring, kept=kept, native=native, timed=timed, progress=progress)
    choice = choose(prices, budget.limits(prices), uniform=uniform)
    with progress("building", len(choice.options), "map") as bar:
        built = build(model, batches, choice, kept=kept, compute=measuring.compute, progress=bar)
    left = {f"{name}/{head}" for name, option in choice.options.items() for head in option.heads or ()}
    removed = tuple(head for head in all_heads(model.config) if str(head) not in left)
    return Shrunk(built, removed, choice, frontier(prices, next(iter(budget.amounts())), uniform=uniform), prices)


def _shrink_by_loss(
    model: nnx.Module,
    batches: Sequence[Any],
    budget: Budget,
    loss: Loss | None,
    uniform: bool,
    strict: bool,
    progress: Progress,
) -> Shrunk:
    """Return a model with fewer heads, as many in each layer as cost the least loss within the budget.

    In every layer the least important heads go first, in whole groups where KV heads serve several; layers that lie
    along one axis (`nnx.scan`) keep equal numbers. The rise of the loss is measured, with gates, for every number of
    heads that the layer alone could keep. The integer program takes one number a layer, so that the sum of these rises
    is least. Output projections are then refitted, and the heads are removed.
    """
    program, state = prepare(model, loss)
    for site in program.sites:
        if site.tied:
            raise HeadjaxError(f"{site.path}: its layers share their parameters; none shrinks alone")
    importance, gates = score_heads(model, batches, loss=loss, strict=strict).score("importance"), ones(program.sites)
    masks = {_name(site): _masks(site, [importance[head] for head in site.head_ids()]) for site in program.sites}
    options = dict[str, tuple[Option, ...]]()
    with progress("measuring", sum(map(len, masks.values())) - len(masks), "removal") as bar:
        baseline, done = mean_loss(program, state, gates, batches), 0
        for site in program.sites:
            layer, name = at_path(model, site.path), _name(site)
            whole, *smaller = masks[name]
            options[name] = (_option(site, layer, whole, 0.0),)
            for kept in smaller:
                closed = gates | {site.path: jnp.asarray(kept.reshape(site.shape), jnp.float32)}
                rise = mean_loss(program, state, closed, batches) - baseline
                options[name] += (_option(site, layer, kept, rise),)
                done += 1
                bar(done, {})
    others = unrecognised(program, state, program.read(batches[0]))
    rest = float(parameters_of(model, others, [site.path for site in program.sites]))
    prices = Prices(options, dict.fromkeys(QUANTITIES, 0.0) | {"parameters": rest}, "loss")
    choice = choose(prices, budget.limits(prices), uniform=uniform)
    gone = list[HeadId]()
    for site in program.sites:
        taken = options[_name(site)].index(choice.options[_name(site)])
        kept = masks[_name(site)][taken].reshape(-1)
        gone += [head for head, stays in zip(site.head_ids(), kept, strict=True) if not stays]
    shrunk = reconstruct(model, batches, gone, loss=loss).model if gone else model
    return Shrunk(shrunk, tuple(gone), choice, frontier(prices, "parameters", uniform=uniform), prices)


def _name(site: AttentionSite) -> str:
    """Return the name of a site among the options: its stack, so that layers can be alike, and its layer."""
    return "{}/{}".format(*site.places[0])


def _masks(site: AttentionSite, importance: Sequence[float]) -> list[np.ndarray]:
    """Return which heads are kept, `[layers, heads]`, with no group gone, then one after another of the least."""
    numbers, group_of = np.unique(site.groups if site.kv_heads > 1 else np.arange(site.heads), return_inverse=True)
    by_group = np.reshape(importance, (-1, site.heads)) @ np.eye(len(numbers))[group_of]  # [layers, groups]
    rank = by_group.argsort(axis=-1).argsort(axis=-1)
    return [rank[:, group_of] >= gone for gone in range(len(numbers))]


def _option(site: AttentionSite, layer: Any, kept: np.ndarray, damage: float) -> Option:
    """Return the option that keeps these heads, `[layers, heads]`, with the parameters of all layers of the site."""
    query = kept[0]
    key = np.isin(np.arange(site.kv_heads), site.groups[query])
    total = sum(array.size for array in jax.tree.leaves(nnx.state(layer, nnx.Param)))
    for path, axis, kinds in site.held():
        variable = at_path(layer, path)
        if isinstance(variable, nnx.Param):
            array = variable[...]
            share = kept_along(site, path, array.shape, axis, kinds, query, key).mean()
            total -= round(array.size * (1.0 - share))
    heads = tuple(np.flatnonzero(query).tolist())
    level, kind = ("", "whole") if query.all() else (f"{len(heads)} heads", "heads")
    return Option(_name(site), level, kind, heads, damage=damage, parameters=float(total))


def measurements(model: Model, batches: Sequence[Batch], measuring: MeasureConfig) -> Kept:
    """Return what has been measured of a model on these batches and is kept in the folder `measuring.work`."""
    # Where the measurements are kept does not change them.
    settings = model.config, dataclasses.replace(measuring, length=measuring.length or mean_length(batches), work=None)
    key = key_of_study(settings, (model.params, [dict(batch) for batch in batches]))
    return Kept(None if measuring.work is None else path_of(measuring.work) / FILE, key)


def measured_prices(
    model: Model,
    batches: Sequence[Batch],
    measuring: MeasureConfig = MeasureConfig(),
    *,
    kept: Kept | None = None,
    native: bool = False,
    timed: bool = False,
    begin: Callable[[bool], None] = lambda measures: None,
    progress: Progress = silent,
) -> Prices:
    """Return the prices of a model's options; `begin` is told whether damages have to be measured.

    `kept` are the `measurements` of these arguments, None reads them.
    """
    kept = measurements(model, batches, measuring) if kept is None else kept
    begin(missing(model, measuring.space, kept))
    with progress("measuring forms", count_candidates(model, measuring.space), "form") as bar:
        candidates = measure(model, batches, measuring, kept=kept, progress=bar)
    damage = "loss" if measuring.labels else agreement_kind(model.config)
    clock = functools.partial(time_parts, model, batches[len(batches) // 2]) if timed else None
    length = measuring.length or mean_length(batches)
    prices = prices_of(model, candidates, damage, length, kept, clock, progress)
    if native:
        levels = native_levels(model, candidates)
        prices = prices.only(lambda option: option.level in levels)
    return prices


def mean_length(batches: Sequence[Batch]) -> int:
    """Return the mean number of tokens of an example; 1 where examples are no texts."""
    masks = [np.asarray(batch.get("attention_mask", np.ones(np.shape(batch["input_ids"])))) for batch in batches
             if "input_ids" in batch]  # fmt: skip
    return max(round(float(sum(mask.sum() for mask in masks)) / max(sum(map(len, masks)), 1)), 1)


def build(
    model: Model,
    batches: Sequence[Batch],
    choice: Choice,
    *,
    kept: Kept | None = None,
    compute: Compute = Compute(),
    progress: Update | None = None,
) -> Model:
    """Return the model that a choice describes, the decision in its history, by the old numbers of layers.

    Layers are converted first. Then one walk through both models refits every map to the residual stream, so that it
    also repairs the losses of earlier layers; on the way layers lose their heads and units (`headjax.reconstruct`). The
    smaller model goes this way without the layers that are removed, and those behind them make up for what the stream
    lacks. Conversions read the moments that are among the measurements `kept`, and without them those of a further
    walk.
    """
    chosen, units, to = choice.options, dict[tuple[str, int], int](), dict[HeadLayer, str]()
    before, masked = list[HeadId](), list[HeadId]()  # heads that go before the walk, and on it
    for sub_layer in sub_layers_of(model):
        option, attention = chosen[sub_layer.name], sub_layer.attention
        if option.kind == NO_LAYER:
            continue
        if attention is None:
            units[sub_layer.stack, sub_layer.layer] = sub_layer.units - (option.units or 0)
            continue
        here = sub_layer.head_stack, sub_layer.layer
        # On the walk a layer keeps its shape, so that all that are not converted share programs.
        gone = masked if option.heads and not option.to else before
        gone += [HeadId(*here, head) for head in attention.ids if head not in (option.heads or ())]
        to |= {here: option.to} if option.to else {}
    smaller = prune(model, before)
    if to:
        moments = (None if kept is None else kept_moments(kept, to)) or collect(model, batches)
        smaller = convert(smaller, to, batches={here: moments[here] for here in to}).model
    if any(option.kind != "whole" for option in chosen.values()):
        refit = functools.partial(reconstruct, model, batches, masked, feed_forward=True, compute=compute)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a ridge is what few tokens are for
            repaired = refit(units=units, converted=smaller, skipped=choice.removed, progress=progress)
            smaller = remove_layers(repaired.model, choice.removed)
    return smaller.with_entry("shrink", **decision(choice))


def decision(choice: Choice) -> dict[str, Any]:
    """Return a choice as JSON data."""
    layers = {
        name: {"form": option.description, "damage": option.damage}
        | ({"heads": list(option.heads)} if option.heads else {})
        for name, option in choice.options.items()
    }
    return {"damage": choice.damage, "bound": choice.bound, "costs": dict(choice.costs), "layers": layers}
