"""Config files: `FILE[:ARGS]` and `--config.x=y` overrides to an ml-collections `ConfigDict`.

A config file defines `get_config(arg="")`. The argument is read with `parse_arguments`, so that a file states its
knobs, their types and their defaults in one place and an unknown one is an error.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from headjax.errors import ConfigError
from headjax.serialize import unknown_name


def parse_arguments(argument: str, **defaults: Any) -> types.SimpleNamespace:
    """Reads `a=1,b=two,smoke` into the types of the defaults; a bare name sets a boolean.

    Args:
        argument: the text after the colon of `FILE:ARGS`.
        **defaults: every argument the file takes, with its default, whose type it keeps.

    Raises:
        ConfigError: an unknown argument or a value of another type.
    """
    values = dict(defaults)
    for part in filter(None, argument.split(",")):
        name, equals, text = part.partition("=")
        if name not in defaults:
            raise ConfigError(f"config argument: {unknown_name('argument', name, defaults)}")
        default = defaults[name]
        if isinstance(default, bool):
            if text.lower() not in ("", "true", "false", "1", "0"):
                raise ConfigError(f"config argument {name}: expected true or false, got {text!r}")
            values[name] = text.lower() in ("", "true", "1")
        else:
            if not equals:
                raise ConfigError(f"config argument {name}: expected {name}=VALUE")
            try:
                values[name] = type(default)(text)
            except ValueError:
                raise ConfigError(f"config argument {name}: expected {type(default).__name__}, got {text!r}") from None
    return types.SimpleNamespace(**values)


def load_config(spec: str, overrides: Sequence[str] = ()) -> ConfigDict:
    """Loads `FILE[:ARGS]` and applies overrides such as `--config.optimizer.schedule.peak=0.001`.

    Raises:
        ConfigError: a missing file, an error inside it, an unknown field, or a value of the wrong type.
    """
    from absl import flags
    from ml_collections import config_flags

    path, _, argument = spec.partition(":")
    if not Path(path).is_file():
        raise ConfigError(f"{path}: no such config file")
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=values)
    for override in overrides:
        if not override.startswith("--config.") or "=" not in override:
            raise ConfigError(f"{override}: expected --config.FIELD=VALUE")
    try:
        values(["headjax", f"--config={path}:{argument}" if argument else f"--config={path}", *overrides])
        config = values["config"].value
    except ConfigError:
        raise
    except flags.UnrecognizedFlagError as error:
        raise ConfigError(f"{error.flagname.removeprefix('--')}: unknown config field") from None
    except (flags.Error, ValueError, TypeError, AttributeError, KeyError) as error:
        raise ConfigError(f"{path}: {_one_line(error)}") from None
    if not isinstance(config, ConfigDict):
        raise ConfigError(f"{path}: get_config must return a ConfigDict, got {type(config).__name__}")
    return config


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
