"""The attention kernels, and the choice among them for one call."""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from headjax.core.errors import KernelError
from headjax.core.fields import unknown_name
from headjax.nn.operands import Attended, AttentionInputs

BLOCK = 128
"""Number of lanes of a TPU vector register; lengths of blocks are multiples of it."""


class Kernel(NamedTuple):
    """An attention kernel, with the platforms on which it runs and the types in which it computes.

    Attributes:
        location: `module:function` here, imported on first use; the reference lies beside `attend`.
        partitioned: Whether XLA itself spreads it over several devices.
    """

    location: str | None
    platforms: tuple[str, ...] = ("cpu", "gpu", "tpu")
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    partitioned: bool = True

    def load(self) -> Callable[..., Attended]:
        """Import and return the function, which takes `AttentionInputs`."""
        module, _, function = str(self.location).partition(":")
        loaded: Any = importlib.import_module(f"headjax.nn.kernels.{module}")
        return getattr(loaded, function)


REFERENCE, OURS, AUTO = "einsum", "collaborative_pallas", "auto"

KERNELS: dict[str, Kernel] = {
    REFERENCE: Kernel(None),
    "xla": Kernel("stock:xla_attention"),
    "cudnn": Kernel("stock:cudnn_attention", ("gpu",), ("bfloat16", "float16")),
    "splash": Kernel("stock:splash_attention", ("tpu",), ("float32", "bfloat16"), partitioned=False),
    OURS: Kernel("collaborative_pallas:collaborative_attention", ("tpu", "cpu"), ("float32", "bfloat16"), False),
}
"""Kernels by name. Our own runs on CPUs interpreted, for tests; no TPU has run it."""

PREFERRED: dict[str, tuple[str, ...]] = {"tpu": (OURS, "splash"), "gpu": ("cudnn",), "cpu": ()}
"""Kernels that `auto` tries before the reference, best first, by platform."""


class Machine(NamedTuple):
    """Machine for which kernels are chosen.

    Attributes:
        platform: `cpu`, `gpu` or `tpu`.
        devices: Number of devices over which XLA itself has to spread the program.
        generation: Generation of the TPU, where it is known.
    """

    platform: str
    devices: int = 1
    generation: int | None = None


_target: contextvars.ContextVar[Machine | None] = contextvars.ContextVar("target", default=None)


@contextlib.contextmanager
def target(platform: str, devices: int = 1, generation: int | None = None) -> Iterator[None]:
    """Choose kernels for this `Machine` while the context lasts; programs traced before keep theirs."""
    token = _target.set(Machine(platform, devices, generation))
    try:
        yield
    finally:
        _target.reset(token)


def current_target() -> Machine:
    """Return the machine for which kernels are chosen: the present one outside of `target`."""
    tpu = re.match(r"TPU ?v?(\d+)", jax.devices()[0].device_kind)  # `TPU v5 lite`, `TPU7x`
    present = Machine(jax.default_backend(), jax.device_count(), int(tpu[1]) if tpu else None)
    return _target.get() or present


def choose(implementation: str, operands: AttentionInputs, machine: Machine, probabilities: bool = False) -> str:
    """Return the name of the kernel for a call."""
    if implementation == AUTO:
        for name in () if probabilities else PREFERRED[machine.platform]:
            if (machine.devices == 1 or KERNELS[name].partitioned) and refusal(name, operands, machine) is None:
                return name
        return REFERENCE
    if implementation not in KERNELS:
        raise KernelError(f"attention implementation: {unknown_name('name', implementation, [*KERNELS, AUTO])}")
    refused = refusal(implementation, operands, machine)
    if refused is not None:
        raise KernelError(f"attention implementation: {implementation} {refused}")
    return implementation


def refusal(name: str, operands: AttentionInputs, machine: Machine) -> str | None:
    """Return why a kernel cannot compute a call, to follow the kernel's name; None when it can."""
    kernel, dtype = KERNELS[name], str(operands.query.dtype)
    if machine.platform not in kernel.platforms:
        return f"runs on {' and '.join(kernel.platforms)}, not on {machine.platform}"
    if dtype not in kernel.dtypes:
        return f"computes in {' and '.join(kernel.dtypes)}, not in {dtype}"
    if name == REFERENCE:
        return None
    if operands.softcap is not None:
        return "does not cap logits"
    if operands.dropout.active:
        return "has no dropout of attention probabilities"
    lengths = (operands.query.shape[1], operands.key.shape[1])
    if name == "cudnn":
        size = max(operands.query.shape[-1], operands.value.shape[-1])
        # Odd lengths with a bias have no backward pass in cuDNN, and masks reach it as biases.
        odd = any(length % 2 for length in lengths)
        return f"takes heads of at most 128 and even lengths, not {size} and {lengths}" if size > 128 or odd else None
    return None if kernel.partitioned else _pallas_refusal(name, operands, machine, lengths)


def _pallas_refusal(name: str, operands: AttentionInputs, machine: Machine, lengths: tuple[int, int]) -> str | None:
    mask, bias = operands.mask, operands.bias
    if str(operands.query.dtype) == "bfloat16" and (machine.generation or 4) < 4:
        return f"computes in bfloat16 from TPU v4 on, not on v{machine.generation}"
    placed = mask is not None and (mask.causal or mask.window is not None)
    if mask is not None and placed and (mask.query_offset is not None or mask.query_positions is not None):
        return "has no masks of queries behind a cache"
    if name == OURS:
        heads = (operands.key.shape[2], operands.value.shape[2])
        if operands.mixing is None or heads != (1, operands.heads):
            return "needs one query and one key that all heads share"
        return "adds only a bias that is the same for every query" if bias is not None and bias.shape[2] > 1 else None
    if bias is not None:
        return "adds no bias to the logits"
    return f"needs lengths in multiples of {BLOCK}, not {lengths}" if any(n % BLOCK for n in lengths) else None
