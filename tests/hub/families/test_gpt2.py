"""GPT-2: weights as inputs by outputs, tied logits that some files repeat."""

from __future__ import annotations

import pytest

from headjax.core.errors import ParameterError
from headjax.hub import from_huggingface, to_huggingface
from tests.hub.directories import (
    CONFIGS,
    model_of,
    refused_import,
    rewrite,
)


@pytest.mark.parametrize("same", [True, False])
def test_copies_of_tied_tensors(tmp_path, same):
    """Some files hold the output's weights beside the embeddings; they must be what the config says they are."""
    folder = tmp_path / "gpt2"
    to_huggingface(model_of(CONFIGS["gpt2"]), folder)

    def change(tensors):
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"] + (0 if same else 1)

    rewrite(folder, change)
    if same:
        from_huggingface(folder)
    else:
        assert "lm_head.weight differs from transformer.wte.weight" in refused_import(folder, ParameterError)
