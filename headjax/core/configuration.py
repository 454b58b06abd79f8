"""Config files: `FILE[:ARGS]` and `--config.x=y` overrides to an ml-collections `ConfigDict`.

A config file defines `get_config(arg="")`. The argument is read with `parse_arguments`, so that a file states its
knobs, their types and their defaults in one place and an unknown one is an error.
"""

from __future__ import annotations

import ast
import importlib.util
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from headjax.core.errors import ConfigError
from headjax.core.serialize import group_fields, is_group, unknown_name


def parse_arguments(argument: str, of: str = "config", /, **defaults: Any) -> types.SimpleNamespace:
    """Reads `a=1,b=two,smoke` into the types of the defaults; a bare name sets a boolean.

    Args:
        argument: the text after the colon of `FILE:ARGS`.
        of: the owner of the arguments, for errors.
        **defaults: every argument the file takes, with its default, whose type it keeps.

    Raises:
        ConfigError: an unknown argument or a value of another type.
    """
    values = dict(defaults)
    for part in filter(None, argument.split(",")):
        name, equals, text = part.partition("=")
        if name not in defaults:
            raise ConfigError(f"{of} argument: {unknown_name('argument', name, defaults)}")
        default = defaults[name]
        if isinstance(default, bool):
            if text.lower() not in ("", "true", "false", "1", "0"):
                raise ConfigError(f"{of} argument {name}: expected true or false, got {text!r}")
            values[name] = text.lower() in ("", "true", "1")
        else:
            if not equals:
                raise ConfigError(f"{of} argument {name}: expected {name}=VALUE")
            try:
                values[name] = type(default)(text)
            except ValueError:
                raise ConfigError(f"{of} argument {name}: expected {type(default).__name__}, got {text!r}") from None
    return types.SimpleNamespace(**values)


def load_config_file(spec: str, overrides: Sequence[str] = (), describes: Any = None) -> ConfigDict:
    """Load `FILE[:ARGS]` and apply overrides such as `--config.optimizer.schedule.peak=0.001`.

    An override may also set a field that the file leaves at its default. Whether the field exists is checked when the
    config is built (`headjax.core.serialize.from_data`). An override of a `kind` replaces the group: the fields that
    the new kind has keep the file's values, the others go, and the group's other overrides are applied afterwards,
    wherever they stand.

    Args:
        spec: the file, and after a colon its arguments.
        overrides: `--config.FIELD=VALUE` each.
        describes: the dataclass that the config describes; its groups can be set where the file leaves them out. None
            knows the groups of the file alone.

    Raises:
        ConfigError: a missing file, an error inside it, an override of no group, or a value of the wrong type.
    """
    path, _, argument = spec.partition(":")
    config = _call(_module(path), path, argument)
    # A kind says which fields its group has: kinds come first, those of outer groups before those of inner ones.
    for override in sorted((_Override.parse(text) for text in overrides), key=_Override.rank):
        override.apply(config, describes)
    return config


def _module(path: str) -> types.ModuleType:
    if not Path(path).is_file():
        raise ConfigError(f"{path}: no such config file")
    found = importlib.util.spec_from_file_location("headjax_config", path)
    if found is None or found.loader is None:
        raise ConfigError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{path}: {type(error).__name__}: {_one_line(error)}") from error
    if not callable(getattr(module, "get_config", None)):
        raise ConfigError(f"{path}: defines no get_config(arg)")
    return module


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


def _check_names(node: ConfigDict, path: str) -> None:
    """Raise `ConfigError` unless all names of fields are text; ml_collections sorts them, and not every pair sorts."""
    try:
        fields = node.items(preserve_field_references=True)
    except TypeError:
        fields = [(None, None)]
    for name, entry in fields:
        if not isinstance(name, str):
            raise ConfigError(f"{path}: the names of fields must be text")
        if isinstance(entry, ConfigDict):
            _check_names(entry, path)


class _Override(NamedTuple):
    """One `--config.GROUP.NAME=TEXT`."""

    groups: tuple[str, ...]
    name: str
    text: str

    @classmethod
    def parse(cls, override: str) -> _Override:
        path, equals, text = override.removeprefix("--").partition("=")
        _, *groups, name = path.split(".")
        if not equals or path == name:
            raise ConfigError(f"{override}: expected --config.FIELD=VALUE")
        return cls(tuple(groups), name, text)

    def rank(self) -> tuple[bool, int]:
        """Where among the overrides this one is applied."""
        return self.name != "kind", len(self.groups) if self.name == "kind" else 0

    def apply(self, config: ConfigDict, describes: Any) -> None:
        node, fields = config, group_fields(describes, None)
        for depth, group in enumerate(self.groups):
            if not isinstance(node.get(group), ConfigDict):
                missing = [name for name, expected in fields.items() if node.get(name) is None and is_group(expected)]
                if group not in missing:
                    where = ".".join(["config", *self.groups[: depth + 1]])
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
        try:
            node[self.name] = self.text if expected is str else _literal(self.text, node.get(self.name))
        except TypeError:
            path = ".".join(["config", *self.groups, self.name])
            raise ConfigError(f"{path}: expected {type(node[self.name]).__name__}, got {self.text!r}") from None


def _groups(node: ConfigDict) -> list[str]:
    return [name for name, entry in node.items() if isinstance(entry, ConfigDict)]


def _literal(text: str, present: Any) -> Any:
    """The override's value: text stays text where the field holds text, else it is read as a Python literal."""
    if isinstance(present, str):
        return text
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
