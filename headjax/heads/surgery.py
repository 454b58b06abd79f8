"""Read and change the attention layers of a model: unstack, look or change layer by layer, stack again."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from headjax.attention.formulation import Attention
from headjax.core.deferred import held
from headjax.core.tensors import Params
from headjax.heads.head_id import require_stack
from headjax.models.model import Model
from headjax.models.stack import Stack

Change = Callable[[str, int, Attention, Params], tuple[Attention, Params]]
"""Function of (head stack, layer, formulation, parameters) that returns the new formulation and parameters."""


class AttentionLayer(NamedTuple):
    """Attention layer of a model.

    Attributes:
        stack: Head stack (`encoder`, `decoder` or `cross`).
        layer: Number of the layer, counted from 0.
        attention: Formulation of the layer.
        params: Parameters of the layer, without an axis of layers.
    """

    stack: str
    layer: int
    attention: Attention
    params: Params


def attention_layers(model: Model) -> Iterator[AttentionLayer]:
    """Yield the attention layers in the order in which `map_attention` visits them; nothing is stacked again.

    Layers that share their parameters are yielded once, as the first of them. Deferred arrays are made, those of all
    layers of a group at once.
    """
    for (name, slot), sites in itertools.groupby(model.config.sites(), lambda site: (site.stack, site.slot)):
        stack = model.config.stacks()[name]
        params = {group.name: {slot: held(model.params[name][group.name][slot])} for group in stack.groups}
        weights = stack.unstack(params)
        for site in sites:
            if site.first:
                yield AttentionLayer(site.head_stack, site.layer, site.attention, weights[site.layer][slot])


def output_params(params: Params) -> Params:
    """Return the parameters of a formulation with its output projection, those inside of one that wraps another."""
    inner: Params = params.get("inner", params)
    return inner


def map_attention(
    model: Model, function: Change, stacks: Collection[str] | None = None, layers: Collection[int] | None = None
) -> Model:
    """Return the model with every chosen attention layer replaced by the result of `function`.

    Everything else about the model (other parameters, history, tokenizer) stays as it is. Of deferred arrays those of
    attention in the chosen head stacks are made, and the others stay deferred. Layers are grouped into runs anew, so
    that any mixture of formulations and head counts is an ordinary model. Layers that share their parameters change
    together: `function` is called for the first of them, and all take its result.

    Args:
        model: Model to change.
        function: Called once per chosen layer, in order, as `function(stack, layer, attention, params)`.
        stacks: Head stacks (`encoder`, `decoder`, `cross`) to change; None changes all of the model.
        layers: Layers to change, counted from 0; None changes all.

    Raises:
        HeadjaxError: The model has no such head stack.
    """
    config = model.config
    for head_stack in stacks or ():
        require_stack(config, head_stack)
    layers = None if layers is None else frozenset(layers)
    sites = config.sites(stacks)
    changed_stacks, changed_params = {}, dict(model.params)
    for name, stack in config.stacks().items():
        here = [site for site in sites if site.stack == name]
        held_params = _with_held(stack, model.params[name], {site.slot for site in here})
        new_layers, weights = list(stack.layers), stack.unstack(held_params)
        for site in here:
            if not site.first or (layers is not None and layers.isdisjoint(site.tied)):
                continue
            slot = site.slot
            new, params = function(site.head_stack, site.layer, site.attention, weights[site.layer][slot])
            for tied in site.tied:
                new_layers[tied] = dataclasses.replace(new_layers[tied], **{slot: new})  # type: ignore[arg-type]
                weights[tied] = weights[tied] | {slot: params}
        changed_stacks[name] = dataclasses.replace(stack, layers=tuple(new_layers))
        changed_params[name] = changed_stacks[name].restack(weights, model.params[name])
    return model.replace(config=config.replace_stacks(changed_stacks), params=changed_params)


def _with_held(stack: Stack, params: Params, slots: Collection[str]) -> Params:
    """Return a stack's parameters with the arrays of these slots made where they are deferred."""

    def hold(layers: Params) -> Params:
        return {slot: held(own) if slot in slots else own for slot, own in layers.items()}

    return params | {group.name: hold(params[group.name]) for group in stack.groups}
