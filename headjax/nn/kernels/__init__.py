"""Attention kernels, and the choice among them."""

from headjax.nn.kernels.choose import KERNELS, Kernel, choose, refusal, target

__all__ = ["KERNELS", "Kernel", "choose", "refusal", "target"]
