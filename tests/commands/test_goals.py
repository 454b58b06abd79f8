"""Goals of `headjax prune`: budgets of parameters and operations, and units that go with the heads."""

from __future__ import annotations

import pytest

from headjax.commands.goals import budget_of
from headjax.core.fields import Amount
from headjax.heads.pruning import prune
from headjax.models.model import load

HEADS = [f"decoder/{layer}/{head}" for layer in range(2) for head in range(2)]


def test_text_becomes_a_budget():
    assert budget_of("60%") == Amount(0.6, True)
    assert budget_of("1.5e9") == Amount(1.5e9, False)
    assert (budget_of("60%").of(50.0), budget_of("20").of(50.0)) == (30.0, 20.0)


@pytest.mark.parametrize("text", ["", "0", "-1", "101%", "many", "1e999", "nan"])
def test_other_text_is_no_budget(text):
    with pytest.raises(ValueError, match="expected a number such as 2e7, or 60%"):
        budget_of(text)


@pytest.mark.whole
def test_as_few_heads_as_a_budget_asks_for(run, folder):
    whole = load(folder / "model")
    least = prune(whole, HEADS[1:]).num_parameters
    data = run("prune", "--parameters", str(least), "--by", "random", out="small")
    assert data["parameters"] == least
    assert len(data["removed"]) == 3
    share = run("prune", "--flops", "99.9%", "--by", "random", "--length", "8", out="cheaper")
    assert len(share["removed"]) == 1
    assert share["flops"] == load(folder / "cheaper").config.flops(8) < share["flops_before"] == whole.config.flops(8)


@pytest.mark.whole
def test_units_go_with_the_heads(run, folder):
    words = ("--remove", "1", "--by", "random", "--reconstruct", "--calibrate", "12", "--units", "50%")
    data = run("prune", *words, out="units")
    small = load(folder / "units")
    hidden = {layer.feed_forward.hidden for layer in small.config.decoder.layers}
    before = {layer.feed_forward.hidden for layer in load(folder / "model").config.decoder.layers}
    assert [count // 2 for count in before] == list(hidden)
    assert data["units_removed"] == {f"decoder/{layer}": min(hidden) for layer in range(2)}
    assert data["agreement"]["after"] < data["agreement"]["before"]
