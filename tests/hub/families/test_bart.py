"""BART and Marian: one table of tokens for both sides, or one for each."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

from headjax.core.errors import ConfigError, ParameterError
from headjax.hub import from_huggingface, to_huggingface
from tests.hub.directories import CONFIGS, model_of, rewrite


@pytest.mark.parametrize("shared", [True, False])
def test_marian_shares_its_tokens_or_not(shared, tmp_path):
    """Files hold the shared table under a name of its own; the copies of older files must equal it."""
    fields = CONFIGS["marian"] | {
        "share_encoder_decoder_embeddings": shared,
        "decoder_vocab_size": 20 if shared else 12,
    }
    model = model_of(fields)
    to_huggingface(model, tmp_path / "out", family="marian")
    names = set(load_file(tmp_path / "out" / "model.safetensors"))
    own = {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"}
    assert ("model.shared.weight" in names, own <= names) == (shared, not shared)
    assert from_huggingface(tmp_path / "out").config == model.config
    original = "model.shared.weight" if shared else "model.decoder.embed_tokens.weight"
    rewrite(tmp_path / "out", lambda tensors: tensors.update({"lm_head.weight": np.copy(tensors[original])}))
    from_huggingface(tmp_path / "out")
    rewrite(tmp_path / "out", lambda tensors: tensors.update({"lm_head.weight": 1 + tensors[original]}))
    with pytest.raises(ParameterError, match=f"lm_head.weight differs from {original}"):
        from_huggingface(tmp_path / "out")


@pytest.mark.parametrize("class_name", ["BartForConditionalGeneration", "BartModel"])
def test_the_base_model_has_no_bias_of_logits(class_name, tmp_path):
    model = model_of(CONFIGS["bart"] | {"architectures": [class_name]})
    to_huggingface(model, tmp_path / "out", family="bart")
    names = set(load_file(tmp_path / "out" / "model.safetensors"))
    base = class_name == "BartModel"
    assert ("final_logits_bias" in names, "shared.weight" in names) == (not base, base)
    assert from_huggingface(tmp_path / "out").config == model.config


def test_layers_of_another_kind_are_refused():
    with pytest.raises(ConfigError, match="normalize_before: True is not supported; supported: False"):
        model_of(CONFIGS["bart"] | {"normalize_before": True})
    model_of(CONFIGS["marian"] | {"static_position_embeddings": True})
