"""The attention kernels with their capabilities, and the choice among them for one call."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import logging
import re
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import jax

from headjax.attention.operands import Attended, Mask, Operands
from headjax.core.errors import KernelError
from headjax.core.serialize import unknown_name

BLOCK = 128
"""Number of lanes of a TPU vector register; lengths of blocks are multiples of it."""

BiasKind = Literal["none", "keys", "full"]
"""Kind of a bias of the logits: none, equal for every query (`[batch, heads, 1, key]`), or any other."""


class CallFacts(NamedTuple):
    """Facts about one attention call that are known before anything is computed.

    Attributes:
        platform: `cpu`, `gpu` or `tpu`.
        devices: number of devices over which XLA itself has to spread the call.
        dtype: type of queries, keys and values.
        queries, keys: lengths.
        heads, key_heads, value_heads: numbers of heads.
        qk_dim, value_dim: sizes of each query or key, and value.
        masks: names of the mask's conditions: `causal`, `keys`, `segments`, `offset`, `window`, `positions`.
        bias: kind of the bias that is added.
        dropout: whether probabilities are dropped.
        mixing: whether heads share one query, which each mixes (collaborative attention).
        probabilities: whether the caller may read the probabilities.
        generation: generation of the TPU, or None where it is unknown.
    """

    platform: str
    devices: int
    dtype: str
    queries: int
    keys: int
    heads: int
    key_heads: int
    value_heads: int
    qk_dim: int
    value_dim: int
    masks: frozenset[str]
    bias: BiasKind
    dropout: bool
    mixing: bool
    probabilities: bool
    generation: int | None = None


def facts_of(operands: Operands, machine: Machine, probabilities: bool) -> CallFacts:
    """Return the facts of a call with these operands on this machine; `probabilities` as for `attend`."""
    query, key, value = operands.query, operands.key, operands.value
    return CallFacts(
        platform=machine.platform,
        devices=machine.devices,
        dtype=str(query.dtype),
        queries=query.shape[1],
        keys=key.shape[1],
        heads=operands.heads,
        key_heads=key.shape[2],
        value_heads=value.shape[2],
        qk_dim=query.shape[-1],
        value_dim=value.shape[-1],
        masks=mask_conditions(operands.mask),
        bias=_bias_kind(operands.bias),
        dropout=operands.dropout.active,
        mixing=operands.mixing is not None,
        probabilities=probabilities,
        generation=machine.generation,
    )


def mask_conditions(mask: Mask | None) -> frozenset[str]:
    """Return the names of the conditions of a mask."""
    if mask is None:
        return frozenset()
    held = {
        "causal": mask.causal,
        "offset": (mask.causal or mask.window is not None) and mask.query_offset is not None,
        "keys": mask.keys is not None,
        "segments": mask.query_segments is not None and mask.key_segments is not None,
        "window": mask.window is not None,
        "positions": mask.window is not None and mask.query_positions is not None and mask.key_positions is not None,
    }
    return frozenset(name for name, is_held in held.items() if is_held)


def _bias_kind(bias: jax.Array | None) -> BiasKind:
    if bias is None:
        return "none"
    return "keys" if bias.shape[2] == 1 else "full"


ALL_MASKS = frozenset({"causal", "offset", "keys", "segments", "window", "positions"})


FLOATS = ("float32", "bfloat16", "float16")


class Capabilities(NamedTuple):
    """Abilities of one kernel; refusals, the choice of `auto` and docs/kernels.md all follow from them.

    Attributes:
        platforms: platforms on which it runs.
        dtypes: types of queries, keys and values.
        masks: conditions of a `Mask` that it understands.
        biases: kinds of bias that it adds.
        dropout: whether it drops probabilities.
        probabilities: whether it returns them.
        needs_mixing: whether it computes only queries that heads share and mix; other kernels receive mixed queries.
        value_dim: how it handles a value_dim other than qk_dim: `free`, or `padded` with zeros, which is exact.
        kv_heads: how it handles fewer key or value heads than heads: `free`; `grouped`, with equal numbers of both
            (where they differ, the fewer are repeated, which is exact); or `shared` (one key head, a value head per
            head).
        max_dim: largest qk_dim and value_dim; None is no limit.
        length_multiple: number of which lengths must be multiples.
        bfloat16_generation: first TPU generation on which it computes in bfloat16.
        partitioned: whether XLA itself spreads it over several devices.
    """

    platforms: tuple[str, ...]
    dtypes: tuple[str, ...] = FLOATS
    masks: frozenset[str] = ALL_MASKS
    biases: tuple[BiasKind, ...] = ("none", "keys", "full")
    dropout: bool = False
    probabilities: bool = False
    needs_mixing: bool = False
    value_dim: str = "free"
    kv_heads: str = "grouped"
    max_dim: int | None = None
    length_multiple: int = 1
    bfloat16_generation: int = 0
    partitioned: bool = True


def refusal(can: Capabilities, facts: CallFacts) -> str | None:
    """Return the reason why a kernel with these capabilities cannot compute the call; None when it can."""
    if facts.platform not in can.platforms:
        return f"it runs on {' and '.join(can.platforms)}, and this is {facts.platform}"
    if can.needs_mixing and not facts.mixing:
        return "it needs one shared query that heads mix, and this formulation has a query per head"
    if facts.dtype not in can.dtypes:
        return f"it computes in {' and '.join(can.dtypes)}, and the inputs are {facts.dtype}"
    if facts.dtype == "bfloat16" and (facts.generation or can.bfloat16_generation) < can.bfloat16_generation:
        return f"it computes in bfloat16 from TPU v{can.bfloat16_generation} on, and this is v{facts.generation}"
    missing = sorted(facts.masks - can.masks)
    if missing:
        return f"it knows no {' and no '.join(missing)} mask"
    if facts.bias not in can.biases:
        added = "no bias" if can.biases == ("none",) else "only a bias that is the same for every query"
        return f"it adds {added} to the logits, and this call has one"
    if facts.dropout and not can.dropout:
        return "it has no dropout of attention probabilities"
    return _size_refusal(can, facts)


def _size_refusal(can: Capabilities, facts: CallFacts) -> str | None:
    if can.kv_heads == "shared" and (facts.key_heads, facts.value_heads) != (1, facts.heads):
        return f"it needs 1 key head and {facts.heads} value heads, got {facts.key_heads} and {facts.value_heads}"
    for field, size in (("qk_dim", facts.qk_dim), ("value_dim", facts.value_dim)):
        if can.max_dim is not None and size > can.max_dim:
            return f"{field} is {size}, and its largest is {can.max_dim}"
    for field, length in (("query length", facts.queries), ("key length", facts.keys)):
        if length % can.length_multiple:
            return f"the {field} is {length}, and it needs multiples of {can.length_multiple}"
    return None


class Kernel(NamedTuple):
    """An attention kernel.

    Attributes:
        location: `module:function` in this package, imported on first use; None for the reference, which lies beside
            `attend`.
        can: its capabilities.
        about: one line of documentation.
    """

    location: str | None
    can: Capabilities
    about: str

    def load(self) -> Callable[..., Attended]:
        """Import and return the function, which takes `Operands`.

        Raises:
            KernelError: the kernel is the reference.
        """
        if self.location is None:
            raise KernelError("the reference kernel is headjax.attention.attend.einsum_attention")
        module, _, function = self.location.partition(":")
        loaded = importlib.import_module(f"headjax.attention.kernels.{module}")
        return getattr(loaded, function)


KERNELS: dict[str, Kernel] = {
    "einsum": Kernel(
        None,
        Capabilities(platforms=("cpu", "gpu", "tpu"), dropout=True, probabilities=True, kv_heads="free"),
        "the reference: plain einsums that hold every probability",
    ),
    "xla": Kernel(
        "stock:xla_attention",
        Capabilities(platforms=("cpu", "gpu", "tpu"), value_dim="padded"),
        "`jax.nn.dot_product_attention`, compiled by XLA",
    ),
    "cudnn": Kernel(
        "stock:cudnn_attention",
        # Odd lengths with a bias have no backward pass in cuDNN, and masks reach it as biases.
        Capabilities(
            platforms=("gpu",), dtypes=("bfloat16", "float16"), value_dim="padded", max_dim=128, length_multiple=2
        ),
        "cuDNN's fused attention, through `jax.nn`",
    ),
    "splash": Kernel(
        "stock:splash_attention",
        Capabilities(
            platforms=("tpu",),
            dtypes=("float32", "bfloat16"),
            masks=frozenset({"causal", "keys", "segments", "window"}),
            biases=("none",),
            length_multiple=BLOCK,
            bfloat16_generation=4,
            partitioned=False,
        ),
        "JAX's Pallas flash attention that skips masked blocks",
    ),
    "collaborative_pallas": Kernel(
        "collaborative_pallas:collaborative_attention",
        Capabilities(
            platforms=("tpu", "cpu"),
            dtypes=("float32", "bfloat16"),
            masks=frozenset({"causal", "keys", "segments", "window"}),
            biases=("none", "keys"),
            needs_mixing=True,
            kv_heads="shared",
            bfloat16_generation=4,
            partitioned=False,
        ),
        "our Pallas flash attention that holds the key once and mixes queries inside (interpreted on CPUs, for tests)",
    ),
}


AUTO = "auto"


REFERENCE = "einsum"


PREFERRED: dict[str, tuple[str, ...]] = {
    "tpu": ("collaborative_pallas", "splash"),
    "gpu": ("cudnn",),
    "cpu": (),
}
"""Kernels that `auto` tries before the reference, best first, by platform."""


_log = logging.getLogger("headjax.attention")


class Machine(NamedTuple):
    """Machine for which kernels are chosen.

    Attributes:
        platform: `cpu`, `gpu` or `tpu`.
        devices: number of devices over which the program may be spread.
        generation: generation of the TPU, or None where it is unknown.
    """

    platform: str
    devices: int = 1
    generation: int | None = None


_target: contextvars.ContextVar[Machine | None] = contextvars.ContextVar("target", default=None)


class KernelChoice(NamedTuple):
    """A kernel and the reason for its choice.

    Attributes:
        implementation: its name in `KERNELS`.
        reason: the reason, in one line.
    """

    implementation: str
    reason: str


@contextlib.contextmanager
def target(platform: str, devices: int = 1, generation: int | None = None) -> Iterator[None]:
    """Choose kernels for this `Machine` instead of the present machine while the context lasts.

    This serves compilation ahead of time. Functions that were traced before keep the kernels they were traced with.
    """
    token = _target.set(Machine(platform, devices, generation))
    try:
        yield
    finally:
        _target.reset(token)


def current_target() -> Machine:
    """Return the machine for which kernels are chosen: the present one outside of `target`."""
    return _target.get() or Machine(
        jax.default_backend(), jax.device_count(), tpu_generation(jax.devices()[0].device_kind)
    )


def tpu_generation(device_kind: str) -> int | None:
    """Return the generation of a TPU: 5 for `TPU v5 lite`, 7 for `TPU7x`, None for another device."""
    found = re.match(r"TPU ?v?(\d+)", device_kind)
    return int(found[1]) if found else None


def choose(implementation: str, facts: CallFacts) -> KernelChoice:
    """Choose the kernel for a call.

    Args:
        implementation: a name in `KERNELS`, which is taken or refused, or `auto`, which takes the first of the
            platform's preferred kernels that can, and else the reference.
        facts: facts of the call.

    Raises:
        KernelError: the name is unknown, or that kernel cannot compute this; the message says why.
    """
    if implementation == AUTO:
        choice = _choose_freely(facts)
        _say_once(facts.platform, choice)
        return choice
    if implementation not in KERNELS:
        raise KernelError(f"attention implementation: {unknown_name('name', implementation, [*KERNELS, AUTO])}")
    refused = refusal(KERNELS[implementation].can, facts)
    if refused is not None:
        others = [name for name, kernel in KERNELS.items() if refusal(kernel.can, facts) is None]
        message = f"attention implementation: {implementation} cannot compute this: {refused}"
        raise KernelError(f"{message}; {' and '.join(others)} can", reason=refused)
    return KernelChoice(implementation, "asked for by name")


def _choose_freely(facts: CallFacts) -> KernelChoice:
    refusals: list[str] = []
    for name in PREFERRED[facts.platform]:
        refused = _unwanted(name, facts) or refusal(KERNELS[name].can, facts)
        if refused is None:
            return KernelChoice(name, "; ".join([f"preferred on {facts.platform}", *refusals]))
        refusals.append(f"not {name}: {refused}")
    if not refusals:
        return KernelChoice(REFERENCE, f"the reference; no kernel is preferred on {facts.platform}")
    return KernelChoice(REFERENCE, "; ".join(["the reference", *refusals]))


def _unwanted(name: str, facts: CallFacts) -> str | None:
    """Return the reason why `auto` does not take a kernel that could compute the call; None if it may."""
    can = KERNELS[name].can
    if facts.probabilities and not can.probabilities:
        return "it returns no probabilities, and a probe may look at them"
    if facts.devices > 1 and not can.partitioned:
        return f"XLA does not spread it over {facts.devices} devices by itself, and no mesh is set (jax.set_mesh)"
    return None


@functools.cache
def _say_once(platform: str, choice: KernelChoice) -> None:
    _log.info("attention on %s: %s (%s)", platform, choice.implementation, choice.reason)
