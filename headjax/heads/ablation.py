"""The effect of removing each head, or of leaving a layer only one, on the loss and on any metric."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.core.fields import unknown_name
from headjax.core.short import brief
from headjax.heads.head_id import HeadId

Mode = Literal["each", "all-but-one", "group"]


class Ablation(NamedTuple):
    """Effects of removing heads, example by example.

    Attributes:
        mode: `each` if the head was removed, `all-but-one` if all others of its layer were, `group` if all heads that
            read its KV head were.
        heads: Ablated heads, by stack, layer and position.
        baseline: By metric, `[examples]` values of the model itself; `loss` is the summed loss of an example, nats.
        ablated: By metric, `[heads, examples]` values with the ablation of each head.
        weights: By metric, `[examples]` weights in the mean: an example's number of targets for `loss`, else 1.
    """

    mode: Mode
    heads: tuple[HeadId, ...]
    baseline: dict[str, np.ndarray]
    ablated: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]

    def __repr__(self) -> str:
        return brief(self)

    def mean(self, metric: str = "loss") -> float:
        """Return the metric of the model itself; the loss is per target."""
        self._require(metric)
        return float(self.baseline[metric].sum() / self.weights[metric].sum())

    def effects(self, metric: str = "loss") -> dict[HeadId, float]:
        """Return by head the metric with its ablation minus the metric of the model itself."""
        self._require(metric)
        change = (self.ablated[metric] - self.baseline[metric][None, :]).sum(axis=1) / self.weights[metric].sum()
        return dict(zip(self.heads, change.tolist(), strict=True))

    def _require(self, metric: str) -> None:
        if metric not in self.baseline:
            raise HeadjaxError(f"metric: {unknown_name('metric', metric, self.baseline)}")


def best_heads(ablation: Ablation) -> list[HeadId]:
    """Return the head of every layer whose loss is least when it is left alone (Michel et al. 2019, tables 2 and 3)."""
    effects, layers = ablation.effects(), dict[tuple[str, int], list[HeadId]]()
    for head in ablation.heads:
        layers.setdefault((head.stack, head.layer), []).append(head)
    return [min(heads, key=effects.__getitem__) for heads in layers.values()]
