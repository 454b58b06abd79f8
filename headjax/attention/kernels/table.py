"""Every attention kernel by name, and what each can do: the one table behind refusals, `auto` and docs/kernels.md."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple

from headjax.attention.attended import Attended
from headjax.attention.kernels.capabilities import Capabilities
from headjax.attention.kernels.shapes import BLOCK


class Kernel(NamedTuple):
    """An attention kernel.

    Attributes:
        location: `module:function` below this package, imported when first used.
        can: what it can do.
        about: one line for the documentation.
    """

    location: str
    can: Capabilities
    about: str

    def load(self) -> Callable[..., Attended]:
        """The function."""
        module, _, function = self.location.partition(":")
        loaded = importlib.import_module(f"headjax.attention.kernels.{module}")
        return getattr(loaded, function)


KERNELS: dict[str, Kernel] = {
    "einsum": Kernel(
        "einsum:attend",
        Capabilities(
            platforms=("cpu", "gpu", "tpu"), dropout=True, probabilities=True, across_heads=True, kv_heads="free"
        ),
        "the reference: plain einsums that hold every probability",
    ),
    "xla": Kernel(
        "dot_product:attend_xla",
        Capabilities(platforms=("cpu", "gpu", "tpu"), value_dim="padded"),
        "`jax.nn.dot_product_attention`, compiled by XLA",
    ),
    "cudnn": Kernel(
        "dot_product:attend_cudnn",
        # Odd lengths with a bias have no backward pass in cuDNN, and masks reach it as biases.
        Capabilities(
            platforms=("gpu",), dtypes=("bfloat16", "float16"), value_dim="padded", max_dim=128, length_multiple=2
        ),
        "cuDNN's fused attention, through `jax.nn`",
    ),
    "splash": Kernel(
        "splash:attend",
        Capabilities(
            platforms=("tpu",),
            dtypes=("float32", "bfloat16"),
            masks=frozenset({"causal", "keys", "segments"}),
            biases=("none",),
            length_multiple=BLOCK,
            bfloat16_generation=4,
            partitioned=False,
        ),
        "JAX's Pallas flash attention that skips masked blocks",
    ),
    "collaborative_pallas": Kernel(
        "collaborative:attend",
        Capabilities(
            platforms=("tpu", "cpu"),
            dtypes=("float32", "bfloat16"),
            masks=frozenset({"causal", "keys", "segments"}),
            biases=("none", "keys"),
            needs_mixing=True,
            kv_heads="shared",
            bfloat16_generation=4,
            partitioned=False,
        ),
        "our Pallas flash attention that holds the key once and mixes queries inside (interpreted on CPUs, for tests)",
    ),
}
