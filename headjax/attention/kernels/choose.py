"""Which kernel computes a call, and why."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import re
from collections.abc import Iterator
from typing import NamedTuple

import jax

from headjax.attention.kernels.capabilities import refusal
from headjax.attention.kernels.request import Request
from headjax.attention.kernels.table import KERNELS
from headjax.core.errors import KernelError
from headjax.core.serialize import unknown_name

AUTO = "auto"
REFERENCE = "einsum"
PREFERRED: dict[str, tuple[str, ...]] = {
    "tpu": ("collaborative_pallas", "splash"),
    "gpu": ("cudnn",),
    "cpu": (),
}
"""The kernels that `auto` tries before the reference, best first, by platform."""

_log = logging.getLogger("headjax.attention")


class Target(NamedTuple):
    """What kernels are chosen for.

    Attributes:
        platform: `cpu`, `gpu` or `tpu`.
        devices: how many of them the program may be spread over.
        generation: of a TPU, where it is known.
    """

    platform: str
    devices: int = 1
    generation: int | None = None


_target: contextvars.ContextVar[Target | None] = contextvars.ContextVar("target", default=None)


class Choice(NamedTuple):
    """A kernel and why it was taken.

    Attributes:
        implementation: its name in `KERNELS`.
        reason: one line.
    """

    implementation: str
    reason: str


@contextlib.contextmanager
def target(platform: str, devices: int = 1, generation: int | None = None) -> Iterator[None]:
    """Within it, kernels are chosen for this `Target`, and not for the machine at hand.

    For compiling ahead of time. Functions that were traced before keep the kernels they were traced with.
    """
    token = _target.set(Target(platform, devices, generation))
    try:
        yield
    finally:
        _target.reset(token)


def current_target() -> Target:
    """What kernels are chosen for: the machine at hand outside of `target`."""
    return _target.get() or Target(
        jax.default_backend(), jax.device_count(), tpu_generation(jax.devices()[0].device_kind)
    )


def tpu_generation(device_kind: str) -> int | None:
    """5 of `TPU v5 lite`, 7 of `TPU7x`; None of what is no TPU."""
    found = re.match(r"TPU ?v?(\d+)", device_kind)
    return int(found[1]) if found else None


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
        message = f"attention implementation: {implementation} cannot compute this: {refused}"
        raise KernelError(f"{message}; {' and '.join(others)} can", reason=refused)
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
        return f"XLA does not spread it over {asked.devices} devices by itself, and no mesh is set (jax.set_mesh)"
    return None


@functools.cache
def _say_once(platform: str, choice: Choice) -> None:
    _log.info("attention on %s: %s (%s)", platform, choice.implementation, choice.reason)
