"""Attention kernels: one file each, what each can do in one table, and the choice among them."""

from headjax.attention.kernels.capabilities import Capabilities, refusal
from headjax.attention.kernels.choose import Choice, choose, target
from headjax.attention.kernels.request import Request
from headjax.attention.kernels.table import KERNELS, Kernel

__all__ = ["KERNELS", "Capabilities", "Choice", "Kernel", "Request", "choose", "refusal", "target"]
