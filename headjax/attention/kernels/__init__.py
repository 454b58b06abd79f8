"""Attention kernels, and the choice among them."""

from headjax.attention.kernels.choose import KERNELS, Kernel, choose, refusal, target

__all__ = ["KERNELS", "Kernel", "choose", "refusal", "target"]
