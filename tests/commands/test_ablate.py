"""`headjax ablate`: effects that agree with real removal, and sizes of memory."""

from __future__ import annotations

import pytest

from headjax.commands.ablate import size_in_bytes
from tests import tiny
from tests.closeness import assert_close, close_to

PERPLEXITY_SUMS = 16 * tiny.SUMS
"""A rounding of the loss, near 4, is four times as large a share of the perplexity."""
HEADS = [f"decoder/{layer}/{head}" for layer in range(2) for head in range(2)]


def test_ablate_agrees_with_pruning(run):
    data = run("ablate", "--mode", "each,all-but-one")
    assert {"baseline", "effect"} <= data.keys()
    assert data["metric"] == "perplexity"
    assert sorted(data["effect"]) == HEADS
    assert set(data["modes"]) == {"each", "all-but-one"}
    pruned = run("prune", "--remove", "decoder/1/0", out="without-one")
    assert pruned["metrics_before"]["perplexity"] == close_to(data["baseline"]["perplexity"], sums=PERPLEXITY_SUMS)
    change = pruned["metrics"]["perplexity"] - pruned["metrics_before"]["perplexity"]
    scale = data["baseline"]["perplexity"]
    assert_close(data["effect"]["decoder/1/0"], change, sums=PERPLEXITY_SUMS, scale=scale)
    # With two heads a layer, keeping one alone is removing the other.
    alone = data["modes"]["all-but-one"]["effect"]["decoder/1/1"]
    assert_close(alone, data["effect"]["decoder/1/0"], sums=PERPLEXITY_SUMS, scale=scale)


def test_sizes():
    assert size_in_bytes("1.5GB") == 1_500_000_000
    assert size_in_bytes("512kb") == 512_000
    assert size_in_bytes("77") == 77
    with pytest.raises(ValueError, match="must be positive"):
        size_in_bytes("0MB")
