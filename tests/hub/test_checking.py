"""Checks of an export: batches that the model can read, and differences that are found."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

from headjax.hub import to_huggingface
from headjax.hub.checking import LENGTH, example_batch, longest, max_difference
from tests import tiny
from tests.closeness import close_to
from tests.hub.directories import BERT, CONFIGS, LLAMA, model_of, rewrite


@pytest.mark.parametrize("name", ["bert", "llama", "bart", "vit"])
def test_example_batches_fit_the_model(name):
    model = model_of(CONFIGS[name])
    batch = example_batch(model)
    assert all(len(array) == 2 for array in batch.values())
    output = model(batch)
    assert np.all(np.isfinite(output.hidden))
    if "attention_mask" in batch:
        assert batch["attention_mask"].sum(1).tolist() == [
            batch["input_ids"].shape[1],
            batch["input_ids"].shape[1] // 2,
        ]


def test_lengths():
    bert, llama = model_of(BERT), model_of(LLAMA)
    assert (longest(bert), longest(llama), longest(model_of(CONFIGS["vit"]))) == (10, None, None)
    assert example_batch(bert)["input_ids"].shape == (2, 10)
    assert example_batch(llama)["input_ids"].shape == (2, LENGTH)
    assert example_batch(llama, 6)["input_ids"].shape == (2, 6)


def test_a_changed_tensor_is_a_difference(tmp_path):
    model = model_of(BERT)
    to_huggingface(model, tmp_path / "out")
    assert max_difference(model, tmp_path / "out") == 0.0
    name = "classifier.bias"
    assert name in load_file(tmp_path / "out" / "model.safetensors")
    rewrite(tmp_path / "out", lambda tensors: tensors.update({name: tensors[name] + 0.5}))
    assert max_difference(model, tmp_path / "out") == close_to(0.5, sums=tiny.SUMS)
