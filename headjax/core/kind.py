"""`Kind`: a class of modules with values of its options, hashable and without arrays, as configs hold it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from headjax.core.errors import ConfigError, require
from headjax.core.fields import check_value, options_of, unknown_name


class Kind:
    """A class of modules and the options of one: a frozen, hashable record without arrays.

    The options are the keyword-only parameters of the class's `__init__`, and attributes of the record, as are the
    properties of the class that read nothing but `self.kind`.

        >>> kind = headjax.Kind(headjax.GroupedAttention, num_heads=8, kv_heads=2, head_dim=64)
        >>> kind.kv_heads, kind.values, kind.replace(kv_heads=4).groups
        (2, 64, (0, 0, 1, 1, 2, 2, 3, 3))

    Attributes:
        of: the class.
        options: every option by its name, defaults written out.

    Raises:
        ConfigError: `of` is no class, or an option is unknown, missing, or has a value that cannot be used.
    """

    of: Any
    options: Mapping[str, Any]

    def __init__(self, of: Any, /, **options: Any) -> None:
        require(isinstance(of, type), "of", f"must be a class, such as headjax.MultiHeadAttention, got {of!r}")
        fields = options_of(of)
        for name in options:
            if name not in fields:
                raise ConfigError(f"{name}: {unknown_name(f'field of {of.__name__}', name, fields)}")
        values = {name: options.get(name, option.default) for name, option in fields.items()}
        for name, value in values.items():
            require(value is not dataclasses.MISSING, name, f"missing; {of.__name__} needs it")
            check_value(fields[name].type, name, value)
        vars(self).update(of=of, options=values, _hash=hash((of, tuple(values.items()))))
        if hasattr(of, "check_options"):
            of.check_options(self)

    def __getattr__(self, name: str) -> Any:
        options = vars(self).get("options", {})
        if name in options:
            return options[name]
        member = getattr(self.of, name, None) if options else None
        if isinstance(member, property) and member.fget is not None:
            return member.fget(self)
        raise AttributeError(f"{type(self).__name__} has no option {name!r}")

    @property
    def kind(self) -> Kind:
        """The record itself, so that properties of the class can be read of it as of a module."""
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"{name}: a record does not change; use replace({name}=...)")

    def __hash__(self) -> int:
        return int(vars(self)["_hash"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kind) and self.of is other.of and self.options == other.options

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"Kind({self.of.__name__}{options})"

    def __reduce__(self) -> Any:
        return functools.partial(Kind, self.of, **self.options), ()

    def replace(self, **changes: Any) -> Kind:
        """Return the record with other values of some options."""
        return Kind(self.of, **{**self.options, **changes})

    def become(self, of: Any, **changes: Any) -> Kind:
        """Return the record of another class with the options that both have, but for the changes."""
        return Kind(of, **{name: self.options[name] for name in options_of(of).keys() & self.options.keys()} | changes)

    def structure(self) -> Kind:
        """Return the record without the heads' original numbers: modules of equal structure compute alike."""
        inside = {name: value.structure() for name, value in self.options.items() if isinstance(value, Kind)}
        return self.replace(**dict.fromkeys({"head_ids"} & self.options.keys()), **inside)

    def module(self, width: int, memory_width: int) -> Any:
        """Return a module with declared weights, for vectors of `width` that attend to vectors of `memory_width`."""
        return fresh(self.of, width, memory_width, kind=self)


def fresh(make: Callable[..., Any], *sizes: Any, **options: Any) -> Any:
    """Return `make(*sizes, **options)`, a module with declared weights, much faster once it has been made before."""
    return own_copy(_declared(make, *sizes, **options))


@functools.lru_cache(maxsize=1024)
def _declared(make: Callable[..., Any], *sizes: Any, **options: Any) -> Any:
    return make(*sizes, **options)


def own_copy(module: Any) -> Any:
    """Return a module with new variables, which hold the same arrays, its attributes in the same order."""
    import jax  # here, so that configs and data need neither JAX nor Flax
    from flax import nnx

    def in_order(module: Any, like: Any) -> Any:
        entries = dict(vars(module))
        vars(module).clear()
        for name, entry in vars(like).items():
            vars(module)[name] = in_order(entries[name], entry) if isinstance(entry, nnx.Module) else entries[name]
        return module

    return in_order(jax.tree.map(lambda leaf: leaf, module), module)
