"""Measure the effect of removing each head, or of leaving a layer only one, on the loss and on any metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import jax
import numpy as np

from headjax.core.errors import DataError, HeadjaxError
from headjax.core.fields import unknown_name
from headjax.core.short import brief
from headjax.heads.head_id import HeadId
from headjax.heads.significance import Comparison, t_test
from headjax.models.config import Batch, Output

Metric = Callable[[Output, Batch], jax.Array]
"""Function of a model's output and its batch that JAX can trace; one value per example, `[batch]`, higher is better."""

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

    def compare(
        self, metric: str = "loss", test: Callable[[np.ndarray, np.ndarray], Comparison] = t_test
    ) -> dict[HeadId, Comparison]:
        """Return by head a paired test of its ablation; losses are means over an example's targets."""
        self._require(metric)
        weights = self.weights[metric]
        baseline = self.baseline[metric] / weights
        rows = self.ablated[metric] / weights[None, :]
        return {head: test(baseline, row) for head, row in zip(self.heads, rows, strict=True)}

    def _require(self, metric: str) -> None:
        if metric not in self.baseline:
            raise HeadjaxError(f"metric: {unknown_name('metric', metric, self.baseline)}")


class Measured(NamedTuple):
    """Per-example values, `[batch]` or `[variants, batch]`."""

    values: dict[str, Any]
    targets: Any


def require_mode(mode: str) -> None:
    """Raise `HeadjaxError` unless there is such a mode of ablation."""
    if mode not in get_args(Mode):
        raise HeadjaxError(f"mode: {unknown_name('mode', str(mode), get_args(Mode))}")


def ablated_row(gates: Any, column: int, groups: np.ndarray, mode: Mode) -> np.ndarray:
    """Return the gates of a layer under the ablation of a head."""
    row = np.array(gates, np.float32)
    if mode == "all-but-one":
        return np.eye(len(row), dtype=np.float32)[column]
    row[np.flatnonzero(groups == groups[column]) if mode == "group" else column] = 0.0
    return row


def collect(
    mode: Mode, heads: tuple[HeadId, ...], baseline: list[Measured], ablated: Mapping[HeadId, list[Measured]]
) -> Ablation:
    """Join the values of all batches and drop examples without targets."""
    targets = np.concatenate([measured.targets for measured in baseline]) if baseline else np.zeros(0)
    present = targets > 0
    if not present.any():
        raise DataError("batches: there is no example with a target to ablate heads on")

    def joined(measured: list[Measured], name: str) -> np.ndarray:
        return np.concatenate([batch.values[name] for batch in measured]).astype(np.float64)[present]

    names = list(baseline[0].values)
    return Ablation(
        mode,
        heads,
        baseline={name: joined(baseline, name) for name in names},
        ablated={
            name: np.array([joined(ablated[head], name) for head in heads]).reshape(len(heads), present.sum())
            for name in names
        },
        weights={name: (targets if name == "loss" else np.ones_like(targets))[present] for name in names},
    )
