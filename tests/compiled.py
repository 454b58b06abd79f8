"""The number of programs that calls compile, or read from the folder of compiled ones."""

from collections.abc import Callable
from typing import Any

import jax.monitoring

_COMPILED: list[str] = []


def _note(event: str, duration: float, **details: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        _COMPILED.append(str(details))


jax.monitoring.register_event_duration_secs_listener(_note)


def programs(call: Callable[[], Any]) -> int:
    """The number of programs that a call needs beyond those that are there."""
    before = len(_COMPILED)
    call()
    return len(_COMPILED) - before
