"""The result of `headjax shrink`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headjax.commands.outputs import ABSENT, ChangedResult, key
from headjax.report.tables import Table

if TYPE_CHECKING:
    from headjax.shrinking.choice import ChoiceSummary


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result(ChangedResult):
    """A smaller model."""

    layers: Sequence[Any] = key(
        "`place`, `form`, `heads`, `to`, `units`, `kind`, `level`, `damage`, its costs, `smaller` and `larger`: the "
        "next forms; of a removed layer `no layer`, in the old numbers"
    )
    budget: Mapping[str, Any] = key("`limit`, `whole` and `left` by quantity")
    predicted: Mapping[str, Any] = key("`damage`, the degradation, its lower `bound`, `gap`, `measure`")
    measured: Mapping[str, Any] = key("`damage` on `examples` evaluation examples")
    frontier: Sequence[Any] = key("`quantity`, `share`, `damage`, `costs`, `removed_layers`")
    metric: str = key("the primary metric")
    report: str = key("the page, with `--report`", said="report", default=ABSENT)
    story: ChoiceSummary | None

    def tables(self) -> Sequence[Table]:
        return [*([] if self.story is None else [self.story.layer_table()]), self.comparison()]

    def message(self) -> str:
        if self.story is None:
            return super().message()
        measure, predicted, measured = (self.predicted["measure"], self.predicted["damage"], self.measured["damage"])
        return f"degradation ({measure}): {predicted:.3g} predicted, {measured:.3g} measured; {super().message()}"
