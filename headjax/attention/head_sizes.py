"""What the sizes of heads say that have queries, keys and values of their own size."""

from __future__ import annotations

from headjax.attention.attend import default_scale


class HeadSizes:
    """Of formulations with these fields.

    Attributes:
        head_dim: size of each query and key.
        value_dim: size of each value; None is `head_dim`.
        scale: multiplies the dot products; None is 1 / sqrt(head_dim).
    """

    head_dim: int
    value_dim: int | None
    scale: float | None

    @property
    def values(self) -> int:
        """Size of each value."""
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def logit_scale(self) -> float:
        """What multiplies the dot products."""
        return default_scale(self.head_dim) if self.scale is None else self.scale
