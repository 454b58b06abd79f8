"""Attention kernels, a table of their capabilities, and the choice among them."""

from headjax.attention.kernels.choose import KERNELS, Capabilities, Choice, Kernel, Request, choose, refusal, target

__all__ = ["KERNELS", "Capabilities", "Choice", "Kernel", "Request", "choose", "refusal", "target"]
