"""Convert a model: read targets, choose layers, convert them together, measure each layer's error."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.attention import Attention, Gated
from headjax.conversion.calibration import Calibration, Moments, calibrate, covariance_root
from headjax.conversion.collaborative import ToCollaborative, ToTucker
from headjax.conversion.deep import ToDeep
from headjax.conversion.grouped import ToGrouped
from headjax.conversion.latent import ToLatent
from headjax.conversion.per_head import ToFixed, ToGated
from headjax.conversion.products import Products, query_key, relative_distance, value_output
from headjax.conversion.target import (
    Choice,
    Converted,
    HeadLayer,
    LayerError,
    Restructuring,
    Site,
    Target,
    find_layers,
    inside_gates,
    layer_params,
)
from headjax.core import history
from headjax.core.blas import one_blas_thread
from headjax.core.errors import ConfigError
from headjax.core.serialize import unknown_name
from headjax.core.tensors import Params
from headjax.heads import reconstruction
from headjax.heads.agreement import agreements
from headjax.heads.surgery import map_attention
from headjax.models.config import Batch
from headjax.models.model import Model


class Conversion(NamedTuple):
    """A converted model and the error of each of its converted layers.

    Where the conversion chose among several, the history's `divergence` has how far each one's output was from the
    original's on calibration batches that it was not fitted on (`headjax.heads.agreement`), by its text.
    """

    model: Model
    errors: tuple[LayerError, ...]


def convert(
    model: Model,
    to: Target | Restructuring | str | Mapping[HeadLayer, Target | str],
    *,
    batches: Iterable[Batch] | Mapping[HeadLayer, Moments] | Calibration | None = None,
    plain: bool = False,
    reconstruct: bool = False,
    stacks: Collection[str] | None = None,
    layers: Collection[int] | None = None,
    seed: int = 0,
) -> Conversion:
    """Return the model with its attention layers in another formulation, or with other layers, from the same weights.

    Layers without heads stay. Gated layers are converted inside their gates. Grouped layers start from one key and
    value per head. Heads keep their numbers, so that conversions and pruning compose in either order. Layers that share
    their parameters change together. The conversion is added to the history. A restructuring (`deep`) replaces layers,
    and with them the function; it needs no calibration.

    Args:
        model: Model to convert.
        to: Target as a value (`ToCollaborative(shared_dim=384)`), as text (`collaborative:shared_dim=384`), or one for
            each of some layers, by (head stack, layer).
        batches: Calibration batches, or what `headjax.conversion.calibration.calibrate` keeps of them, or their moments
            alone. With them the error over the inputs that layers see is made small, without them the error of the
            weights. A target that leaves an option open (`error=auto`, `pooling=auto`) tries each, and the plain
            conversion, on three of four batches, and takes the one whose model agrees best on the others. Without
            batches the first is taken.
        plain: Make the error of the weights small all the same; use the batches for the reported error alone.
        reconstruct: Solve the output projections anew afterwards so that layers compute as before, see
            `headjax.heads.reconstruction.reconstruct`; needs batches.
        stacks: Head stacks to convert; None converts all.
        layers: Layers to convert, counted from 0; None converts all.
        seed: Seed of random starts and choices.

    Raises:
        ConfigError: The target does not exist, or a layer cannot be converted to it; the message names the layer.
            Nothing is computed then.
    """
    to = parse_target(to) if isinstance(to, str) else to
    if isinstance(to, Restructuring):
        return Conversion(*to.restructure(model, stacks, layers, seed))
    targets = _targets(model, to, stacks, layers)
    calibration = _calibration(model, batches)
    if reconstruct and not calibration.batches:
        raise ConfigError("reconstruct: needs calibration batches")
    choices = _choices(model, targets, plain)
    divergences: dict[str, float] = {}
    if len(choices) > 1 and calibration.judged:
        tried = [_build(model, choice, calibration.fitted, seed)[0] for choice in choices]
        found = agreements(model, [(other, None) for other in tried], calibration.judged)
        divergences = {_described(choice): each.apart for choice, each in zip(choices, found, strict=True)}
        choices = [min(zip(choices, found, strict=True), key=lambda pair: pair[1].apart)[0]]
    chosen = choices[0]
    changed, errors = _build(model, chosen, calibration.moments, seed)
    entry = history.entry(
        "convert",
        to={f"{stack}/{layer}": describe(choice.target) for (stack, layer), choice in chosen.items()},
        calibrated=bool(calibration.moments) and not any(choice.plain for choice in chosen.values()),
        seed=seed,
        relative_error={f"{error.stack}/{error.layer}": error.relative_error for error in errors},
        **({"divergence": divergences} if divergences else {}),
    )
    changed = changed.replace(history=(*model.history, entry))
    if reconstruct:
        changed = reconstruction.reconstruct(model, calibration.batches, (), converted=changed).model
    return Conversion(changed, errors)


def _build(
    model: Model, choices: Mapping[HeadLayer, Choice], moments: Mapping[HeadLayer, Moments], seed: int
) -> tuple[Model, tuple[LayerError, ...]]:
    """Return the model with these layers converted, and their errors."""
    sites = _prepare(model, choices, moments)
    with one_blas_thread():
        converted = _converted(sites, choices, seed)
        errors = tuple(
            _error(place, site, converted[place])
            if choices[place].target.of_multi_head
            else LayerError(*place, 0.0, 0.0)
            for place, site in sites.items()
        )
        jax.block_until_ready([layer.params for layer in converted.values()])

    def put(stack: str, layer: int, attention: Attention, params: Params) -> tuple[Attention, Params]:
        if (stack, layer) not in converted:
            return attention, params
        return _put_back(attention, params, converted[stack, layer])

    return map_attention(model, put), errors


def _choices(model: Model, targets: Mapping[HeadLayer, Target], plain: bool) -> list[dict[HeadLayer, Choice]]:
    """Return the ways to convert the model; where layers have unequal numbers of choices, some stay with their last."""
    attentions = model.config.attentions()
    by_layer: dict[HeadLayer, tuple[Choice, ...]] = {}
    for (stack, layer), target in targets.items():
        attention = attentions[stack][layer]
        inner = attention.inner if isinstance(attention, Gated) and target.of_multi_head else attention
        found = target.choices(inner)
        by_layer[stack, layer] = (found[0]._replace(plain=True),) if plain else found
    most = max(map(len, by_layer.values()), default=0)
    return [{place: found[min(n, len(found) - 1)] for place, found in by_layer.items()} for n in range(most)] or [{}]


def _described(choices: Mapping[HeadLayer, Choice]) -> str:
    """Return the choices of all layers in one text."""
    texts = [f"{describe(choice.target)}{' (plain)' if choice.plain else ''}" for choice in choices.values()]
    return "; ".join(dict.fromkeys(texts))


def convert_layer(
    attention: Attention,
    params: Params,
    to: Target | str,
    *,
    width: int,
    memory_width: int | None = None,
    seed: int = 0,
) -> tuple[Attention, Params]:
    """Return one layer as another formulation, converted from its weights alone.

    Args:
        attention, params: Layer to convert.
        to: Target, as for `convert`.
        width: Size of the residual stream.
        memory_width: Size of the inputs of keys and values; None is `width`.
        seed: Seed of random starts and choices.

    Raises:
        ConfigError: The target does not exist or replaces whole layers, or the layer cannot be converted to it.
    """
    target = parse_target(to) if isinstance(to, str) else to
    if isinstance(target, Restructuring):
        raise ConfigError(f"{target.name}: replaces the layers of a model; convert a whole model to it")
    inner = attention.inner if isinstance(attention, Gated) and target.of_multi_head else attention
    target.check(inner, width, width if memory_width is None else memory_width)
    floats = jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), params)
    prepared = (attention, floats)
    if target.of_multi_head:
        prepared = target.prepare(*inside_gates(attention, floats))
    with one_blas_thread():
        (converted,) = target.convert([Site(*prepared, None)], seed)
    return _put_back(attention, params, converted)


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
        asked: Target | str | None = to.get(place) if isinstance(to, Mapping) else to
        if asked is None:
            continue
        target = parse_target(asked) if isinstance(asked, str) else asked
        if isinstance(target, Restructuring):
            raise ConfigError(f"{place[0]}/{place[1]}: {target.name} replaces layers; convert to it alone")
        inner = attention.inner if isinstance(attention, Gated) and target.of_multi_head else attention
        try:
            target.check(inner, width, width)
        except ConfigError as error:
            raise ConfigError(f"{place[0]}/{place[1]}: {error}") from None
        targets[place] = target
    if isinstance(to, Mapping):
        for stack, layer in to:
            if (stack, layer) not in targets:
                raise ConfigError(f"to: {stack}/{layer} is not a layer that can be converted")
    return targets


def _calibration(
    model: Model, batches: Iterable[Batch] | Mapping[HeadLayer, Moments] | Calibration | None
) -> Calibration:
    if isinstance(batches, Calibration):
        return batches
    if batches is None or isinstance(batches, Mapping):
        return Calibration((), (), batches or {}, {})
    return calibrate(model, batches)


def _converted(
    sites: Mapping[HeadLayer, Site], choices: Mapping[HeadLayer, Choice], seed: int
) -> dict[HeadLayer, Converted]:
    """Return every converted layer; layers of one target go together, so that one call decomposes them all."""
    converted: dict[HeadLayer, Converted] = {}
    for choice in dict.fromkeys(choices.values()):
        places = [place for place in sites if choices[place] == choice]
        given = [sites[place]._replace(moments=None) if choice.plain else sites[place] for place in places]
        converted |= dict(zip(places, choice.target.convert(given, seed), strict=True))
    return converted


def _prepare(
    model: Model, choices: Mapping[HeadLayer, Choice], moments: Mapping[HeadLayer, Moments]
) -> dict[HeadLayer, Site]:
    """Return the layers in the form that their targets start from."""
    sites: dict[HeadLayer, Site] = {}
    for place, found in layer_params(model, choices).items():
        target = choices[place].target
        prepared = target.prepare(*inside_gates(*found)) if target.of_multi_head else found
        sites[place] = Site(*prepared, moments.get(place))
    return sites


def _put_back(attention: Attention, params: Params, converted: Converted) -> tuple[Attention, Params]:
    """Return the converted layer in the original's type, inside its gates if it has some."""
    dtype = jax.tree.leaves(params)[0].dtype
    new = jax.tree.map(lambda array: array.astype(dtype), converted.params)
    if not isinstance(attention, Gated) or isinstance(converted.attention, Gated):
        return converted.attention, new
    order = jnp.asarray([attention.ids.index(head) for head in converted.attention.ids])
    gates = {
        "gate": jnp.take(params["gate"], order, axis=1),
        "gate_bias": jnp.take(params["gate_bias"], order, axis=0),
    }
    return dataclasses.replace(attention, inner=converted.attention), {"inner": new, **gates}


def _error(place: HeadLayer, site: Site, converted: Converted) -> LayerError:
    order = [converted.attention.ids.index(head) for head in site.attention.ids]
    old, new = query_key(site.attention, site.params), _reordered(query_key(*converted), order)
    values = value_output(site.attention, site.params), _reordered(value_output(*converted), order)
    logit_error = None
    if site.moments is not None:
        weights = (covariance_root(site.moments.query_covariance), covariance_root(site.moments.key_within))
        seen = [
            Products(*(jnp.tensordot(weight.root, side, 1) for weight, side in zip(weights, products, strict=True)))
            for products in (old, new)
        ]
        logit_error = float(relative_distance(*seen))
    return LayerError(*place, float(relative_distance(old, new)), float(relative_distance(*values)), logit_error)


def _reordered(products: Products, order: list[int]) -> Products:
    index = np.asarray(order)
    return Products(products.left[:, index], products.right[:, index])


TARGETS: dict[str, type[Target | Restructuring]] = {
    target.name: target for target in (ToCollaborative, ToDeep, ToFixed, ToGated, ToGrouped, ToLatent, ToTucker)
}
"""Conversions by name."""


def parse_target(text: str) -> Target | Restructuring:
    """Return the conversion that `name` or `name:option=value,...` names.

    Raises:
        ConfigError: The name or an option is unknown, or an option is missing, given twice or of the wrong type.
    """
    name, _, options = text.partition(":")
    if name not in TARGETS:
        raise ConfigError(f"to: {unknown_name('formulation', name, TARGETS)}")
    cls = TARGETS[name]
    hints = typing.get_type_hints(cls)
    scalars = {f.name: f for f in dataclasses.fields(cls) if _scalar(hints[f.name]) is not None}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for part in options.split(",") if options else ():
        option, equals, value = part.partition("=")
        if option not in scalars:
            raise ConfigError(f"to: {name}: {_unknown(option, scalars)}")
        if not equals or option in values:
            raise ConfigError(f"to: {name}: {option}: expected once, as {option}=VALUE")
        values[option] = _read(f"to: {name}: {option}", hints[option], value)
    for option, field in scalars.items():
        if field.default is dataclasses.MISSING and option not in values:
            raise ConfigError(f"to: {name}: {option}: missing; write {name}:{option}=VALUE")
    return cls(**values)


def describe(target: Target) -> str:
    """Return the text that `parse_target` reads, with every option that text can hold."""
    hints = typing.get_type_hints(type(target))
    options = [
        f"{field.name}={getattr(target, field.name)}"
        for field in dataclasses.fields(target)  # type: ignore[arg-type]
        if _scalar(hints[field.name]) is not None and getattr(target, field.name) is not None
    ]
    return f"{target.name}:{','.join(options)}" if options else target.name


def _unknown(option: str, known: dict[str, Any]) -> str:
    return unknown_name("option", option, known) if known else f"unknown option {option!r}; it takes none"


def _scalar(hint: Any) -> Any:
    """Return the type that text is read as: int, float or a Literal; None for fields that text cannot set."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        inner = [_scalar(option) for option in typing.get_args(hint) if option is not type(None)]
        return inner[0] if len(inner) == 1 else None
    if hint in (int, float) or typing.get_origin(hint) is typing.Literal:
        return hint
    return None


def _read(where: str, hint: Any, text: str) -> Any:
    scalar = _scalar(hint)
    if typing.get_origin(scalar) is typing.Literal:
        choices = typing.get_args(scalar)
        if text not in choices:
            raise ConfigError(f"{where}: {unknown_name('choice', text, choices)}")
        return text
    try:
        return scalar(text)
    except ValueError:
        raise ConfigError(f"{where}: expected {scalar.__name__}, got {text!r}") from None
