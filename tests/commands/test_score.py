"""`headjax score`: the keys of its JSON, and scores normalised by layer."""

from __future__ import annotations

from tests import tiny
from tests.closeness import close_to

HEADS = [f"decoder/{layer}/{head}" for layer in range(2) for head in range(2)]


def test_score(run):
    data = run("score")
    assert {"scores", "examples", "seconds"} <= data.keys()
    assert data["examples"] == 16
    for name in ("importance", "importance_token", "importance_batch", "fisher", "entropy", "hies", "output_norm"):
        assert sorted(data["scores"][name]) == HEADS
    importance = data["scores"]["importance"]
    normal = run("score", "--normalize")["scores"]["importance"]
    size = (importance["decoder/0/0"] ** 2 + importance["decoder/0/1"] ** 2) ** 0.5
    assert normal["decoder/0/1"] == close_to(importance["decoder/0/1"] / size, sums=2 * tiny.SUMS)
