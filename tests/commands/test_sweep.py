"""sweep: every size in every variant, kept between runs; what loses nothing shows as such."""

import json

import jax
import pytest

from headjax.attention import MultiHead
from headjax.cli import main
from headjax.data.tokenizers import byte_tokenizer
from headjax.models.base import Model
from headjax.models.feed_forward import Dense
from headjax.models.recipes import LanguageModel


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    config = LanguageModel(
        vocab_size=257,
        max_length=16,
        width=16,
        num_layers=1,
        attention=MultiHead(num_heads=2, head_dim=8),
        feed_forward=Dense(16),
    ).build()
    params = jax.tree.map(lambda array: 8.0 * array, config.initialize(jax.random.key(0)))
    Model(config, params, tokenizer=byte_tokenizer()).save(folder / "model")
    text = "\n\n".join(f"Paragraph {i} says that {i * i} is the square of {i}, no more." for i in range(600))
    (folder / "text.txt").write_text(text)
    return folder


def sweep(folder, *words) -> list[str]:
    return ["sweep", str(folder / "model"), str(folder / "out"), "--task", str(folder / "text.txt"), *words]


def test_every_size_is_tried_once_and_kept(folder, capsys):
    words = ("--to", "grouped:kv_heads=2/1", "--limit", "8", "--calibrate", "2", "--distill", "1")
    assert main([*sweep(folder, *words), "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    original, *trials = data["trials"]
    variants = ("plain", "calibrated", "distilled")
    targets = ("grouped:kv_heads=2", "grouped:kv_heads=1")
    assert [(t["to"], t["variant"]) for t in trials] == [(to, variant) for to in targets for variant in variants]
    same, _, trained, plain, calibrated, _ = trials
    assert same["cosine"] == pytest.approx(1.0, abs=1e-5)
    assert same["metrics"]["perplexity"] == pytest.approx(original["metrics"]["perplexity"], rel=1e-5)
    assert trained["metrics"]["perplexity"] != same["metrics"]["perplexity"]
    # Each way to convert is best at what it minimises.
    assert plain["relative_error"] < calibrated["relative_error"]
    assert calibrated["logit_error"] < plain["logit_error"]
    assert plain["cosine"] < 0.9999
    assert plain["parameters"] < same["parameters"] == original["parameters"]
    assert (folder / "out" / "sweep.png").stat().st_size > 1000
    file = folder / "out" / "trials.jsonl"
    before = file.read_text()
    file.write_text(before.replace(f'"parameters": {plain["parameters"]}', '"parameters": 1', 1))
    assert main([*sweep(folder, *words), "--json", "-"]) == 0
    again = json.loads(capsys.readouterr().out)["trials"]
    assert again[4]["parameters"] == 1
    assert [trial["cosine"] for trial in again] == [trial["cosine"] for trial in data["trials"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--to", "grouped:kv_heads=1", "--to", "grouped:heads=2/1"), "unknown option 'heads'"),
        (("--to", "grouped:kv_heads=3", "--limit", "8"), "kv_heads: 3 does not divide"),
    ],
)
def test_a_target_that_cannot_be_is_refused(folder, words, message, capsys):
    assert main(sweep(folder, *words)) == 2
    assert message in capsys.readouterr().err
