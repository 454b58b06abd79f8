"""The whole quickstart on a tiny text: its parts agree, and its page holds what the data hold."""

import dataclasses
import json
import math

import pytest

from headjax.cli import main
from headjax.models.model import load
from headjax.quickstart import study
from headjax.shrinking.grid import Grid, Level
from tests.closeness import close_to

pytestmark = pytest.mark.whole

SUMS = 4 * (10 * 128 + 2 * 600) + 3 * 128 + 500
"""Terms on the way to a loss: four layers of a width of 128 and at most 600 hidden units, the logits, 500 tokens."""

CONVERSIONS = ("grouped:kv_heads=1", "latent:rank=64")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quickstart")
    text = "\n\n".join(f"Paragraph {i} says ({i}) that {i * i} is the square of {i}, no more." for i in range(1500))
    (folder / "text.txt").write_text(text)
    run, out = folder / "run", folder / "out.json"
    arguments = ["--workdir", str(run), "--path", str(folder / "text.txt"), "--json", str(out)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "SEEDS", (0,))
        patch.setattr(study, "FORMULATIONS", {name: study.FORMULATIONS[name] for name in ("standard", "fixed")})
        patch.setattr(study, "CONVERSIONS", CONVERSIONS)
        patch.setattr(study, "HEADS", dataclasses.replace(study.HEADS, scored=16, percentages=(50, 100)))
        patch.setattr(study, "SHRINKING", Grid(heads=(0.5,), units=(0.3,), cached=(Level(1.0, "grouped", 0.5),)))
        assert main(["quickstart", *arguments, "--train-steps", "2", "--batch-size", "8"]) == 0
    return json.loads(out.read_text())


def test_the_contract_holds(result):
    assert {"perplexity", "scores", "pruned", "converted", "report"} <= result.keys()
    assert result["subject"] == "standard"
    assert result["selection"]["split"] == "train"
    assert result["evaluation"]["split"] == "validation"
    assert min(result["selection"]["examples"], result["evaluation"]["examples"]) > 0
    assert set(result["perplexity"]) == {"standard", "fixed"}
    assert set(result["bits_per_byte"]) == {"standard"}
    assert set(result["scores"]["standard"]["importance"]) == {f"decoder/{i}/{j}" for i in range(4) for j in range(8)}
    assert [entry["fraction"] for entry in result["pruned"]] == list(study.REMOVED_FOR_REAL)
    named = [(entry["to"], entry["calibrated"]) for entry in result["converted"]]
    assert named == [(target, calibrated) for target in CONVERSIONS for calibrated in (False, True)]


def test_removing_for_real_is_gating(result):
    for entry in result["pruned"]:
        assert entry["loss"] == close_to(entry["masked_loss"], sums=SUMS)


def test_curves_start_at_the_model_and_end_at_no_heads(result):
    curves = result["pruning"]["standard"]
    assert set(curves) == set(study.HEADS.orders)
    ends = {round(value, 3) for curve in curves.values() for fraction, value in curve if fraction == 1.0}
    assert len(ends) == 1
    for curve in curves.values():
        assert curve[0] == [0.0, close_to(result["perplexity"]["standard"], sums=4 * SUMS)]


def test_every_model_is_an_ordinary_model_directory(result):
    for entry in (*result["pruned"], *result["converted"], result["shrunk"]):
        model = load(entry["model"])
        assert model.num_parameters == entry["parameters"]
        assert model.tokenizer is not None
        assert math.isfinite(entry["bits_per_byte"])
        assert 0 < entry["forward_seconds"] < result["seconds"]
    assert load(result["pruned"][-1]["model"]).config.attentions()["decoder"][0].num_heads == 0


def test_the_page_shows_it(result):
    with open(result["report"]) as file:
        page = file.read()
    assert page.count("<figure") == 5
    assert page.index("Shrunk to a budget</h2>") < page.index("<figure") < page.index("Removing heads</h2>")
    assert list(result["generating"])[-1].startswith("shrunk to")
    for text in (
        "What the model writes",
        "Removing heads",
        "Letting heads share",
        "grouped:kv_heads=1",
        "reconstruction",
    ):
        assert text in page
    assert page.count("<pre") == len(study.PROMPTS)
