"""Convert head by head, to another size of heads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import jax.numpy as jnp

from headjax.conversion.rope import is_fully_rotary, is_rotary, keep_frequencies
from headjax.conversion.sharing import fit_query_key, fit_value_output
from headjax.conversion.target import ConversionInput, Target, multi_head_of
from headjax.core.errors import require
from headjax.core.fields import Size
from headjax.core.memory import check_memory, memory_of
from headjax.core.modules import declared
from headjax.core.tensors import Params, flatten, nested
from headjax.nn import Kind
from headjax.nn.module import AttentionModule

_FLOAT32 = 4
"""Bytes of a number: layers are converted in float32."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToFixed(Target):
    """Heads of a given size (Bhojanapalli et al. 2020), independent of width / num_heads.

    Larger heads are the old ones with zeros appended, an exact embedding of the standard layer in the larger class
    (section 3.1 of the ICLR version). Smaller heads are, one by one, the best of their size for the products
    W_Q^h W_K^hT and W_V^h W_O^h, so that going up and down again changes nothing. The logits keep their scale.
    Heads that rotate with their positions keep the rotary frequencies that carry most of their squared logits instead.

    Attributes:
        head_dim: New size of queries and keys.
        value_dim: New size of values; None is head_dim.
    """

    name: ClassVar[str] = "fixed"

    head_dim: Size
    value_dim: Size | None = None

    @property
    def values(self) -> int:
        """New size of values."""
        return self.head_dim if self.value_dim is None else self.value_dim

    def check(self, attention: Kind, width: int, memory_width: int) -> None:
        source = multi_head_of(attention)
        if is_rotary(source) and self.head_dim < source.head_dim:
            require(is_fully_rotary(source), "rotary", "rotates some dimensions alone, which cannot be fewer")
            message = f"heads that rotate keep whole pairs of dimensions, so it must be even, got {self.head_dim}"
            require(self.head_dim % 2 == 0, "head_dim", message)
        memory = memory_of()
        for name, size in {"head_dim": self.head_dim, "value_dim": self.values}.items():
            field = "head_dim" if self.value_dim is None else name
            needed = _FLOAT32 * source.num_heads * size * (width + memory_width)
            check_memory(field, needed, memory, f"{source.num_heads} heads of {size:,} dimensions")

    def convert(self, layers: Sequence[ConversionInput], seed: int) -> list[AttentionModule]:
        return [self._layer(layer) for layer in layers]

    def _layer(self, layer: ConversionInput) -> AttentionModule:
        source = layer.attention
        rotary = source.rotary
        if rotary is not None and rotary.dim is None:
            # Appended dimensions must neither rotate nor change the rates of the others.
            rotary = dataclasses.replace(rotary, dim=source.head_dim)
        shrinks = self.head_dim < source.head_dim or self.values < source.values
        biased = source.projection_bias or (layer.moments is not None and shrinks)
        params, frequencies = dict(layer.params), None
        heads = [(head,) for head in range(source.num_heads)]
        if self.head_dim < source.head_dim and is_rotary(source):
            frequencies, kept = keep_frequencies(layer, self.head_dim // 2)
            params |= kept
        elif self.head_dim < source.head_dim:
            params |= fit_query_key(layer, heads, self.head_dim)
            params["key_bias"] = jnp.zeros(params["query_bias"].shape)
        if self.values < source.values:
            params |= fit_value_output(layer, heads, self.values)
        config = source.replace(
            head_dim=self.head_dim,
            value_dim=self.value_dim,
            scale=source.logit_scale,
            rotary=rotary,
            frequencies=frequencies,
            projection_bias=biased,
        )
        arrays = flatten(_padded(params, self.head_dim, self.values))
        weights = flatten(declared(config.module(params["query"].shape[0], params["key"].shape[0])))
        by_path = {path: arrays[path] if path in arrays else jnp.zeros(each.shape) for path, each in weights.items()}
        return layer.module.like(config, nested(by_path))


def _padded(params: Params, head_dim: int, value_dim: int) -> Params:
    """Return queries, keys, values and outputs with zeros appended up to the new sizes."""
    sizes = {"query": head_dim, "key": head_dim, "value": value_dim}
    padded = dict(params)
    for name, array in params.items():
        if name == "output":
            kernel = array["kernel"]
            padded[name] = array | {"kernel": jnp.pad(kernel, ((0, 0), (0, value_dim - kernel.shape[1]), (0, 0)))}
        else:
            missing = sizes[name.removesuffix("_bias")] - array.shape[-1]
            padded[name] = jnp.pad(array, (*((0, 0),) * (array.ndim - 1), (0, missing)))
    return padded
