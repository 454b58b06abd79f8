"""`headjax shrink`: budgets hold at once, a drop finds its budget, the result is an ordinary model."""

from __future__ import annotations

import json

import pytest

import headjax
from headjax import HeadjaxError
from headjax.cli import main
from headjax.heads.units import count_units
from headjax.report import numbers
from headjax.training import distillation
from headjax.training.distillation import distill

pytestmark = pytest.mark.usefixtures("programs_stay")


@pytest.fixture(scope="module")
def shrink(folder, tmp_path_factory):
    """Run the command on the folder's model, with measurements that all tests share."""
    made = tmp_path_factory.mktemp("shrunk")
    words = ["--task", str(folder / "text.txt"), "--limit", "8", "--batch-size", "8", "--calibrate", "8"]

    def run(name, *more):
        result = made / f"{name}.json"
        model = [] if "--frontier" in more else [str(made / name)]
        command = ["shrink", str(folder / "model"), *model, *words, "--work", str(made / "work"), "--json", str(result)]
        code = main([*command, *more])
        return json.loads(result.read_text()) if code == 0 else code, made / name

    return run


def test_several_budgets_hold_at_once_and_the_model_is_trained_after(shrink):
    found, path = shrink("small", "--flops", "90%", "--cache", "50%", "--uniform", "--recover", "2")
    for budget in found["budget"].values():
        assert budget["left"] <= budget["limit"] < budget["whole"]
    model = headjax.load(path)
    assert headjax.summarize(model.config, 8).cache_bytes_per_token == found["budget"]["cache"]["left"]
    assert len({form.structure() for form in model.config.attentions()["decoder"]}) == 1
    assert len(set(count_units(model).values())) == 1
    assert [entry["action"] for entry in model.history][-2:] == ["shrink", "distill"]
    assert model.num_parameters == found["parameters"] < found["parameters_before"]
    layers = {layer["place"]: layer for layer in found["layers"]}
    assert model.history[-2]["layers"].keys() == layers.keys()


def test_measured_damage_is_of_the_predicted_kind(shrink):
    """With `--damage loss` the divergence of the predictions stood beside a predicted rise of the loss."""
    found, _ = shrink("by_loss", "--parameters", "60%", "--damage", "loss")
    rise = found["metrics"]["loss"] - found["metrics_before"]["loss"]
    assert found["predicted"]["measure"] == "loss"
    assert found["measured"]["damage"] == pytest.approx(rise, rel=1e-3, abs=1e-5)
    assert found["measured"]["damage_on_selection"] != found["measured"]["damage"]


def test_a_stopped_recovery_finds_its_checkpoints_again(shrink, monkeypatch):
    folders = []

    def stopped_once(*args, checkpoints, **more):
        folders.append(checkpoints.path.parent)
        if len(folders) == 1:
            raise HeadjaxError("stopped")
        return distill(*args, checkpoints=checkpoints, **more)

    monkeypatch.setattr(distillation, "distill", stopped_once)
    assert shrink("stopped", "--parameters", "60%", "--recover", "2")[0] == 2
    assert folders[0].is_dir()
    found, _ = shrink("stopped", "--parameters", "60%", "--recover", "2")
    assert folders[0] == folders[1]
    assert not folders[0].exists()
    shrink("other", "--parameters", "80%", "--recover", "2")
    assert folders[2] != folders[1]
    assert found["training"]


def test_the_smallest_model_within_a_drop_is_found(shrink):
    found, _ = shrink("careless", "--max-drop", "100000%")
    least = min(point["costs"]["parameters"] for point in found["frontier"])
    assert found["budget"]["parameters"]["left"] == least


def test_the_page_shows_the_decision_beside_others_and_time_is_measured(shrink, tmp_path, capsys):
    page = tmp_path / "page.html"
    found, _ = shrink("shown", "--latency", "100%", "--parameters", "60%", "--out", str(page))
    times = {name: numbers.duration(seconds) for name, seconds in found["seconds"].items()}
    told = "forward: {predicted} predicted, {measured} measured, {before} before, {parts} as a sum of its parts"
    assert told.format(**times) in capsys.readouterr().out
    assert set(found["seconds"]) == {"predicted", "measured", "before", "parts"}
    assert min(found["seconds"].values()) > 0.0
    rivals = [one["name"] for one in found["rivals"]]
    assert "all layers alike" in rivals
    text = page.read_text()
    assert all(name in text for name in ("this choice", *rivals, *(one["place"] for one in found["layers"])))


def test_a_model_that_no_layout_holds_is_told_with_the_option_that_avoids_it(shrink, monkeypatch, capsys):
    assert shrink("own", "--parameters", "60%")[0]["export"] is None  # it came from no Hugging Face directory
    assert "export" not in capsys.readouterr().out
    lost = {"from": "bert", "family": None, "layout": None, "reason": "layout native: bert has no name for mixing"}
    monkeypatch.setattr("headjax.commands.shrink.export_of", lambda model: lost)
    assert shrink("lost", "--parameters", "60%")[0]["export"] == lost
    told = capsys.readouterr().out
    assert "export to Hugging Face: layout native: bert has no name for mixing\n--export native takes" in told
