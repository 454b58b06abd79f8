"""The depth benchmark on models small enough for a test: the deep one does the same work in more layers."""

from __future__ import annotations

import pytest

from headjax.bench import depth
from headjax.models.encoder import Bert
from headjax.models.sublayers import Dense
from headjax.models.tasks import MaskedLanguageModel
from tests import tiny


@pytest.mark.whole
def test_both_models_are_compiled_and_run(monkeypatch):
    small = Bert(
        vocab_size=31_000,
        width=8,
        num_layers=1,
        attention=tiny.multi_head(2),
        feed_forward=Dense(16),
        pooler=None,
        task=MaskedLanguageModel(),
        dropout=0.0,
        attention_dropout=0.0,
    )
    monkeypatch.setattr(depth, "bert", lambda heads, layers: small.build())
    for name, value in (("REPEATS", 1), ("STEPS", 2), ("BATCH", 1), ("LENGTH", 8)):
        monkeypatch.setattr(depth, name, value)
    result = depth.run()
    rows = result.tables[0].rows
    assert [row[0] for row in rows] == ["12 heads x 12 layers", "1 head x 144 layers"]
    assert rows[1][2] == rows[0][2], "as much work"
    assert result.ours["parameters"] == result.peer["parameters"] + 6 * 8
    assert result.ours["step"]["repeats"] == result.peer["step"]["repeats"] == 2
    expected = result.ours["step"]["median"] / result.peer["step"]["median"]
    assert result.ours["step_ratio"] == pytest.approx(expected)
