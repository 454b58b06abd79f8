"""Write docs/kernels.md: `python -m docs.kernels > docs/kernels.md`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Sequence

from headjax.attention.collaborative import Collaborative
from headjax.attention.compressed import Compressed
from headjax.attention.explain import explain
from headjax.attention.formulation import Attention
from headjax.attention.gated import Gated
from headjax.attention.kernels.choose import ALL_MASKS, KERNELS, PREFERRED, Capabilities
from headjax.attention.latent import Latent
from headjax.attention.multi_head import Grouped, MultiHead
from headjax.attention.rotary import RotaryHalves
from headjax.core.errors import KernelError

EXAMPLES: dict[str, Attention] = {
    "`MultiHead`": MultiHead(num_heads=12, head_dim=64),
    "`MultiHead`, value_dim != head_dim": MultiHead(num_heads=8, head_dim=128, value_dim=32),
    "`MultiHead`, one head of 768": MultiHead(num_heads=1, head_dim=768),
    "`Grouped`": Grouped(num_heads=12, kv_heads=4, head_dim=64, rotary=RotaryHalves()),
    "`Grouped`, one KV head": Grouped(num_heads=12, kv_heads=1, head_dim=64),
    "`Collaborative`": Collaborative(num_heads=12, shared_dim=384, value_dim=64, head_dim=64),
    "`Collaborative`, content bias": Collaborative(
        num_heads=12, shared_dim=384, value_dim=64, head_dim=64, content_bias=True
    ),
    "`Latent`": Latent(num_heads=12, rank=128, head_dim=64, rotary_dim=32, rotary=RotaryHalves()),
    "`Compressed`, `Grouped` inside": Compressed(
        inner=Grouped(num_heads=12, kv_heads=4, head_dim=64, rotary=RotaryHalves()), rank=128
    ),
    "`Gated`, `MultiHead` inside": Gated(inner=MultiHead(num_heads=12, head_dim=64)),
}
"""A layer of each formulation, in common sizes."""

LENGTH = 256

HEAD = """# Attention kernels

<!-- Generated: python -m docs.kernels > docs/kernels.md -->

Every formulation ends in `headjax.attention.attend`, which has several exact kernels. Kernels differ in speed, memory
and capabilities. `Compute(attention="auto")` takes the first kernel that fits the call, and `einsum`, the reference, as
the last; `headjax.attention.explain(...)` returns the choice with its reason, which is logged once. A kernel named
explicitly is taken or refused with a `KernelError` that gives the reason, never replaced.
"""


def markdown() -> str:
    """Return the whole page."""
    return "\n".join([HEAD, *_kernels(), *_preferences(), *_formulations()]) + "\n"


def answer(attention: Attention, kernel: str) -> str:
    """Return `yes`, or the reason why a kernel cannot compute a formulation with causal mask and padding."""
    can = KERNELS[kernel].can
    try:
        explain(
            attention,
            query_length=LENGTH,
            dtype="bfloat16" if "bfloat16" in can.dtypes else can.dtypes[0],
            causal=True,
            padding=True,
            implementation=kernel,
            platform=can.platforms[0],
        )
    except KernelError as error:
        return error.reason
    return "yes"


def _kernels() -> list[str]:
    lines = ["## Capabilities", ""]
    lines += [f"* `{name}`: {kernel.about}." for name, kernel in KERNELS.items()]
    rows = [[f"`{name}`", *_capabilities(kernel.can)] for name, kernel in KERNELS.items()]
    head = [
        "kernel",
        "runs on",
        "types",
        "masks",
        "bias",
        "dropout",
        "probabilities",
        "value_dim != qk_dim",
        "fewer KV heads",
        "limits",
    ]
    notes = [
        "Masks: `causal`; `keys` (padding); `segments` (packed examples); `offset` (decoding with a cache); `window`",
        "(sliding windows), whose distances may be between `positions` (decoding past padding). A bias on `keys` is",
        "the same for every query (content bias); a `full` one is any (relative positions). Padding sizes with zeros",
        "and repeating heads are exact and cost memory. Where a query may see no key at all, `einsum` and `xla` give",
        "the average of all values, the Pallas kernels that of some.",
    ]
    return [*lines, "", *_table(head, rows), "", *notes, ""]


def _capabilities(can: Capabilities) -> Sequence[str]:
    limits = []
    if can.max_dim is not None:
        limits.append(f"sizes up to {can.max_dim}")
    if can.length_multiple > 1:
        limits.append(f"lengths in multiples of {can.length_multiple}")
    if can.needs_mixing:
        limits.append("collaborative attention only")
    if can.bfloat16_generation:
        limits.append(f"bfloat16 from TPU v{can.bfloat16_generation} on")
    if not can.partitioned:
        limits.append("several devices need a current mesh (`jax.set_mesh`; training sets one)")
    kv_heads = {
        "free": "yes",
        "grouped": "yes; repeated where their numbers differ",
        "shared": "one key, a value per head",
    }
    return [
        ", ".join(can.platforms),
        ", ".join(can.dtypes),
        "all" if can.masks == ALL_MASKS else ", ".join(sorted(can.masks)),
        ", ".join(kind for kind in can.biases if kind != "none") or "no",
        "yes" if can.dropout else "no",
        "yes" if can.probabilities else "no",
        {"free": "yes", "padded": "padded with zeros"}[can.value_dim],
        kv_heads[can.kv_heads],
        "; ".join(limits) or "none",
    ]


def _preferences() -> list[str]:
    lines = ["## The order of `auto`", ""]
    for platform, names in PREFERRED.items():
        lines.append(f"* {platform}: {', '.join(f'`{name}`' for name in (*names, 'einsum'))}")
    lines += ["", "A call that returns probabilities (a probe, `attention=True`) takes `einsum`.", ""]
    return lines


def _formulations() -> list[str]:
    answers = {name: [answer(attention, kernel) for kernel in KERNELS] for name, attention in EXAMPLES.items()}
    reasons = [each for each in dict.fromkeys(itertools.chain(*answers.values())) if each != "yes"]
    cells = {"yes": "yes"} | {reason: f"no ({number})" for number, reason in enumerate(reasons, start=1)}
    rows = [[name, *(cells[each] for each in several)] for name, several in answers.items()]
    return [
        "## Which formulation can use which kernel",
        "",
        f"Self-attention of {LENGTH} tokens in bfloat16, causal mask and padding, no dropout, each on its platform.",
        "",
        *_table(["formulation", *(f"`{kernel}`" for kernel in KERNELS)], rows),
        "",
        *(f"{number}. {reason}" for number, reason in enumerate(reasons, start=1)),
    ]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_line(head), _line(["---"] * len(head)), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.stdout.write(markdown())
