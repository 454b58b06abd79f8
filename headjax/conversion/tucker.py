"""Multi-head to Tucker attention: shared bases with a full mixing matrix per head, in closed form."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from headjax.attention import Attention, Tucker
from headjax.conversion.shared_key import (
    has_content_bias,
    roots,
    scaled_query_key,
    shared_key_fields,
    shared_key_params,
    weighted,
)
from headjax.conversion.subspaces import TuckerFactors, tucker
from headjax.conversion.target import Converted, Site, Target, multi_head_of, require_no_rotary, require_rank


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToTucker(Target):
    """All heads share one query and one key basis, between which each has a matrix of its own.

        W_Q^h W_K^hT ~ W_Q M_h W_K^T

    Collaborative attention is the case of diagonal M_h, so the error at equal rank is at most its error, for
    rank * key_rank numbers per head instead of rank. Scale and biases are treated alike. Exact when the ranks reach
    those of the heads' queries and keys together.

    Attributes:
        rank: size of the shared query.
        key_rank: size of the shared key; None is `rank`.
        sweeps: rounds of orthogonal iteration after the closed-form start.
    """

    name: ClassVar[str] = "tucker"

    rank: int
    key_rank: int | None = None
    sweeps: int = 10

    @property
    def ranks(self) -> tuple[int, int]:
        """Sizes of the shared query and key."""
        return self.rank, self.rank if self.key_rank is None else self.key_rank

    def check(self, attention: Attention, width: int, memory_width: int) -> None:
        source = multi_head_of(attention)
        require_no_rotary(source, "tucker")
        size = source.num_heads * source.head_dim
        for field, rank, inputs in zip(("rank", "key_rank"), self.ranks, (width, memory_width), strict=True):
            require_rank(field, rank, min(inputs, size), "min(width, num_heads * head_dim)")

    def convert(self, sites: Sequence[Site], seed: int) -> list[Converted]:
        return [self._layer(site) for site in sites]

    def _layer(self, site: Site) -> Converted:
        weights = roots(site)
        found = tucker(weighted(scaled_query_key(site), weights), *self.ranks, self.sweeps)
        if weights is not None:
            found = TuckerFactors(weights[0].inverse @ found.left, found.core, weights[1].inverse @ found.right)
        approximation = found.products()
        fields = shared_key_fields(site.multi_head, content_bias=has_content_bias(site, approximation))
        config = Tucker(query_rank=self.ranks[0], key_rank=self.ranks[1], **fields)
        params = shared_key_params(site, approximation)
        return Converted(config, params | {"query": found.left, "mixing": found.core, "key": found.right})
