"""Goals of `headjax prune`: budgets of parameters and operations, and units that go with the heads."""

import dataclasses
import json

import pytest

from headjax.attention import Grouped
from headjax.cli import main
from headjax.commands.goals import GoalOptions, Ordering, budget_of
from headjax.core.fields import Amount
from headjax.core.progress import silent
from headjax.heads.pruning import prune
from headjax.models.model import Model, load
from tests import tiny

GROUPED = Grouped(num_heads=4, kv_heads=2, head_dim=4)
HEADS = [f"decoder/{layer}/{head}" for layer in range(2) for head in range(2)]


def test_text_becomes_a_budget():
    assert budget_of("60%") == Amount(0.6, True)
    assert budget_of("1.5e9") == Amount(1.5e9, False)
    assert (budget_of("60%").of(50.0), budget_of("20").of(50.0)) == (30.0, 20.0)


@pytest.mark.parametrize("text", ["", "0", "-1", "101%", "many", "1e999", "nan"])
def test_other_text_is_no_budget(text):
    with pytest.raises(ValueError, match="expected a number such as 2e7, or 60%"):
        budget_of(text)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model with grouped heads."""
    folder = tmp_path_factory.mktemp("grouped")
    tiny.model(tiny.decoder_config(tiny.layer(GROUPED), tiny.layer(GROUPED))).save(folder / "grouped")
    return folder


def attentions(folder):
    layers = load(folder).config.decoder.layers
    return [dataclasses.replace(layer.attention, head_ids=None, kv_index=None) for layer in layers]


@pytest.mark.parametrize(
    "goal, heads, groups",
    [
        (("--remove", "4", "--uniform"), 2, 2),
        (("--remove", "50%", "--uniform", "--whole-groups"), 2, 1),
        (("--remove", "0", "--uniform"), 4, 2),
        (("--parameters", "90%", "--uniform"), 2, 2),
        (("--flops", "99%", "--uniform", "--whole-groups"), 2, 1),
        (("--remove", "4", "--uniform", "--steps", "2"), 2, 2),
    ],
)
def test_every_layer_keeps_as_many_heads_in_as_many_groups(models, tmp_path, capsys, goal, heads, groups):
    assert main(["prune", str(models / "grouped"), str(tmp_path / "out"), "--by", "random", *goal, "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["heads_per_layer"], data["groups_per_layer"]) == (heads, groups)
    assert attentions(tmp_path / "out") == [Grouped(num_heads=heads, kv_heads=groups, head_dim=4)] * 2


def test_the_number_decides_between_heads_of_each_group_and_whole_groups(tmp_path, capsys):
    layer = tiny.layer(Grouped(num_heads=6, kv_heads=3, head_dim=4))
    tiny.model(tiny.decoder_config(layer, layer)).save(tmp_path / "model")
    for count, groups in (("6", 3), ("8", 1)):
        words = ["prune", str(tmp_path / "model"), str(tmp_path / count), "--by", "random", "--uniform"]
        assert main([*words, "--remove", count, "--json", "-"]) == 0
        assert json.loads(capsys.readouterr().out)["groups_per_layer"] == groups


def test_whole_groups_of_any_layer(models, tmp_path, capsys):
    words = ["prune", str(models / "grouped"), "--by", "random", "--whole-groups", "--remove"]
    assert main([*words, "30%", str(tmp_path / "out"), "--json", "-"]) == 0
    gone = json.loads(capsys.readouterr().out)["removed"]
    assert len(gone) == 2, "2.4 heads are one group"
    assert len({(name.split("/")[1], int(name.split("/")[2]) // 2) for name in gone}) == 1


def test_rounds_end_between_whole_removals():
    config = tiny.decoder_config(tiny.layer(GROUPED), tiny.layer(GROUPED))

    def rounds(count, **fields):
        options = GoalOptions(model="", remove=str(count), **fields)
        return Ordering(Model(config, {}), None, options, silent).rounds(count)

    assert rounds(6, steps=3) == [2, 4, 6]
    assert rounds(6, steps=4, whole_groups=True) == [2, 2, 4, 6]
    assert rounds(4, steps=2, uniform=True) == [0, 4]


@pytest.mark.whole
@pytest.mark.parametrize("words", [("--max-drop", "1e12"), ("--speed-up", "1"), ("--remove", "50%", "--steps", "2")])
def test_goals_that_measure_are_uniform_too(run, folder, words):
    data = run("prune", *words, "--uniform", "--select", "validation", out=f"uniform{words[-1]}")
    kept = [sum(name.startswith(f"decoder/{layer}/") for name in data["kept"]) for layer in range(2)]
    assert kept == [data["heads_per_layer"]] * 2
    assert kept[0] == (2 if words[0] == "--speed-up" else 1)


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
