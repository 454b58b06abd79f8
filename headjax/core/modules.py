"""The weights of `flax.nnx` modules as nested dicts: of declarations, and of arrays that are read or put into them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from flax import nnx

from headjax.core.kind import Kind, own_copy
from headjax.core.tensors import Params, Tensors, stack_weight


class LayerGate(nnx.Param):
    """Number beside the parameters of a layer, such as a gate; of its own at each depth where layers share weights."""


class IgnoredStatic:
    """A value that programs do not depend on: modules that differ in it alone share compiled programs."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash(type(self))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r})"

    def __deepcopy__(self, memo: Any) -> IgnoredStatic:
        return self


def weights_of(module: nnx.Module) -> dict[str, Any]:
    """Return a module's own weights and the modules in it by name, in the order in which they were declared."""
    return {name: entry for name, entry in vars(module).items() if _kind(type(entry)) is not None}


def settings(module: nnx.Module) -> Any:
    """Return a module's kind or config; of one without either all attributes but weights and modules."""
    attributes = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    described = attributes["kind"] if isinstance(attributes.get("kind"), Kind) else attributes.get("config")
    return described or {name: value for name, value in attributes.items() if _kind(type(value)) is None}


def _which(attribute: Any) -> Any:
    """Return which of these an attribute's class is; Flax's own answer takes a microsecond for each attribute."""
    return next((kind for kind in (nnx.Variable, nnx.List, nnx.Module) if issubclass(attribute, kind)), None)


_kind: Callable[[Any], Any] = functools.cache(_which)


def declared(module: nnx.Module) -> Tensors:
    """Return a module's weights as a nested dict of `nnx.Param`s."""
    return {
        name: declared(entry) if isinstance(entry, nnx.Module) else entry for name, entry in weights_of(module).items()
    }


def arrays(module: nnx.Module) -> Params:
    """Return a module's arrays as a nested dict; layers in an `nnx.List` are a list."""
    params: Params = {}
    for name, entry in weights_of(module).items():
        if isinstance(entry, nnx.Variable):
            params[name] = entry.get_raw_value()
        else:
            params[name] = [arrays(layer) for layer in entry] if isinstance(entry, nnx.List) else arrays(entry)
    return params


def bind(module: Any, params: Mapping[str, Any]) -> Any:
    """Put arrays into a module that was made for them, and return it."""
    for name, value in params.items():
        entry = vars(module).get(name)
        if isinstance(value, list):
            setattr(module, name, nnx.List([bind(own_copy(entry), layer) for layer in value]))
        elif isinstance(entry, nnx.Module):
            bind(entry, value)
        elif isinstance(entry, nnx.Variable):
            entry.set_raw_value(value)
        else:
            setattr(module, name, nnx.data(nnx.Param(value)))
    return module


def stacked_module(module: Any, count: int) -> Any:
    """Return a module with the declared weights of `count` equal modules stacked in it."""
    for name, entry in weights_of(module).items():
        stacked = stack_weight if isinstance(entry, nnx.Variable) else stacked_module
        setattr(module, name, stacked(entry, count))
    return module
