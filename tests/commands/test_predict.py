"""`headjax predict`: from texts and tables to labels, as a table, JSON, TSV and JSON lines."""

from __future__ import annotations

import json

import pytest

import headjax
from headjax.cli import main
from headjax.commands.predict import WRITERS
from headjax.models.tasks import Classification
from headjax.tokenizers.learned import byte_tokenizer
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests import tiny
from tests.commands.test_every_family import BERT
from tests.data.vocabulary import WORDS, write_lines, write_vocabulary
from tests.hub.directories import model_of
from tests.models.test_encoder_decoder import translation


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predict")
    fields = BERT | {"vocab_size": len(WORDS), "max_position_embeddings": 32, "num_labels": 2}
    model = model_of(fields).replace(tokenizer=wordpiece_tokenizer(write_vocabulary(folder)))
    headjax.with_task(model, Classification(classes=2, names=("bad", "good"))).save(folder / "model")
    write_lines(folder / "table.tsv", "sentence\tlabel", *(f"{word}\tgood" for word in WORDS[5:10]))
    return folder


def test_a_table_is_labelled_and_written(folder, capsys):
    words = ["predict", str(folder / "model"), "--task", str(folder / "table.tsv"), "--limit", "3", "--batch-size", "2"]
    assert main([*words, "--out", str(folder / "out.tsv"), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    assert [one["text"] for one in found] == list(WORDS[5:8])
    assert all(one["given"] == "good" and one["label"] in ("bad", "good") for one in found)
    lines = [line.split("\t") for line in (folder / "out.tsv").read_text().splitlines()]
    assert lines[0] == ["text", "given", "label", "probability", "p(bad)", "p(good)"]
    assert float(lines[1][4]) == pytest.approx(found[0]["probabilities"]["bad"])
    assert main([*words, "--out", str(folder / "out.jsonl")]) == 0
    assert [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()] == found
    assert "probability" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("suffix", "text"), [(".jsonl", '{"value": null, "text": "é"}\n'), (".tsv", "value\ttext\nnull\té\n")]
)
def test_a_number_that_is_not_finite_is_written_as_null(suffix, text):
    assert WRITERS[suffix]([{"value": float("nan"), "text": "é"}]) == text


def test_texts_are_labelled(folder, capsys):
    assert main(["predict", str(folder / "model"), "--text", WORDS[5], "--text", WORDS[6], "--json", "-"]) == 0
    assert len(json.loads(capsys.readouterr().out)["predictions"]) == 2


def test_texts_are_translated(tmp_path, capsys):
    model = tiny.model(translation(vocab_size=257, num_layers=1)).replace(tokenizer=byte_tokenizer())
    model.save(tmp_path / "model")
    words = ["predict", str(tmp_path / "model"), "--text", "gut", "--text", "a", "--beams", "2", "--json", "-"]
    assert main(words) == 0
    assert all("translation" in one for one in json.loads(capsys.readouterr().out)["predictions"])
