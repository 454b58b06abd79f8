"""Which kernel computes a call, and why."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
from collections.abc import Iterator
from typing import NamedTuple

import jax

from headjax.attention.kernels.capabilities import refusal
from headjax.attention.kernels.request import Request
from headjax.attention.kernels.table import KERNELS
from headjax.errors import KernelError
from headjax.serialize import unknown_name

AUTO = "auto"
REFERENCE = "einsum"
PREFERRED: dict[str, tuple[str, ...]] = {
    "tpu": ("collaborative_pallas", "splash"),
    "gpu": ("cudnn",),
    "cpu": (),
}
"""The kernels that `auto` tries before the reference, best first, by platform."""

_log = logging.getLogger("headjax.attention")
_target: contextvars.ContextVar[tuple[str, int] | None] = contextvars.ContextVar("target", default=None)


class Choice(NamedTuple):
    """A kernel and why it was taken.

    Attributes:
        implementation: its name in `KERNELS`.
        reason: one line.
    """

    implementation: str
    reason: str


@contextlib.contextmanager
def target(platform: str, devices: int = 1) -> Iterator[None]:
    """Within it, kernels are chosen for this platform and number of devices, and not for the machine at hand.

    For compiling ahead of time. Functions that were traced before keep the kernels they were traced with.
    """
    token = _target.set((platform, devices))
    try:
        yield
    finally:
        _target.reset(token)


def current_target() -> tuple[str, int]:
    """Platform (`cpu`, `gpu`, `tpu`) and number of devices that kernels are chosen for."""
    return _target.get() or (jax.default_backend(), jax.device_count())


def choose(implementation: str, asked: Request) -> Choice:
    """The kernel for a request.

    Args:
        implementation: a name in `KERNELS`, which is taken or refused, or `auto`, which takes the first of the
            platform's preferred kernels that can, and else the reference.
        asked: what is to be computed.

    Raises:
        KernelError: the name is unknown, or that kernel cannot compute this; the message says why.
    """
    if implementation == AUTO:
        choice = _choose_freely(asked)
        _say_once(asked.platform, choice)
        return choice
    if implementation not in KERNELS:
        raise KernelError(f"attention implementation: {unknown_name('name', implementation, [*KERNELS, AUTO])}")
    refused = refusal(KERNELS[implementation].can, asked)
    if refused is not None:
        others = [name for name, kernel in KERNELS.items() if refusal(kernel.can, asked) is None]
        raise KernelError(
            f"attention implementation: {implementation} cannot compute this: {refused}; {' and '.join(others)} can"
        )
    return Choice(implementation, "asked for by name")


def _choose_freely(asked: Request) -> Choice:
    refusals: list[str] = []
    for name in PREFERRED[asked.platform]:
        refused = _unwanted(name, asked) or refusal(KERNELS[name].can, asked)
        if refused is None:
            return Choice(name, "; ".join([f"preferred on {asked.platform}", *refusals]))
        refusals.append(f"not {name}: {refused}")
    if not refusals:
        return Choice(REFERENCE, f"the reference; no kernel is preferred on {asked.platform}")
    return Choice(REFERENCE, "; ".join(["the reference", *refusals]))


def _unwanted(name: str, asked: Request) -> str | None:
    """Why `auto` leaves a kernel alone that could compute the request."""
    can = KERNELS[name].can
    if asked.probabilities and not can.probabilities:
        return "it returns no probabilities, and a probe may look at them"
    if asked.devices > 1 and not can.partitioned:
        return f"XLA does not spread it over the {asked.devices} devices"
    return None


@functools.cache
def _say_once(platform: str, choice: Choice) -> None:
    _log.info("attention on %s: %s (%s)", platform, choice.implementation, choice.reason)
