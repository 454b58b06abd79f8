"""`headjax shrink`: budgets hold at once, a drop finds its budget, the result is an ordinary model."""

from __future__ import annotations

import html
import json
import re

import pytest

import headjax
from tests.command_line import main


@pytest.fixture(scope="module")
def shrink(folder, tmp_path_factory):
    """Run the command on the folder's model, with measurements that all tests share."""
    made = tmp_path_factory.mktemp("shrunk")
    words = ["--task", str(folder / "text.txt"), "--limit", "8", "--batch-size", "8", "--calibrate", "8"]

    def run(name, *more, builds=True):
        result, out = made / f"{name}.json", [str(made / name)] if builds else []
        command = ["shrink", str(folder / "model"), *out, *words, "--work", str(made / "work")]
        code = main([*command, "--json", str(result), *more])
        return json.loads(result.read_text()) if code == 0 else code, made / name

    return run


def test_several_budgets_hold_at_once(shrink):
    found, path = shrink("small", "--budget", "flops=90%", "--budget", "cache=50%", "--uniform")
    for budget in found["budget"].values():
        assert budget["left"] <= budget["limit"] < budget["whole"]
    model = headjax.load(path)
    assert headjax.summarize(model.config, 8).cache_bytes_per_token == found["budget"]["cache"]["left"]
    assert len({form.structure() for form in model.config.attentions()["decoder"]}) == 1
    assert len({layer.hidden for layer in model.config.stacks()["decoder"].layers}) == 1
    assert model.history[-1]["action"] == "shrink"
    assert model.num_parameters == found["parameters"] < found["parameters_before"]
    layers = {layer["place"]: layer for layer in found["layers"]}
    assert model.history[-1]["layers"].keys() == layers.keys()
    assert found["predicted"]["measure"] == "kl"
    assert found["measured"]["damage"] > 0


def test_the_smallest_model_within_a_drop_is_found_also_within_a_budget(shrink):
    careless, _ = shrink("careless", "--budget", "drop=100000%")
    least = min(point["costs"]["parameters"] for point in careless["frontier"])
    assert careless["budget"]["parameters"]["left"] == least
    half, _ = shrink("half", "--budget", "drop=100000%", "--parameters", "50%")
    assert half["budget"]["parameters"]["left"] == least


def test_a_drop_that_the_other_budget_does_not_allow_is_one_line(shrink, monkeypatch, capsys):
    def by_size(model, task, *args, **options):
        return {"perplexity": 1e9 / model.num_parameters, "loss": 1.0}

    monkeypatch.setattr("headjax.evaluation.task.evaluate_task", by_size)
    code, path = shrink("never", "--budget", "drop=0", "--parameters", "60%")
    assert code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("headjax: error: --budget: drop")
    assert not path.exists()


def test_the_page_opens_with_what_came_out_and_shows_what_the_budget_limits(shrink, tmp_path):
    page = tmp_path / "shown.html"
    found, path = shrink("shown", "--budget", "cache=50%", "--report", str(page))
    assert found["report"] == str(page)
    shown = html.unescape(page.read_text())
    answer, command = re.findall("<p>(.*?)</p>", shown)[:2]
    sentence = r"perplexity (\S+) to (\S+) on 8 examples \(95% interval of the change of the loss: "
    told = [float(number) for number in re.search(sentence, answer).groups()]
    assert told == pytest.approx([found[name]["perplexity"] for name in ("metrics_before", "metrics")], rel=0.005)
    assert f"headjax.load({str(path)!r})" in command
    assert ">decoder/0<" in shown
    assert "decoder/0 units" not in shown  # no form of a feed-forward has another cache


def test_a_page_needs_a_budget(shrink, folder, capsys):
    assert shrink("none", "--vocabulary", str(folder / "text.txt"), "--report", "none.html")[0] == 2
    assert capsys.readouterr().err.startswith("headjax: error: --report: ")


def test_without_out_the_choice_alone_is_made_from_the_measurements(shrink, capsys, monkeypatch):
    small = "--budget", "flops=80%", "--budget", "cache=50%"
    built, _ = shrink("built", *small)
    monkeypatch.setattr("headjax.shrinking.shrink.build", None)
    monkeypatch.setattr("headjax.shrinking.measure.layer_steps", None)  # nothing is measured again
    capsys.readouterr()
    alone, path = shrink("alone", *small, builds=False)
    assert not path.exists()
    same = "metric", "layers", "budget", "predicted", "frontier", "selection"
    assert {name: alone[name] for name in same} == {name: built[name] for name in same}
    assert {"model", "metrics", "exports", "parameters"}.isdisjoint(alone)
    said = capsys.readouterr().out
    assert "decoder/0" in said
    assert "FLOPs of an example" in said
    assert "95.0%" in said  # a row of the frontier
    assert said.rstrip().endswith("with OUT after MODEL the same command builds it")


def test_without_out_measurements_are_made_and_kept(folder, tmp_path):
    work, result = tmp_path / "work", tmp_path / "alone.json"
    words = ["--task", str(folder / "text.txt"), "--limit", "8", "--batch-size", "8", "--calibrate", "8"]
    command = ["shrink", str(folder / "model"), *words, "--work", str(work), "--json", str(result)]
    assert main([*command, "--budget", "parameters=60%"]) == 0
    assert (work / "measurements.json").is_file()
    limit = json.loads(result.read_text())["budget"]["parameters"]
    assert limit["left"] <= limit["limit"]


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("--report", ["--parameters", "60%", "--report", "page.html"]),
        ("--to", ["--parameters", "60%", "--to", "headjax"]),
        ("--quantize", ["--parameters", "60%", "--quantize", "int8"]),
        ("--budget: drop", ["--budget", "drop=0.1"]),
        ("--vocabulary", ["--vocabulary", "TEXT"]),
    ],
)
def test_without_out_nothing_is_asked_that_a_built_model_answers(shrink, folder, capsys, named, words):
    words = [str(folder / "text.txt") if word == "TEXT" else word for word in words]
    assert shrink("refused", *words, builds=False)[0] == 2
    assert capsys.readouterr().err.startswith(f"headjax: error: {named}: needs OUT")
