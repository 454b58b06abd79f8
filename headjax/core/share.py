"""The part of one process among several."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Share:
    """One of `count` equal parts, by its index: of the rows that hosts prepare, of the rows of every global batch."""

    index: int = 0
    count: int = 1
