"""The quickstart: its settings, the decoder that headjax carries, and the whole run on a tiny text."""

import dataclasses
import hashlib
import json
import math
import re

import numpy as np
import pytest

from headjax.cli import main
from headjax.core import tensors as declared
from headjax.core.errors import ConfigError
from headjax.data.task import TaskData
from headjax.evaluation.task import evaluate
from headjax.heads.head_id import all_heads
from headjax.heads.ordering import by_scores, random_order
from headjax.heads.scores import score_heads
from headjax.models.model import load
from headjax.quickstart import study
from headjax.quickstart.page import relative_change
from headjax.quickstart.settings import FORMULATIONS, training
from headjax.quickstart.text import FOLDER, HELD_OUT_BLOCKS, Text, batches, demo_model
from headjax.shrinking.grid import Grid, Level
from headjax.training.config import train_config
from headjax.training.config_file import load_config_file
from tests.closeness import close_to


def models():
    return {name: train_config(training(name, steps=8)).model.build() for name in FORMULATIONS}


def test_all_formulations_have_the_same_budget_and_as_many_heads():
    built = models()
    sizes = {name: declared.count(model.tensors()) for name, model in built.items()}
    assert max(sizes.values()) < 1.01 * min(sizes.values())
    assert all(1_000_000 <= size <= 3_000_000 for size in sizes.values())
    assert {len(all_heads(model)) for model in built.values()} == {32}
    attention = {name: model.attentions()["decoder"][0] for name, model in built.items()}
    assert attention["standard"].head_dim * 8 == built["standard"].width
    assert attention["fixed"].head_dim * 8 > built["fixed"].width
    assert attention["collaborative"].shared_dim < 8 * attention["collaborative"].value_dim


def test_the_config_file_is_the_same_run_and_what_is_no_run_is_named():
    config = load_config_file("configs/quickstart.py:formulation=fixed,steps=8")
    assert train_config(config) == train_config(training("fixed", steps=8))
    with pytest.raises(ConfigError, match=r"^formulation: "):
        training("fxed", steps=8)
    with pytest.raises(ConfigError, match=r"^config\.steps: "):
        train_config(training("standard", steps=-3))


@pytest.fixture
def text():
    def blocks(count, start):
        return [{"input_ids": np.arange(4, dtype=np.int32) + start + place} for place in range(count)]

    info = {"text": "numbers", "validation": {"bytes_per_token": 2.0}}
    return Text(TaskData(None, blocks(100, 0), blocks(200, 1000), info))


def test_a_bit_per_byte_is_ln_2_times_the_bytes_of_a_token(text):
    assert text.bits(2 * np.log(2.0)) == pytest.approx(1.0)
    assert text.perplexity(1.0) == pytest.approx(4.0)
    assert np.exp(3.0) == pytest.approx(text.perplexity(text.bits(3.0)))


def test_held_out_blocks_are_spread_over_the_text_and_judge_everything(text):
    firsts = text.held_out[:, 0] - 1000
    assert len(firsts) == HELD_OUT_BLOCKS
    assert (firsts[0], firsts[-1]) == (0, 199)
    assert np.diff(firsts).max() <= 200 // HELD_OUT_BLOCKS + 1
    assert len(text.data.validation) == HELD_OUT_BLOCKS


def test_training_blocks_are_drawn_without_repetition_and_by_seed(text):
    drawn = text.training_blocks(10)[:, 0]
    assert len(set(drawn.tolist())) == 10
    np.testing.assert_array_equal(drawn, text.training_blocks(10)[:, 0])
    assert set(drawn.tolist()) != set(text.training_blocks(10, seed=1)[:, 0].tolist())


def test_batches_have_one_size():
    assert [len(batch["input_ids"]) for batch in batches(np.zeros((20, 4)), 8)] == [8, 8]
    assert [len(batch["input_ids"]) for batch in batches(np.zeros((3, 4)), 8)] == [3]


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "0.0 %"), (1.004, "0.4 %"), (1.096, "9.6 %"), (1.5, "50 %"), (0.98, "-2.0 %")]
)
def test_small_changes_have_a_digit_more(value, text):
    assert relative_change(2 * value, 2.0) == text.replace(" ", "\N{NO-BREAK SPACE}")


CARD = (FOLDER / "README.md").read_text()


def bits():
    """Bits per byte on the whole held-out text, as the model card says."""
    return {name: float(value) for name, value in re.findall(r"\| (\w+ \w+) \|.*\| ([\d.]+) \|", CARD)}


@pytest.fixture(scope="module")
def model():
    return demo_model()


@pytest.fixture(scope="module")
def held_out(model):
    return Text(train_config(training("standard", steps=1)).data.load(model.tokenizer))


@pytest.mark.whole
def test_it_is_small_and_its_card_names_these_weights(model):
    weights = FOLDER / "model.safetensors"
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 3e6
    assert 1e6 < model.num_parameters < 3e6
    assert hashlib.sha256(weights.read_bytes()).hexdigest() in CARD
    assert bits()["this model"] < 0.95 * bits()["trigram counts"]


@pytest.mark.whole
def test_it_beats_trigram_counts_on_files_it_has_not_seen(model, held_out):
    assert held_out.bits(evaluate(model, batches(held_out.held_out))["loss"]) < 0.95 * bits()["trigram counts"]


@pytest.mark.whole
def test_its_heads_matter_and_importance_tells_which(model, held_out):
    """All heads removed costs 30 % or more; the less important half costs less than half of a random half's cost."""
    order = by_scores(score_heads(model, batches(held_out.training_blocks(64)), statistics=()), "importance")
    half = len(order) // 2
    whole, least, none = (held_out.measure(model, order[:count])[0] for count in (0, half, len(order)))
    at_random = [held_out.measure(model, random_order(model.config, seed)[:half])[0] for seed in range(3)]
    assert none > 1.3 * whole
    assert least - whole < 0.5 * (sum(at_random) / 3 - whole)


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


@pytest.mark.whole
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


@pytest.mark.whole
def test_removing_for_real_is_gating(result):
    for entry in result["pruned"]:
        assert entry["loss"] == close_to(entry["masked_loss"], sums=SUMS)


@pytest.mark.whole
def test_curves_start_at_the_model_and_end_at_no_heads(result):
    curves = result["pruning"]["standard"]
    assert set(curves) == set(study.HEADS.orders)
    ends = {round(value, 3) for curve in curves.values() for fraction, value in curve if fraction == 1.0}
    assert len(ends) == 1
    for curve in curves.values():
        assert curve[0] == [0.0, close_to(result["perplexity"]["standard"], sums=4 * SUMS)]


@pytest.mark.whole
def test_every_model_is_an_ordinary_model_directory(result):
    for entry in (*result["pruned"], *result["converted"], result["shrunk"]):
        model = load(entry["model"])
        assert model.num_parameters == entry["parameters"]
        assert model.tokenizer is not None
        assert math.isfinite(entry["bits_per_byte"])
        assert 0 < entry["forward_seconds"] < result["seconds"]
    assert load(result["pruned"][-1]["model"]).config.attentions()["decoder"][0].num_heads == 0


@pytest.mark.whole
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
