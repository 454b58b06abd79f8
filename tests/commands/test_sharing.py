"""`headjax sharing`: ranks, budgets, and both parts of the logits."""

from __future__ import annotations

import dataclasses
import json

import pytest

from headjax.cli import main
from headjax.tokenizers.learned import byte_tokenizer
from tests import tiny
from tests.closeness import close_to
from tests.commands.language_folder import write_language_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharing")
    write_language_folder(folder, max_length=16)
    return folder


@pytest.fixture
def run(folder, capsys):
    """Runs a command and returns its JSON and what it printed for people."""

    def run(command, *words, task=False):
        words = [*words, *(["--task", str(folder / "text.txt"), "--limit", "8"] if task else [])]
        file = folder / "result.json"
        assert main([command, str(folder / "model"), *words, "--json", str(file)]) == 0
        return json.loads(file.read_text()), capsys.readouterr().out

    return run


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
