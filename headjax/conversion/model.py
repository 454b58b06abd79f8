"""Convert a model: read targets, choose layers, convert them together, measure each layer's error."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from headjax.conversion.calibration import Calibration, Moments, calibrate
from headjax.conversion.collaborative import ToCollaborative, roots, weighted
from headjax.conversion.deep import ToDeep, layer_errors
from headjax.conversion.grouped import ToGrouped
from headjax.conversion.latent import ToLatent
from headjax.conversion.per_head import ToFixed
from headjax.conversion.target import (
    ConversionInput,
    LayerError,
    Products,
    Target,
    find_layers,
    head_products,
    in_float32,
    relative_distance,
)
from headjax.core.errors import ConfigError, require
from headjax.core.fields import Option, check_value, options_of, read_literal, unknown_name
from headjax.core.programs import one_blas_thread
from headjax.core.progress import Progress, silent
from headjax.core.serialize import groups_in
from headjax.heads.agreement import agreements
from headjax.heads.head_id import HeadLayer
from headjax.heads.reconstruct import reconstruct as refit_maps
from headjax.heads.surgery import LayerModule, attention_layers, config_after, map_attention
from headjax.mesh.mesh import on_automatic_axes
from headjax.models.config import Batch, ModelConfig
from headjax.models.model import Model
from headjax.nn.module import AttentionModule


class Conversion(NamedTuple):
    """A converted model and the error of each of its converted layers.

    Attributes:
        errors: `stack`, `layer`, `relative_error`, `value_error`, `logit_error`.
    """

    model: Model
    errors: tuple[LayerError, ...]

    @property
    def divergence(self) -> Mapping[str, float]:
        """From the original on held-out calibration examples, by what was tried; the least was taken."""
        entries = [entry for entry in self.model.history if entry["action"] == "convert"]
        return entries[-1].get("divergence", {}) if entries else {}


@on_automatic_axes
def convert(
    model: Model,
    to: Target | str | Mapping[HeadLayer, Target | str],
    *,
    batches: Iterable[Batch] | Mapping[HeadLayer, Moments] | Calibration | None = None,
    plain: bool = False,
    reconstruct: bool = False,
    stacks: Collection[str] | None = None,
    layers: Collection[int] | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Conversion:
    """Convert the attention layers of a model to another formulation, or to other layers, from the same weights.

    Layers without heads stay. Grouped layers start from one key and value per head. Heads keep their numbers, so that
    conversions and pruning compose in either order. Layers that share their parameters change together. `deep` replaces
    layers, and with them the function; it needs no calibration. The conversion is added to the history.

    With calibration batches every criterion of the target is tried, calibrated and plain, and the one whose model is
    nearest to the original (`headjax.heads.agreement`) on batches that none was fitted on is taken.

        >>> found = headjax.convert(headjax.demo_model(), "grouped:kv_heads=2", layers=[0])
        >>> [attention.kv_heads for attention in found.model.config.attentions()["decoder"]]
        [2, 8, 8, 8]

    Args:
        model: Model to convert.
        to: Target, such as `latent:rank=64` (docs/conversions.md has all), or targets of some layers by (stack, layer).
        batches: Calibration examples, whose labels are not read; None approximates the weights alone.
        plain: Whether calibration serves only the errors and `reconstruct`; nothing is tried then.
        reconstruct: Whether to refit output projections afterwards, as `headjax.reconstruct` does.
        stacks, layers: Head stacks and layers to convert; None is all.
        seed: Seed of random starts.
        progress: Shows how far it is.

    Raises:
        ConfigError: A target does not exist, a layer cannot become it, or `reconstruct` has no batches.
    """
    to = parse_target(to) if isinstance(to, str) else to
    if isinstance(to, ToDeep):
        deep = to.replaced(model, stacks, layers)
        return Conversion(deep, layer_errors(model, deep, seed))
    targets = _targets(model, to, stacks, layers)
    calibration = _calibration_of(model, batches, progress)
    require(not reconstruct or bool(calibration.batches), "reconstruct", "needs calibration batches")
    with progress(f"converting {len(targets)} layers", 0, ""):
        chosen, plain, divergences = _chosen(model, targets, calibration, seed, plain)
        converted, errors = _build(model, chosen, calibration.moments, seed, plain)
    converted = converted.with_entry(
        "convert",
        to={f"{stack}/{layer}": describe(target) for (stack, layer), target in chosen.items()},
        calibrated=bool(calibration.moments) and not plain,
        seed=seed,
        relative_error={f"{error.stack}/{error.layer}": error.relative_error for error in errors},
        **({"divergence": divergences} if divergences else {}),
    )
    if reconstruct:
        with progress("reconstructing", len(find_layers(model, None, None)), "map") as bar:
            converted = refit_maps(model, calibration.batches, (), converted=converted, progress=bar).repaired
    return Conversion(converted, errors)


def _calibration_of(
    model: Model, batches: Iterable[Batch] | Mapping[HeadLayer, Moments] | Calibration | None, progress: Progress
) -> Calibration:
    """Return what a conversion knows of the layers' inputs."""
    if isinstance(batches, Calibration):
        return batches
    if batches is None or isinstance(batches, Mapping):
        return Calibration((), (), batches or {}, {})
    batches = list(batches)
    with progress("calibrating", len(batches), "batch") as bar:
        return calibrate(model, batches, bar)


def planned(
    config: ModelConfig, to: str, stacks: Collection[str] | None = None, layers: Collection[int] | None = None
) -> ModelConfig:
    """Return the architecture that `convert` makes of another one, up to biases and the order of heads."""
    parsed = parse_target(to)

    def change(model: Model) -> Model:
        if isinstance(parsed, ToDeep):
            return parsed.replaced(model, stacks, layers)
        return _build(model, _targets(model, parsed.planned(), stacks, layers), {}, 0, plain=True, measured=False)[0]

    return config_after(config, change)


def _chosen(
    model: Model, targets: Mapping[HeadLayer, Target], calibration: Calibration, seed: int, plain: bool
) -> tuple[Mapping[HeadLayer, Target], bool, dict[str, float]]:
    """Return the targets whose model agrees best on held-out batches, whether plain, and all distances by text."""
    criteria = {place: target.criteria() for place, target in targets.items()}
    most = max(map(len, criteria.values()), default=1)
    choices = [
        {place: alternatives[min(n, len(alternatives) - 1)] for place, alternatives in criteria.items()}
        for n in range(most)
    ]
    if plain or not calibration.eval_batches:
        return choices[0], plain, {}
    candidates = [(choice, plain) for plain in (False, True) for choice in choices]
    tried = [_build(model, choice, calibration.fit_moments, seed, plain)[0] for choice, plain in candidates]
    texts = [
        "; ".join(dict.fromkeys(map(describe, choice.values()))) + " (plain)" * plain for choice, plain in candidates
    ]
    distances = [each.distance for each in agreements(model, tried, calibration.eval_batches)]
    return *candidates[int(np.argmin(np.nan_to_num(distances, nan=np.inf)))], dict(zip(texts, distances, strict=True))


def _build(
    model: Model,
    targets: Mapping[HeadLayer, Target],
    moments: Mapping[HeadLayer, Moments],
    seed: int,
    plain: bool,
    measured: bool = True,
) -> tuple[Model, tuple[LayerError, ...]]:
    """Return the model with these layers converted, and their errors; `plain` conversions get no moments."""
    modules = {(layer.stack, layer.layer): layer.module for layer in attention_layers(model)}
    inputs = {
        place: ConversionInput(target.prepare(in_float32(modules[place])), moments.get(place))
        for place, target in targets.items()
    }
    converted: dict[HeadLayer, AttentionModule] = {}
    with one_blas_thread():
        for target in dict.fromkeys(targets.values()):  # one call decomposes all layers of a target
            places = [place for place in inputs if targets[place] == target]
            layers = [inputs[place]._replace(moments=None) if plain else inputs[place] for place in places]
            converted |= dict(zip(places, target.convert(layers, seed), strict=True))
        errors = [_error(place, layer, converted[place]) for place, layer in inputs.items() if measured]
        jax.block_until_ready([layer.params for layer in converted.values()])

    def replace_layer(layer: LayerModule) -> AttentionModule:
        new = converted.get((layer.stack, layer.layer))
        return layer.module if new is None else _with_dtype_of(layer.module, new)

    return map_attention(model, replace_layer), tuple(errors)


@on_automatic_axes
def convert_attention(
    module: AttentionModule, to: Target | str, seed: int = 0, *, moments: Moments | None = None
) -> AttentionModule:
    """Return an attention layer in another formulation, from the same weights; the layer itself stays as it is.

        >>> layer = headjax.MultiHeadAttention(16, num_heads=4, head_dim=4, rngs=nnx.Rngs(0))
        >>> shared = headjax.convert_attention(layer, "collaborative:shared_dim=16")
        >>> x = jnp.ones((1, 3, 16))
        >>> bool(jnp.allclose(shared(x), layer(x), atol=1e-5))
        True

    Args:
        module: Layer to convert.
        to: Target, as for `headjax.convert`, but for `deep`, which replaces layers.
        seed: Seed of random starts.
        moments: Moments of the layer's inputs, for which it is converted; None approximates the weights alone.

    Raises:
        ConfigError: The target does not exist, or the layer cannot become it.
    """
    target = parse_target(to) if isinstance(to, str) else to
    target.check(module.kind, module.width, module.memory_width)
    with one_blas_thread():
        (converted,) = target.convert([ConversionInput(target.prepare(in_float32(module)), moments)], seed)
        return jax.block_until_ready(_with_dtype_of(module, converted))


def _targets(
    model: Model,
    to: Target | Mapping[HeadLayer, Target | str],
    stacks: Collection[str] | None,
    layers: Collection[int] | None,
) -> dict[HeadLayer, Target]:
    """Return the checked target of each chosen layer; of layers that share their parameters only the first has one."""
    width = model.config.width
    targets: dict[HeadLayer, Target] = {}
    for place, attention in find_layers(model, stacks, layers).items():
        choice: Target | str | None = to.get(place) if isinstance(to, Mapping) else to
        if choice is None:
            continue
        target = parse_target(choice) if isinstance(choice, str) else choice
        try:
            target.check(attention, width, width)
        except ConfigError as error:
            raise ConfigError(f"{place[0]}/{place[1]}: {error}") from None
        targets[place] = target
    if isinstance(to, Mapping):
        for stack, layer in to:
            if (stack, layer) not in targets:
                raise ConfigError(f"to: {stack}/{layer} is not a layer that can be converted")
    return targets


def _with_dtype_of(module: AttentionModule, converted: AttentionModule) -> AttentionModule:
    dtype = jax.tree.leaves(module)[0].dtype
    return jax.tree.map(lambda array: array.astype(dtype), converted)


def _error(place: HeadLayer, layer: ConversionInput, converted: AttentionModule) -> LayerError:
    order = np.asarray([converted.ids.index(head) for head in layer.attention.ids])
    alike = converted.like(converted.kind.structure(), converted.params)
    logits, outputs, seen = _errors(layer.traceable(), alike, order)
    return LayerError(*place, float(logits), float(outputs), None if seen is None else float(seen))


@jax.jit
def _errors(layer: ConversionInput, converted: AttentionModule, order: Any) -> tuple[jax.Array, jax.Array, Any]:
    """Return the errors of a `LayerError`; `order` are the positions of the layer's heads in the converted one."""
    before, after = head_products(layer.module), head_products(converted)
    logits, outputs = (
        (old, Products(*(factor[:, order] for factor in new))) for old, new in zip(before, after, strict=True)
    )
    weights = roots(layer)
    seen = None if weights is None else relative_distance(*(weighted(each, weights) for each in logits))
    return relative_distance(*logits), relative_distance(*outputs), seen


TARGETS: dict[str, type[Target]] = {
    target.name: target for target in (ToCollaborative, ToDeep, ToFixed, ToGrouped, ToLatent)
}
"""Conversions by name."""


def parse_target(text: str) -> Target:
    """Return the conversion that `name` or `name:option=value,...` names."""
    name, _, arguments = text.partition(":")
    if name not in TARGETS:
        raise ConfigError(f"to: {unknown_name('formulation', name, TARGETS)}")
    options, values = _options(TARGETS[name]), dict[str, Any]()
    for part in arguments.split(",") if arguments else ():
        option, equals, value = part.partition("=")
        if option not in options:
            raise ConfigError(f"to: {name}: {unknown_name('option', option, options)}")
        if not equals or option in values:
            raise ConfigError(f"to: {name}: {option}: expected once, as {option}=VALUE")
        values[option] = read_literal(value)
        check_value(options[option].type, f"to: {name}: {option}", values[option])
    for option, field in options.items():
        if field.default is dataclasses.MISSING and option not in values:
            raise ConfigError(f"to: {name}: {option}: missing; write {name}:{option}=VALUE")
    return TARGETS[name](**values)


def describe(target: Target) -> str:
    """Return the text that `parse_target` reads, with every option that text can hold."""
    values = {name: getattr(target, name) for name in _options(type(target))}
    options = [f"{name}={value}" for name, value in values.items() if value is not None]
    return f"{target.name}:{','.join(options)}" if options else target.name


def _options(cls: Any) -> dict[str, Option]:
    """Return the fields that text can set: those that hold no group of fields."""
    return {name: option for name, option in options_of(cls).items() if not groups_in(option.type)}
