"""Goals of `headjax prune`, and units that go with the heads."""

import dataclasses

import pytest

from headjax.attention import Grouped
from headjax.commands.ablate import size_in_bytes
from headjax.commands.orderings import GoalOptions, Ordering, budget_of
from headjax.core.fields import Amount
from headjax.core.progress import silent
from headjax.models.model import Model, load
from tests import tiny

GROUPED = Grouped(num_heads=4, kv_heads=2, head_dim=4)
HEADS = [f"decoder/{layer}/{head}" for layer in range(2) for head in range(2)]
TASK = "--task text.txt --limit 16 --batch-size 8"


@pytest.mark.parametrize(
    ("read", "text", "amount"),
    [
        (budget_of, "60%", Amount(0.6, True)),
        (budget_of, "1.5e9", Amount(1.5e9, False)),
        (size_in_bytes, "1.5GB", 1_500_000_000),
        (size_in_bytes, "512kb", 512_000),
        (size_in_bytes, "77", 77),
    ],
)
def test_text_becomes_an_amount(read, text, amount):
    assert read(text) == amount


@pytest.mark.parametrize(
    ("read", "text"),
    [*((budget_of, text) for text in ("", "0", "-1", "101%", "many", "1e999", "nan")), (size_in_bytes, "0MB")],
)
def test_other_text_is_no_amount(read, text):
    with pytest.raises(ValueError, match=r"expected a number such as 2e7|must be positive"):
        read(text)


def attentions(path):
    layers = load(path).config.decoder.layers
    return [dataclasses.replace(layer.attention, head_ids=None, kv_index=None) for layer in layers]


@pytest.mark.parametrize(
    "goal, heads, groups",
    [
        ("--remove 4", 2, 2),
        ("--remove 50% --whole-groups", 2, 1),
        ("--remove 0", 4, 2),
        ("--remove 4 --steps 2", 2, 2),
    ],
)
def test_every_layer_keeps_as_many_heads_in_as_many_groups(run, tmp_path, goal, heads, groups):
    data = run(f"prune grouped OUT/out --by random --uniform {goal}").data
    assert (data["heads_per_layer"], data["groups_per_layer"]) == (heads, groups)
    assert attentions(tmp_path / "out") == [Grouped(num_heads=heads, kv_heads=groups, head_dim=4)] * 2


def test_the_number_decides_between_heads_of_each_group_and_whole_groups(run, tmp_path):
    layer = tiny.layer(Grouped(num_heads=6, kv_heads=3, head_dim=4))
    tiny.model(tiny.decoder_config(layer, layer)).save(tmp_path / "model")
    for count, groups in ((6, 3), (8, 1)):
        data = run(f"prune OUT/model OUT/{count} --by random --uniform --remove {count}").data
        assert data["groups_per_layer"] == groups


def test_whole_groups_of_any_layer(run):
    gone = run("prune grouped OUT/out --by random --whole-groups --remove 30%").data["removed"]
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
@pytest.mark.parametrize(("words", "kept"), [("--max-drop 1e12", 1), ("--remove 50% --steps 2", 1)])
def test_goals_that_measure_are_uniform_too(run, words, kept):
    data = run(f"prune model OUT/out {TASK} {words} --uniform --select validation").data
    left = [sum(name.startswith(f"decoder/{layer}/") for name in data["kept"]) for layer in range(2)]
    assert left == [data["heads_per_layer"]] * 2 == [kept] * 2


@pytest.mark.whole
def test_units_go_with_the_heads(run, folder, tmp_path):
    words = "--remove 1 --by random --reconstruct --calibrate 12 --units 50%"
    data = run(f"prune model OUT/units {TASK} {words}").data
    small, whole = load(tmp_path / "units"), load(folder / "model")
    hidden = {layer.feed_forward.hidden for layer in small.config.decoder.layers}
    before = {layer.feed_forward.hidden for layer in whole.config.decoder.layers}
    assert [count // 2 for count in before] == list(hidden)
    assert data["units_removed"] == {f"decoder/{layer}": min(hidden) for layer in range(2)}
    assert data["agreement"]["after"] < data["agreement"]["before"]
