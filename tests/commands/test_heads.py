"""`headjax score`, `ablate`, `prune`, `evaluate`, `inspect` and `report` on one model: their numbers agree."""

import re

import pytest

import headjax
from tests import tiny
from tests.closeness import assert_numbers_close, close_to

PERPLEXITY_SUMS = 16 * tiny.SUMS
"""A rounding of the loss, near 4, is four times as large a share of the perplexity."""
HEADS = [f"decoder/{layer}/{head}" for layer in range(2) for head in range(2)]
TASK = "--task text.txt --limit 16 --batch-size 8"


def actions(path):
    return [entry["action"] for entry in headjax.load(path).history]


def test_prune_removes_what_scores_least(run, tmp_path):
    """Heads of different layers are compared by their share of their layer's importance."""
    scores = run(f"score model {TASK}").data["scores"]["importance_layer"]
    importance = {headjax.HeadId.parse(head): value for head, value in scores.items()}
    data = run(f"prune model OUT/half {TASK} --remove 50%").data
    assert data["removed"] == [str(head) for head in sorted(importance, key=importance.get)[:2]]
    assert sorted(data["kept"] + data["removed"]) == HEADS
    model = headjax.load(tmp_path / "half")
    assert model.num_parameters == data["parameters"] < data["parameters_before"]
    assert data["cache_bytes_per_token"] < data["cache_bytes_per_token_before"]
    change = data["significance"]
    assert (change["metric"], change["low"] <= change["difference"] <= change["high"]) == ("loss", True)
    assert actions(tmp_path / "half") == ["prune"]
    assert model.tokenizer is not None


def test_time_that_is_over_leaves_the_examples_of_the_first_batch(run):
    whole = run("score model --task text.txt --limit 8 --batch-size 8").data
    timed, told = run(f"score model {TASK} --max-time 1e-9")
    assert timed["selection"]["examples"] == timed["examples"] == 8
    assert "Selection: 8 examples" in told
    assert timed["scores"] == whole["scores"]
    timed = run(f"ablate model {TASK} --mode each,all-but-one --max-time 1e-9").data
    whole = run("ablate model --task text.txt --limit 8 --batch-size 8 --mode each,all-but-one").data
    assert timed["evaluation"]["examples"] == 8
    assert timed["modes"] == whole["modes"]


def test_output_projections_are_refitted_and_the_result_says_how(run, tmp_path):
    data, told = run(f"prune model OUT/refitted {TASK} --by reconstruction --reconstruct --calibrate 12 --remove 2")
    assert len(data["removed"]) == 2
    assert data["selection"]["examples"] == 12
    assert "12 calibration examples, 384 tokens." in told
    assert [layer["name"] for layer in data["layers"]][-1] == "decoder/1"
    assert all(layer["held_out"] >= 0.0 for layer in data["layers"])
    assert actions(tmp_path / "refitted") == ["reconstruct", "prune"]
    assert headjax.load(tmp_path / "refitted").num_parameters == data["parameters"] < data["parameters_before"]
    masked = run(f"prune model OUT/masked {TASK} --remove {','.join(data['removed'])}").data["metrics"]["perplexity"]
    assert abs(masked / data["metrics"]["perplexity"] - 1.0) > 1e-4


def test_a_count_is_spent_on_the_chosen_stacks_alone(run):
    task = "--task translation:pairs:en-de --limit 8 --batch-size 8"
    removed = run(f"prune translation OUT/fewer {task} --by random --remove 7 --stacks encoder").data["removed"]
    assert len(removed) == 7
    assert all(head.startswith("encoder/") for head in removed)


def attentions(path):
    return [each.replace(head_ids=None, kv_index=None) for each in headjax.load(path).config.attention]


@pytest.mark.parametrize(("remove", "heads", "groups"), [("60%", 2, 2), ("0", 4, 2)])
def test_every_layer_keeps_as_many_heads_in_as_many_groups(run, tmp_path, remove, heads, groups):
    run(f"prune grouped OUT/out --by random --uniform --remove {remove}")
    assert attentions(tmp_path / "out") == [tiny.grouped(heads, groups, 4)] * 2


def test_the_number_decides_between_heads_of_each_group_and_whole_groups(run, tmp_path):
    layer = tiny.layer(tiny.grouped(6, 3, 4))
    tiny.model(tiny.decoder_config(layer, layer)).save(tmp_path / "model")
    for count, groups in ((6, 3), (8, 1)):
        run(f"prune OUT/model OUT/{count} --by random --uniform --remove {count}")
        assert {attention.kv_heads for attention in attentions(tmp_path / str(count))} == {groups}


def test_a_percentage_takes_whole_groups_and_says_why_no_more(run, tmp_path):
    data, told = run("prune grouped OUT/half --by random --remove 30%")
    assert len(data["removed"]) == 2
    assert sorted(attention.kv_heads for attention in attentions(tmp_path / "half")) == [1, 2]
    assert "--remove" not in told
    data, told = run("prune grouped OUT/none --by random --remove 20%")
    assert data["removed"] == []
    assert "--remove 20%: 0 heads go, not 1: the least that could still go is 2 heads, since KV groups" in told


def test_a_model_beside_itself_and_beside_itself_with_fewer_heads(run):
    run("prune model OUT/fewer --remove decoder/0/0")
    task = "--task text.txt --limit 8 --batch-size 4"
    data, told = run(f"evaluate model OUT/fewer {task}")
    other = data["other"]
    assert other["parameters"][0] > other["parameters"][1]
    assert other["agreement"] > 0
    assert other["measure"].startswith("mean KL(A, B)")
    assert other["test"] == "paired t-test on losses"
    assert 0 <= other["significance"]["p_value"] <= 1
    assert "Paired t-test on losses: OTHER minus MODEL" in told
    same = run(f"evaluate model model {task}").data
    assert same["other"]["agreement"] == pytest.approx(0.0, abs=1e-6)
    assert (
        same["metrics"] == same["other"]["metrics"] == data["metrics"] == run(f"evaluate model {task}").data["metrics"]
    )


def test_ranks_that_capture_variance_rise_with_the_share(run):
    data = run("inspect model --captured-variance").data
    assert list(data["captured_variance"]) == ["decoder/0", "decoder/1"]
    product = data["captured_variance"]["decoder/0"]["product"]
    assert 1 <= product["90%"] <= product["95%"] <= product["99%"] <= 16
    assert "captured_variance" not in run("inspect model").data


def test_the_report_holds_what_the_commands_say(run, tmp_path):
    measured = "--orders importance,random --seeds 1 --calibrate 8 --percentages 50,100"
    data = run(f"report model {TASK} {measured} --out OUT/heads.html").data
    assert data["examples"] == 16
    ablated = run(f"ablate model {TASK}").data
    scale = ablated["baseline"]["perplexity"]
    assert_numbers_close(data["effects"]["effect"], ablated["effect"], sums=PERPLEXITY_SUMS, scale=scale, name="each")
    pruned = run(f"prune model OUT/half {TASK} --remove 50% --by random").data
    half, none = data["curves"]["random"]
    assert (half["removed"], none["removed"]) == (2, 4)
    assert half["value"] == close_to(pruned["metrics"]["perplexity"], sums=PERPLEXITY_SUMS)
    page = (tmp_path / "heads.html").read_text()
    assert page.count("<script>") == 1
    assert not re.search(r'(src|href)="http', page)
    assert "What each head attends to" in page
