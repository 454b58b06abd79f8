"""T5: one position bias for all layers, logits that are scaled where they are tied."""

from __future__ import annotations

import pytest

from headjax.heads.pruning import prune
from headjax.hub import to_huggingface
from headjax.hub.checking import max_difference
from tests.hub.directories import (
    T5,
    model_of,
    refused_export,
    rounding,
)


@pytest.mark.parametrize("columns", [(0, 2), (0, 1)])
def test_t5_shares_a_position_bias(tmp_path, columns):
    """Layers that kept the same heads share smaller tables; layers that kept others do not."""
    model = model_of(T5)
    first = [f"encoder/0/{head}" for head in (0, 2)]
    rest = [f"{layer}/{head}" for layer in ("decoder/0", "decoder/1", "cross/0", "cross/1") for head in (0, 2)]
    smaller = prune(model, [*first, *rest, *(f"encoder/1/{head}" for head in columns)])
    expected = "native" if columns == (0, 2) else "padded"
    assert to_huggingface(smaller, tmp_path / "out").layout == expected
    assert max_difference(smaller, tmp_path / "out") < rounding(smaller)
    if expected == "padded":
        assert "kept different heads and share one position bias" in refused_export(smaller, tmp_path / "x", "native")
