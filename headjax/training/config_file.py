"""Config files: `FILE[:ARGS]` and `--config.x=y` overrides to an ml-collections `ConfigDict`.

A config file defines `get_config(arg="")`. It reads the argument with `headjax.core.configuration.parse_arguments`, so
that it states its knobs, their types and their defaults in one place and an unknown one is an error.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from headjax.core.configuration import read_literal
from headjax.core.errors import ConfigError, in_line, require
from headjax.core.fields import shown
from headjax.core.serialize import NESTED_MAX, group_fields, is_group, unknown_name
from headjax.storage.paths import path_of


def load_config_file(spec: str, overrides: Sequence[str] = (), describes: Any = None) -> ConfigDict:
    """Load `FILE[:ARGS]` and apply overrides such as `--config.optimizer.schedule.peak=0.001`.

    An override may also set a field that the file leaves at its default. Whether the field exists is checked when the
    config is built (`headjax.core.serialize.from_data`). An override of a `kind` replaces the group: the fields that
    the new kind has keep the file's values, the others go, and the group's other overrides are applied afterwards,
    wherever they stand.

    Args:
        spec: the file, which may lie in a bucket, and after a colon its arguments.
        overrides: `--config.FIELD=VALUE` each.
        describes: the dataclass that the config describes; its groups can be set where the file leaves them out. None
            knows the groups of the file alone.

    Raises:
        ConfigError: a missing file, an error inside it, an override of no group, or a value of the wrong type.
    """
    path, argument = split_spec(spec)
    config = _call(_module(path), path, argument)
    # A kind says which fields its group has: kinds come first, those of outer groups before those of inner ones.
    for override in sorted((_Override.parse(text) for text in overrides), key=_Override.rank):
        override.apply(config, describes)
    return config


def split_spec(spec: str) -> tuple[str, str]:
    """Return the file and the arguments of `FILE[:ARGS]`; the file may lie in a bucket."""
    scheme = re.match("[a-z0-9]+://", spec)
    start = scheme.end() if scheme else 0
    path, _, argument = spec[start:].partition(":")
    return spec[:start] + path, argument


def _module(path: str) -> types.ModuleType:
    file = path_of(path)
    try:
        if not file.is_file():
            raise ConfigError(f"{path}: no such config file")
        source = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    if file.suffix != ".py":
        raise ConfigError(f"{path}: not a Python file")
    module = types.ModuleType(file.stem)
    module.__file__ = path
    if isinstance(file, Path):
        _find_modules_in(file.parent)
    try:
        exec(compile(source, path, "exec"), vars(module))
    except Exception as error:
        raise ConfigError(f"{path}: {type(error).__name__}: {_one_line(error)}") from error
    if not callable(getattr(module, "get_config", None)):
        raise ConfigError(f"{path}: defines no get_config(arg)")
    return module


def _find_modules_in(folder: Path) -> None:
    """Let modules of a folder be imported, unless an installed one has the same name."""
    place = str(folder.absolute())
    if place not in sys.path:
        sys.path.append(place)


def import_modules(names: Sequence[str]) -> None:
    """Import modules of the user, which register kinds (`headjax.core.serialize.kind`).

    Args:
        names: names of modules, which may lie in the current folder, or Python files.

    Raises:
        ConfigError: there is no such module or file, or an error inside it.
    """
    for name in names:
        file = Path(name)
        try:
            if file.suffix != ".py":
                _find_modules_in(Path())
                importlib.import_module(name)
            elif file.stem not in sys.modules:
                _find_modules_in(file.parent)
                spec: Any = importlib.util.spec_from_file_location(file.stem, file)
                sys.modules[file.stem] = module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
        except Exception as error:
            raise ConfigError(f"--import: {name}: {type(error).__name__}: {_one_line(error)}") from error


def _call(module: types.ModuleType, path: str, argument: str) -> ConfigDict:
    try:
        config = module.get_config(argument)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except Exception as error:
        raise ConfigError(f"{path}: {type(error).__name__}: {_one_line(error)}") from error
    if not isinstance(config, ConfigDict):
        raise ConfigError(f"{path}: get_config must return a ConfigDict, got {type(config).__name__}")
    _check_names(config, path)
    return config


def _check_names(node: ConfigDict | Mapping[Any, Any], path: str, depth: int = 0) -> None:
    """Raise `ConfigError` unless all names of fields are text without dots, and groups end somewhere.

    `ml_collections` sorts them, and not every pair sorts; and takes dots for groups.
    """
    require(depth < NESTED_MAX, path, "its groups are nested too deep")
    try:
        fields = node.items(preserve_field_references=True) if isinstance(node, ConfigDict) else node.items()
    except TypeError:
        fields = [(None, None)]
    for name, entry in fields:
        if not isinstance(name, str):
            raise ConfigError(f"{path}: the names of fields must be text")
        if "." in name:
            raise ConfigError(f"{path}: the name of a field has no dots, got {name!r}")
        if isinstance(entry, ConfigDict | Mapping):
            _check_names(entry, path, depth + 1)


class _Override(NamedTuple):
    """One `--config.GROUP.NAME=TEXT`."""

    groups: tuple[str, ...]
    name: str
    text: str

    @classmethod
    def parse(cls, override: str) -> _Override:
        path, equals, text = override.removeprefix("--").partition("=")
        first, *groups = path.split(".")
        if not equals or first != "config" or not all(groups) or not groups:
            raise ConfigError(f"{in_line(override)}: expected --config.FIELD=VALUE")
        return cls(tuple(groups[:-1]), groups[-1], text)

    def rank(self) -> tuple[bool, int]:
        """Where among the overrides this one is applied."""
        return self.name != "kind", len(self.groups) if self.name == "kind" else 0

    def apply(self, config: ConfigDict, describes: Any) -> None:
        node, fields = config, group_fields(describes, None)
        for depth, group in enumerate(self.groups):
            if not isinstance(node.get(group), ConfigDict):
                missing = [name for name, expected in fields.items() if node.get(name) is None and is_group(expected)]
                if group not in missing:
                    where = in_line(".".join(["config", *self.groups[: depth + 1]]))
                    raise ConfigError(f"{where}: {unknown_name('group', group, {*_groups(node), *missing})}")
                with node.unlocked():
                    node[group] = ConfigDict()
            node = node[group]
            kind = self.text if self.name == "kind" and depth + 1 == len(self.groups) else node.get("kind")
            fields = group_fields(fields.get(group), kind)
        with node.unlocked():
            if self.name == "kind" and fields:
                for leftover in set(node) - set(fields) - {"kind"}:
                    del node[leftover]
            self._set(node, fields.get(self.name))

    def _set(self, node: ConfigDict, expected: Any) -> None:
        path = ".".join(["config", *self.groups, self.name])
        value = self.text if expected is str else _literal(self.text, node.get(self.name))
        if isinstance(value, Mapping):
            _check_names(value, path)
        try:
            node[self.name] = value
        except (TypeError, ValueError, OverflowError):  # of another type, or an integer of thousands of digits
            raise ConfigError(f"{path}: expected {type(node[self.name]).__name__}, got {shown(self.text)}") from None


def _groups(node: ConfigDict) -> list[str]:
    return [name for name, entry in node.items() if isinstance(entry, ConfigDict)]


def _literal(text: str, present: Any) -> Any:
    """The override's value: text stays text where the field holds text, else it is read as a Python literal."""
    return text if isinstance(present, str) else read_literal(text)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
