"""Arguments of public functions: compared with their annotations, so that a wrong type is one clear line."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from headjax.core.errors import ArgumentError
from headjax.core.fields import shown

F = TypeVar("F", bound=Callable[..., Any])


def checked(function: F) -> F:
    """Return the function with a comparison of its arguments with its annotations before every call.

    Classes, numbers, text, choices, functions and collections are distinguished, and the items of lists, tuples and
    mappings. Iterators are not consumed. Numbers of NumPy and JAX count as numbers, text does not count as a sequence.

    Raises:
        ArgumentError: by the returned function, for an argument of another type; the message names it, its annotation
            and what came.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        hints = _hints(function)
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if name not in hints or signature.parameters[name].kind in (_MANY, _MANY_NAMED):
                continue
            misfit = _misfit(hints[name], value, name)
            if misfit is not None:
                where, expected, found = misfit
                said = signature.parameters[name].annotation if where == name else _words(expected)
                raise ArgumentError(f"{function.__qualname__}: {where}: expected {said}, got {shown(found)}")
        return function(*args, **kwargs)

    return typing.cast(F, call)


_MANY, _MANY_NAMED = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(function)


def _misfit(expected: Any, value: Any, where: str) -> tuple[str, Any, Any] | None:
    """Return the place of a misfit, with the expected type and the value found; None where the value fits."""
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if expected is Any or isinstance(expected, TypeVar):
        return None
    if origin in (types.UnionType, typing.Union):
        found = [_misfit(option, value, where) for option in arguments]
        if None in found:
            return None
        # An option whose items alone are wrong says more than the whole union.
        return next((misfit for misfit in found if misfit is not None and misfit[0] != where), (where, expected, value))
    if origin is typing.Literal:
        return None if value in arguments else (where, expected, value)
    if expected is None or expected is type(None):
        return None if value is None else (where, expected, value)
    if not _is_instance(value, origin or expected):
        return where, expected, value
    for item_type, item, place in _items(origin, arguments, value, where):
        misfit = _misfit(item_type, item, place)
        if misfit is not None:
            return misfit
    return None


def _is_instance(value: Any, cls: Any) -> bool:
    if cls in (int, float):
        number = hasattr(value, "__index__" if cls is int else "__float__")
        return number and not isinstance(value, bool | str)
    if cls is collections.abc.Callable:
        return callable(value)
    if cls in _COLLECTIONS and isinstance(value, str | bytes | collections.abc.Mapping):
        return False
    if not isinstance(cls, type):
        return True
    if getattr(cls, "_is_protocol", False):
        methods = (name for name, item in vars(cls).items() if inspect.isfunction(item) and name != "__init__")
        return all(hasattr(value, name) for name in methods)
    return isinstance(value, cls)


_COLLECTIONS = (collections.abc.Iterable, collections.abc.Sequence, collections.abc.Collection)


def _items(origin: Any, arguments: tuple[Any, ...], value: Any, where: str) -> Iterator[tuple[Any, Any, str]]:
    """Yield the type, the value and the place of every item of a collection that can be read again."""
    if origin in _COLLECTIONS and isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield arguments[0], item, f"{where}[{number}]"
    elif isinstance(value, collections.abc.Mapping) and len(arguments) == 2:
        for key, item in value.items():
            yield arguments[0], key, f"{where} (key)"
            yield arguments[1], item, f"{where}[{key!r}]"


def _words(expected: Any) -> str:
    return expected.__name__ if isinstance(expected, type) else str(expected).replace("typing.", "")
