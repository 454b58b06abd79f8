"""The whole quickstart on a tiny text: its parts agree, and its page holds what the data hold."""

import json

import pytest

from headjax.cli import main
from headjax.models.model import load
from headjax.quickstart.study import CONVERSIONS, FRACTIONS, RANDOM_ORDERS, REMOVED_FOR_REAL
from tests.closeness import close_to, tolerance

SUMS = 4 * (10 * 128 + 2 * 600) + 3 * 128 + 500
"""Terms on the way to a loss: four layers of a width of 128 and at most 600 hidden units, the logits, 500 tokens."""


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quickstart")
    text = "\n\n".join(f"Paragraph {i} says that {i * i} is the square of {i}, no more." for i in range(1500))
    (folder / "text.txt").write_text(text)
    arguments = [
        "--workdir",
        str(folder / "run"),
        "--path",
        str(folder / "text.txt"),
        "--json",
        str(folder / "out.json"),
    ]
    assert main(["quickstart", *arguments, "--steps", "2", "--batch-size", "8"]) == 0
    return json.loads((folder / "out.json").read_text())


def test_the_contract_holds(result):
    assert {"perplexity", "scores", "pruned", "converted", "report"} <= result.keys()
    assert result["selection"]["split"] == "train"
    assert result["evaluation"]["split"] == "validation"
    assert min(result["selection"]["examples"], result["evaluation"]["examples"]) > 0
    assert set(result["perplexity"]) == {"standard", "fixed", "collaborative"}
    assert set(result["scores"]["standard"]["importance"]) == {f"decoder/{i}/{j}" for i in range(4) for j in range(8)}
    assert [entry["fraction"] for entry in result["pruned"]] == list(REMOVED_FOR_REAL)
    assert [entry["to"] for entry in result["converted"]] == list(CONVERSIONS)


def test_removing_for_real_is_gating(result):
    for entry in result["pruned"]:
        assert entry["loss"] == close_to(entry["masked_loss"], sums=SUMS)


def test_curves_start_at_the_model_and_end_at_no_heads(result):
    standard = result["pruning"]["standard"]
    assert len(standard["least important first"]) == len(FRACTIONS)
    assert len(standard["random order"]) == RANDOM_ORDERS * len(FRACTIONS)
    ends = {round(value, 3) for curve in standard.values() for fraction, value in curve if fraction == 1.0}
    assert len(ends) == 1
    for name, curves in result["pruning"].items():
        for curve in curves.values():
            assert curve[0] == [0.0, close_to(result["perplexity"][name], sums=4 * SUMS)]


def test_full_rank_conversion_is_exact(result):
    exact = next(entry for entry in result["converted"] if entry["to"] == "collaborative:shared_dim=128")
    assert exact["perplexity"] == close_to(result["perplexity"]["standard"], sums=4 * SUMS)
    assert all(layer["relative_error"] < tolerance(SUMS) for layer in exact["error_per_layer"])


def test_every_model_is_an_ordinary_model_directory(result):
    for entry in (*result["pruned"], *result["converted"]):
        model = load(entry["model"])
        assert model.num_parameters == entry["parameters"]
        assert model.tokenizer is not None
    assert load(result["pruned"][-1]["model"]).config.attentions()["decoder"][0].num_heads == 0


def test_the_page_shows_it(result):
    with open(result["report"]) as file:
        page = file.read()
    assert page.count("<figure") >= 6
    for text in ("Which heads matter", "Removing heads", "Sharing between heads", "to grouped:kv_heads=4"):
        assert text in page
