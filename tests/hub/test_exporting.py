"""Writing directories: what is kept of a config from before, what is replaced, and what is refused."""

from __future__ import annotations

import dataclasses
import json

import pytest

from headjax.cli import main
from headjax.core.errors import CheckpointError, HeadjaxError
from headjax.heads.pruning import prune
from headjax.hub import from_huggingface, to_huggingface
from headjax.hub.checking import max_difference
from headjax.models.tasks import NoTask, SentenceSimilarity
from tests.hub.directories import (
    RAGGED,
    refused_export,
    rewrite,
)


def test_a_model_that_compares_sentences_is_written_without_a_task(bert, tmp_path):
    plain = bert.replace(config=dataclasses.replace(bert.config, output=NoTask()), params={**bert.params, "output": {}})
    similar = plain.replace(config=dataclasses.replace(plain.config, output=SentenceSimilarity()))
    for name, model in {"plain": plain, "similar": similar}.items():
        to_huggingface(model, tmp_path / name)
    written = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "similar")]
    assert written[0] == written[1]


def test_fields_that_mean_nothing_here_survive(bert, tmp_path):
    """Names of labels and tokens come back, unless what is written contradicts them."""
    to_huggingface(bert, tmp_path / "one")
    names = {"0": "no", "1": "maybe", "2": "yes"}
    rewrite(tmp_path / "one", id2label=names, sep_token_id=7, dtype="float64", pruned_heads={})
    to_huggingface(from_huggingface(tmp_path / "one"), tmp_path / "two")
    fields = json.loads((tmp_path / "two" / "config.json").read_text())
    assert (fields["id2label"], fields["sep_token_id"], fields["dtype"]) == (names, 7, "float32")
    assert "pruned_heads" not in fields


def test_bfloat16_is_written_as_such(bert, tmp_path):
    to_huggingface(bert, tmp_path / "one")
    half = from_huggingface(tmp_path / "one", dtype="bfloat16")
    to_huggingface(half, tmp_path / "two")
    assert json.loads((tmp_path / "two" / "config.json").read_text())["dtype"] == "bfloat16"
    assert from_huggingface(tmp_path / "two").params["embeddings"]["token"].dtype == "bfloat16"
    smaller = prune(half, RAGGED)
    to_huggingface(smaller, tmp_path / "three", "padded")
    assert from_huggingface(tmp_path / "three").params["embeddings"]["token"].dtype == "bfloat16"


def test_bad_requests(bert, ragged, tmp_path):
    with pytest.raises(HeadjaxError, match="unknown layout 'nativ'; did you mean 'native'"):
        to_huggingface(bert, tmp_path / "out", "nativ")
    with pytest.raises(HeadjaxError, match="unknown family 'bret'; did you mean 'bert'"):
        to_huggingface(bert, tmp_path / "out", family="bret")
    assert "family: gpt2 is no encoder" in refused_export(bert, tmp_path, family="gpt2")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(CheckpointError, match="mine: exists and holds something else"):
        to_huggingface(bert, tmp_path / "mine")
    ragged.save(tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "model")]) == 2
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "out"), "--layout", "native"]) == 2
    assert not (tmp_path / "out").exists()


def test_an_export_replaces_an_earlier_one(bert, ragged, tmp_path):
    to_huggingface(bert, tmp_path / "out")
    to_huggingface(ragged, tmp_path / "out", "pruned_heads")
    assert max_difference(ragged, tmp_path / "out") == 0.0
