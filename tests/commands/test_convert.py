"""`headjax convert`, `sweep` and `grid`: costs, and every trial once and kept."""

import contextlib
import json

import pytest

from headjax.attention import MultiHead
from headjax.cli import main
from headjax.conversion import convert as convert_model
from headjax.core.errors import INTERRUPTED
from headjax.hub import from_huggingface, to_huggingface
from headjax.models.model import load
from tests import tiny
from tests.closeness import assert_trees_equal, close_to
from tests.hub.directories import LLAMA, model_of
from tests.training.test_grid import CONFIG

TASK = "--task text.txt --limit 16 --batch-size 8"


def test_without_a_task_the_model_goes_from_file_to_file(run, folder, tmp_path):
    """With the same arrays, bit by bit, as from memory."""
    run("convert model OUT/streamed --to collaborative:shared_dim=8")
    expected = convert_model(load(folder / "model"), "collaborative:shared_dim=8").model
    found = load(tmp_path / "streamed")
    assert found.config == expected.config
    assert_trees_equal(found.params, expected.params)


def test_convert_says_what_attention_costs(run):
    data, told = run("convert model OUT/shared --to collaborative:shared_dim=12")
    length = data["break_even_length"]
    assert f"takes more FLOPs than before above {length} tokens" in told
    costs = {row["length"]: row for row in data["costs"]}
    assert list(costs) == [64, 128, 256, 512, 1024, 2048]
    assert length < 64
    assert costs[64]["flops"] > costs[64]["flops_before"]
    # Per token and layer one shared key of 12, 16 values and two heads' content, where there were 16 keys and values.
    assert costs[64]["cache"] == 64 * 2 * (12 + 16 + 2)
    assert costs[64]["cache_before"] == 64 * 2 * 32
    steps = [row[name] for row in data["costs"] for name in ("step_seconds_before", "step_seconds")]
    assert all(0.0 < seconds < 1.0 for seconds in steps)
    assert "no more FLOPs than before at any length" in run("convert model OUT/grouped --to grouped:kv_heads=1").told


def test_a_size_is_shared_out_among_layers(run, tmp_path):
    full = run("convert model OUT/full --to collaborative:shared_dim=16").data
    asked = full["parameters"] - 6 * 34
    data = run(f"convert model OUT/small --to collaborative --parameters {asked}").data
    sizes = [layer.shared_dim for layer in load(tmp_path / "small").config.attentions()["decoder"]]
    # One dimension is a column of W_Q and of W_K and a number for each of two heads; ranks are whole blocks of 8.
    assert data["parameters"] == full["parameters"] - (32 - sum(sizes)) * 34 <= asked
    assert sum(sizes) == 24


def test_some_layers_are_converted_and_learn_from_the_original(run, tmp_path):
    data = run(f"convert model OUT/some {TASK} --to collaborative:shared_dim=8 --layers 1 --calibrate 20").data
    assert [error["layer"] for error in data["error_per_layer"]] == [1]
    assert data["selection"]["examples"] == 16  # full batches
    assert isinstance(load(tmp_path / "some").config.attentions()["decoder"][0], MultiHead)
    plain = run(f"convert model OUT/plain {TASK} --to grouped:kv_heads=1").data
    words = "--fine-tune 3 --learning-rate 1e-3 --labels 0"
    tuned = run(f"convert model OUT/learned {TASK} --to grouped:kv_heads=1 {words}").data
    assert [entry["action"] for entry in load(tmp_path / "learned").history] == ["convert", "distill"]
    assert tuned["output_difference"] < plain["output_difference"]


@pytest.mark.parametrize(
    ("to", "layout"), [("grouped:kv_heads=1", "native"), ("latent:rank=4", "padded"), ("gated", None)]
)
def test_convert_says_what_an_imported_model_is_exported_as(to, layout, tmp_path, capsys):
    to_huggingface(model_of(LLAMA), tmp_path / "hf")
    from_huggingface(tmp_path / "hf").save(tmp_path / "model")
    words = [str(tmp_path / "model"), str(tmp_path / "out"), "--to", to, "--json", str(tmp_path / "json")]
    assert main(["convert", *words]) == 0
    export = json.loads((tmp_path / "json").read_text())["export"]
    assert (export["from"], export["layout"]) == ("llama", layout)
    assert ("export to Hugging Face: " in capsys.readouterr().out) == (layout != "native")


def changed(folder, old, new):
    """Changes what a sweep has kept, to see that it is read and not measured again."""
    (path,) = folder.glob("*.json")
    path.write_text(path.read_text().replace(old, new, 1))


def test_every_size_is_tried_once_and_kept(run, tmp_path):
    words = "sweep model OUT --task text.txt --limit 8 --to grouped:kv_heads=2/1 --calibrate 2 --fine-tune 1"
    data = run(words).data
    original, *trials = data["trials"]
    variants = ("plain", "calibrated", "fine-tuned")
    targets = ("grouped:kv_heads=2", "grouped:kv_heads=1")
    assert [(t["to"], t["variant"]) for t in trials] == [(to, variant) for to in targets for variant in variants]
    same, _, trained, plain, calibrated, _ = trials
    assert same["cosine"] == close_to(1.0, sums=tiny.SUMS)
    assert same["metrics"]["perplexity"] == close_to(original["metrics"]["perplexity"], sums=16 * tiny.SUMS)
    assert trained["metrics"]["perplexity"] != same["metrics"]["perplexity"]
    # Each way to convert is best at what it minimises.
    assert plain["relative_error"] < calibrated["relative_error"]
    assert calibrated["logit_error"] < plain["logit_error"]
    assert plain["cosine"] < 0.9999
    assert plain["parameters"] < same["parameters"] == original["parameters"]
    assert 2 * plain["cache"] == same["cache"] == original["cache"] > 0
    assert same["against_original"]["p_value"] > plain["against_original"]["p_value"]
    assert data["test"] == "paired t-test on losses"
    assert (tmp_path / "sweep.png").stat().st_size > 1000
    changed(tmp_path, f'"parameters": {plain["parameters"]}', '"parameters": 1')
    again = run(words).data["trials"]
    assert again[4]["parameters"] == 1
    assert [trial["cosine"] for trial in again] == [trial["cosine"] for trial in data["trials"]]


REMOVALS = "sweep model OUT --task text.txt --limit 8 --calibrate 4 --batch-size 4"


def test_every_removal_is_tried_once_and_kept(run, tmp_path):
    tried = "--remove 25%,50% --by random,importance+normalize --repair none,reconstruct --draws 2"
    data = run(f"{REMOVALS} {tried}").data
    found = data["removals"]
    assert len(found) == 2 * 2 * 2 * 2
    assert {(trial["remove"], trial["removed"]) for trial in found} == {("25%", 1), ("50%", 2)}
    assert (data["agreement"], data["examples"], data["selection"]["examples"]) == ("kl", 8, 4)
    assert data["test"] == "paired t-test on losses"
    assert (tmp_path / "removals.png").stat().st_size > 1000
    for bare, repaired in zip(found[::2], found[1::2], strict=True):
        assert (bare["repair"], repaired["repair"]) == ("none", "reconstruct")
        assert bare["against_none"] is None
        assert repaired["against_none"].keys() == {"difference", "p_value", "low", "high"}
    changed(tmp_path, '"removed": 1', '"removed": 7')
    again = run(f"{REMOVALS} {tried}").data["removals"]
    assert again[0]["removed"] == 7
    assert again[1:] == found[1:]


def test_each_removal_is_kept_and_told_as_it_ends(run, tmp_path, monkeypatch):
    told = []

    @contextlib.contextmanager
    def opened(title, total, unit):
        def update(done, values):
            if title == "removing heads":
                told.append((done, total, dict(values)))
                if len(told) == 1:
                    raise KeyboardInterrupt  # after the first of two repairs

        yield update

    monkeypatch.setattr("headjax.core.progress.shown_on", lambda console: opened)
    words = f"{REMOVALS} --remove 50% --by random --repair none,rescale"
    assert run(words, code=INTERRUPTED).data is None
    (path,) = tmp_path.glob("*.json")
    assert len(json.loads(path.read_text())["found"]) == 1
    first = run(words).data["removals"]
    assert [(done, total) for done, total, _ in told] == [(1, 2), (1, 2), (2, 2)]
    assert told[0][2].keys() == told[1][2].keys() == {"perplexity"}
    # Trials of other examples or another model are others, and replace none.
    run("convert model OUT/other --to grouped:kv_heads=1")
    for changed_words in (words.replace("--limit 8", "--limit 4"), words.replace("model", "OUT/other")):
        assert run(changed_words).data["removals"][0]["metrics"] != first[0]["metrics"]
    assert run(words).data["removals"] == first


@pytest.fixture
def grid(tmp_path):
    """Runs a grid of four cells, by either of its commands; returns the exit code and the JSON."""
    (tmp_path / "text.txt").write_text("the heads of a model attend to many things. " * 20)
    (tmp_path / "config.py").write_text(CONFIG.replace("PATH", repr(str(tmp_path / "text.txt"))))
    words = [str(tmp_path / "out"), "--config", str(tmp_path / "config.py"), "--over", "peak=0.01/1e30", "--seeds", "2"]

    def run(command, *more):
        code = main([command, *words, *more, "--json", str(tmp_path / "grid.json")])
        return code, json.loads((tmp_path / "grid.json").read_text())

    return run


@pytest.mark.whole
def test_cells_run_alone_and_are_collected(grid, tmp_path):
    code, one = grid("grid", "--cell", "2/4")
    assert (code, one["ended"], one["missing"]) == (0, 1, ["1/4", "3/4", "4/4"])
    assert one["plot"] == str(tmp_path / "out" / "grid.png")
    before = (tmp_path / "out" / "peak=0.01,seed=1.json").read_text()
    code, whole = grid("sweep")
    assert (code, whole["ended"], whole["missing"], whole["cells"]) == (0, 4, [], 4)
    assert (tmp_path / "out" / "peak=0.01,seed=1.json").read_text() == before
    good, bad = whole["summaries"]
    losses = [each["metrics"]["loss"] for each in whole["results"][:2]]
    assert good["values"] == losses
    assert good["mean"] == pytest.approx(sum(losses) / 2)
    assert good["low"] < good["mean"] < good["high"]
    assert (bad["runs"], bad["diverged"], bad["mean"]) == (0, 2, None)
    for file in (tmp_path / "out").glob("*.json"):
        file.unlink()
    code, none = grid("grid", "--collect")
    assert (code, none["ended"], len(none["missing"]), none["plot"]) == (0, 0, 4, None)


def test_an_interrupted_grid_says_where_it_goes_on(grid, monkeypatch, capsys):
    monkeypatch.setattr("headjax.training.grid.Grid.run", lambda grid, number, *rest: False)
    assert grid("grid")[0] == INTERRUPTED
    assert "interrupted in cell 1/4; the same command continues from there" in capsys.readouterr().out
