"""Attention kernels, a table of their capabilities, and the choice among them."""

from headjax.attention.kernels.choose import KERNELS, CallFacts, Capabilities, Choice, Kernel, choose, refusal, target

__all__ = ["KERNELS", "CallFacts", "Capabilities", "Choice", "Kernel", "choose", "refusal", "target"]
