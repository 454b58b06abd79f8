"""Attention kernels, a table of their capabilities, and the choice among them."""

from headjax.attention.kernels.choose import (
    KERNELS,
    CallFacts,
    Capabilities,
    Kernel,
    KernelChoice,
    choose,
    refusal,
    target,
)

__all__ = ["KERNELS", "CallFacts", "Capabilities", "KernelChoice", "Kernel", "choose", "refusal", "target"]
