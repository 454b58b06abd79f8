"""Config files: `FILE[:ARGS]` and `--config.x=y` overrides to an ml-collections `ConfigDict`.

A config file defines `get_config(arg="")`. It reads the argument with `headjax.core.fields.parse_arguments`, so
that it states its knobs, their types and their defaults in one place and an unknown one is an error.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from headjax.core.errors import ConfigError, in_line
from headjax.core.fields import options_of, read_literal
from headjax.core.serialize import class_of_kind, kinds_of
from headjax.storage.paths import path_of


def load_config(spec: str, overrides: Sequence[str] = ()) -> ConfigDict:
    """Load a training run's config file `FILE[:ARGS]`, and apply overrides.

        >>> headjax.load_config("configs/quickstart.py:steps=10", ["--config.batch_size=4"]).batch_size
        4

    Args:
        spec: `FILE[:ARGS]`.
        overrides: `--config.FIELD=VALUE` each; they may set fields and groups that the file leaves out. One of a `kind`
            replaces the group: the fields that the new kind has keep the file's values, the others go, and the group's
            other overrides are applied afterwards, wherever they stand.

    Raises:
        ConfigError: a missing file, an error inside it, or an override that cannot be read. Names and values are
            checked when the config is built, see `train_config`.
    """
    path, argument = config_place(spec)
    config = _get_config(path, argument)
    # A kind says which fields its group has: kinds come first, those of outer groups before those of inner ones.
    for groups, name, text in sorted(map(_parsed, overrides), key=lambda each: (each[1] != "kind", len(each[0]))):
        _set(config, groups, name, text)
    return config


def config_place(spec: str) -> tuple[str, str]:
    """Return the file, which is there, and the argument of `FILE[:ARGS]`."""
    scheme = re.match("[a-z0-9]+://", spec)  # the file may lie in a bucket
    start = scheme.end() if scheme else 0
    path, _, argument = spec[start:].partition(":")
    path = spec[:start] + path
    try:
        if not path_of(path).is_file():
            raise ConfigError(f"{path}: no such config file; those of headjax lie in configs/ of a clone")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    return path, argument


def _get_config(path: str, argument: str) -> ConfigDict:
    file = path_of(path)
    try:
        source = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    if file.suffix != ".py":
        raise ConfigError(f"{path}: not a Python file")
    module = types.ModuleType(file.stem)
    module.__file__ = path
    if isinstance(file, Path):
        _find_modules_in(file.parent)
    with _named(path):
        exec(compile(source, path, "exec"), vars(module))
        if not callable(getattr(module, "get_config", None)):
            raise ConfigError("defines no get_config(arg)")
        config = module.get_config(argument)
        if not isinstance(config, ConfigDict):
            raise ConfigError(f"get_config must return a ConfigDict, got {type(config).__name__}")
    return config


def _find_modules_in(folder: Path) -> None:
    """Let modules of a folder be imported, unless an installed one has the same name."""
    place = str(folder.absolute())
    if place not in sys.path:
        sys.path.append(place)


def import_modules(names: Sequence[str]) -> None:
    """Import modules of the user, which register kinds (`headjax.core.serialize.kind`)."""
    for name in names:
        file = Path(name)
        _find_modules_in(file.parent)
        with _named(f"--import: {name}"):
            importlib.import_module(file.stem if file.suffix == ".py" else name)


@contextlib.contextmanager
def _named(place: str) -> Iterator[None]:
    """Turn any error of the user's code into one line that begins with its place."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
    except Exception as error:
        raise ConfigError(f"{place}: {type(error).__name__}: {' '.join(str(error).split())}") from error


def _parsed(override: str) -> tuple[list[str], str, str]:
    """Return the groups, the name and the text of `--config.GROUP.NAME=TEXT`."""
    path, equals, text = override.removeprefix("--").partition("=")
    first, *names = path.split(".")
    if not equals or first != "config" or not names or not all(names):
        raise ConfigError(f"{in_line(override)}: expected --config.FIELD=VALUE")
    return names[:-1], names[-1], text


def _set(config: ConfigDict, groups: Sequence[str], name: str, text: str) -> None:
    """Apply one override; text stays text where the file has text, else it is read as a Python literal."""
    node, where = config, "config"
    with config.unlocked():
        for group in groups:
            where = f"{where}.{group}"
            node[group] = ConfigDict() if node.get(group) is None else node[group]
            node = node[group]
            if not isinstance(node, ConfigDict):
                raise ConfigError(f"{in_line(where)}: is no group of fields")
        if name == "kind" and text in kinds_of(object):
            for leftover in set(node) - options_of(class_of_kind(text)).keys():
                del node[leftover]
        before = node.get(name)
        if name in node:
            del node[name]  # or ml-collections would cast the value to the type of the one before
        node[name] = text if isinstance(before, str) else read_literal(text)
