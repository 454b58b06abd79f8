"""convert, sweep and sharing from the command line: costs, sizes, lessons, and analyses that agree with each other."""

import dataclasses
import json

import pytest

from headjax.cli import main
from headjax.models.model import load
from headjax.tokenizers.learned import byte_tokenizer
from tests import tiny
from tests.closeness import close_to
from tests.commands.language_folder import write_language_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharing")
    write_language_folder(folder, max_length=16)
    return folder


def sweep(folder, *words) -> list[str]:
    return ["sweep", str(folder / "model"), str(folder / "out"), "--task", str(folder / "text.txt"), *words]


@pytest.fixture
def run(folder, capsys):
    """Runs a command and returns its JSON and what it printed for people."""

    def run(command, *words, task=False):
        words = [*words, *(["--task", str(folder / "text.txt"), "--limit", "8"] if task else [])]
        file = folder / "result.json"
        assert main([command, str(folder / "model"), *words, "--json", str(file)]) == 0
        return json.loads(file.read_text()), capsys.readouterr().out

    return run


def test_convert_says_what_attention_costs(run, folder):
    data, shown = run("convert", str(folder / "shared"), "--to", "collaborative:shared_dim=12")
    length = data["break_even_length"]
    assert f"takes more operations than before above {length} tokens" in shown
    costs = {row["length"]: row for row in data["costs"]}
    assert list(costs) == [64, 128, 256, 512, 1024, 2048]
    assert length < 64
    assert costs[64]["flops"] > costs[64]["flops_before"]
    # Per token and layer one shared key of 12, 16 values and two heads' content, where there were 16 keys and values.
    assert costs[64]["cache"] == 64 * 2 * (12 + 16 + 2)
    assert costs[64]["cache_before"] == 64 * 2 * 32
    _, shown = run("convert", str(folder / "gated"), "--to", "grouped:kv_heads=1")
    assert "no more operations than before at any length" in shown


def test_a_size_is_shared_out_among_layers(run, folder):
    full, _ = run("convert", str(folder / "full"), "--to", "collaborative:shared_dim=16")
    asked = full["parameters"] - 6 * 34
    data, _ = run("convert", str(folder / "small"), "--to", "collaborative", "--parameters", str(asked))
    sizes = [layer.shared_dim for layer in load(folder / "small").config.attentions()["decoder"]]
    # One dimension is a column of W_Q and of W_K and a number for each of two heads; ranks are whole blocks of 8.
    assert data["parameters"] == full["parameters"] - (32 - sum(sizes)) * 34 <= asked
    assert sum(sizes) == 24


def test_converted_models_learn_from_the_original(run, folder):
    words = ("--to", "grouped:kv_heads=1", "--fine-tune", "3", "--learning-rate", "1e-3", "--labels", "0")
    plain, _ = run("convert", str(folder / "plain"), *words[:2], task=True)
    tuned, _ = run("convert", str(folder / "tuned"), *words, task=True)
    assert [entry["action"] for entry in load(folder / "tuned").history] == ["convert", "distill"]
    assert tuned["output_difference"] < plain["output_difference"]


def test_sharing_reports_ranks_budgets_and_both_parts_of_the_logits(run, folder):
    data, shown = run("sharing", "--budget", "24", "--plots", str(folder / "plots"), task=True)
    assert list(data["ranks"]) == ["decoder/0", "decoder/1"]
    product = data["ranks"]["decoder/0"]["product"]
    assert 1 <= product["90%"] <= product["95%"] <= product["99%"] <= 16
    assert sum(data["budget"].values()) == 24
    # Fresh biases are zero: the context is everything, and content alone attends to all keys alike.
    metrics = {name: found["loss"] for name, found in data["metrics"].items()}
    assert metrics["context_only"] == close_to(metrics["all"], sums=tiny.SUMS)
    assert metrics["content_only"] != pytest.approx(metrics["all"], rel=1e-4)
    assert "context only" in shown
    assert all((folder / "plots" / name).is_file() for name in ("captured.png", "captured_by_head.png"))


def test_sharing_says_which_part_of_the_logits_it_could_not_measure(folder, capsys):
    config = tiny.decoder_config(tiny.layer(tiny.multi_head(2, projection_bias=False)))
    embeddings = dataclasses.replace(config.embeddings, vocab_size=257)
    config = dataclasses.replace(config, embeddings=embeddings)
    tiny.model(config).replace(tokenizer=byte_tokenizer()).save(folder / "no-biases")
    words = ["--task", str(folder / "text.txt"), "--limit", "8", "--json", str(folder / "result.json")]
    assert main(["sharing", str(folder / "no-biases"), *words]) == 0
    assert "Not measured: context only and content only" in " ".join(capsys.readouterr().out.split())
    data = json.loads((folder / "result.json").read_text())
    assert list(data["metrics"]) == ["all"]
    assert list(data["left_out"]) == ["context_only", "content_only"]
    assert "per-head queries and keys with biases" in data["left_out"]["content_only"]


def test_every_size_is_tried_once_and_kept(folder, capsys):
    words = ("--to", "grouped:kv_heads=2/1", "--limit", "8", "--calibrate", "2", "--fine-tune", "1")
    assert main([*sweep(folder, *words), "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
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
        (("--to", "grouped:kv_heads=1", "--fine-tune", "-1"), "--fine-tune: must not be negative"),
    ],
)
def test_a_target_that_cannot_be_is_refused(folder, words, message, capsys):
    assert main(sweep(folder, *words)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--to", "grouped:kv_heads=1", "--parameters", "9"), "--parameters: --to must be collaborative alone"),
        (("--to", "collaborative", "--parameters", "9"), "parameters: must be at least"),
        (("--to", "grouped:kv_heads=1", "--fine-tune", "3"), "--task: needed to fine-tune on"),
    ],
)
def test_what_convert_cannot_do_is_refused(folder, words, message, capsys):
    assert main(["convert", str(folder / "model"), str(folder / "never"), *words]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "never").exists()
