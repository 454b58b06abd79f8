"""BERT and its relatives: one layer shared by all depths, files that name another class, positions behind padding."""

from __future__ import annotations

import json

import pytest
from safetensors.numpy import load_file

from headjax.core.errors import ConfigError
from headjax.heads.pruning import prune
from headjax.hub import from_huggingface, to_huggingface
from headjax.hub.checking import max_difference
from tests.hub.directories import BERT, CONFIGS, family, model_of, rewrite


def test_albert_loses_a_head_at_every_depth(tmp_path):
    fields = BERT | {"model_type": "albert", "architectures": ["AlbertModel"], "embedding_size": 6}
    smaller = prune(model_of(fields), ["encoder/1/2"])
    to_huggingface(smaller, tmp_path / "out", "pruned_heads")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["pruned_heads"] == {"0": [2]}
    assert max_difference(smaller, tmp_path / "out") == 0.0


def test_pretraining_under_the_name_of_one_task(tmp_path):
    """bert-base-uncased calls itself BertForMaskedLM and holds the output of both tasks."""
    folder = tmp_path / "bert"
    model = model_of(CONFIGS["bert"])
    to_huggingface(model, folder)
    rewrite(folder, architectures=["BertForMaskedLM"])
    assert from_huggingface(folder).config == model.config


def test_roberta_counts_rows_behind_that_of_padding():
    """The file's number of rows is the longest sequence and the rows up to the padding token's."""
    fields = BERT | {"model_type": "roberta", "architectures": ["RobertaModel"], "pad_token_id": 2}
    config = model_of(fields).config
    assert (config.embeddings.positions.max_length, config.embeddings.positions.offset) == (7, 3)
    written = family("roberta").write(config)
    assert (written["max_position_embeddings"], written["pad_token_id"]) == (10, 2)
    with pytest.raises(ConfigError, match=r"max_position_embeddings: must be an integer of at least 1, got -1"):
        model_of(fields | {"max_position_embeddings": 2})


@pytest.mark.parametrize("named", ["ForSequenceClassification", "ForMaskedLM", "Model"])
def test_poolers_of_roberta_are_part_of_the_classifier(named, tmp_path):
    model = model_of(BERT | {"model_type": "roberta", "architectures": [f"Roberta{named}"]})
    to_huggingface(model, tmp_path / "out", family="roberta")
    names = load_file(tmp_path / "out" / "model.safetensors")
    assert ("classifier.dense.weight" in names) == (named == "ForSequenceClassification")
    assert "roberta.pooler.dense.weight" not in names
