from __future__ import annotations

import pytest

from headjax.core.serialize import kind_of
from headjax.heads.head_id import HeadId
from headjax.heads.pruning import prune
from headjax.models.base import Model
from tests.hub.directories import BERT, LLAMA, T5, model_of


@pytest.mark.parametrize("fields", [BERT, LLAMA, T5])
def test_a_model_prints_as_a_few_lines(fields):
    model = model_of(fields)
    text = repr(model)
    assert str(model) == text
    assert text.count("\n") <= 4
    assert kind_of(model.config) in text
    assert f"width {model.config.width}" in text
    assert f"{model.num_parameters:,} (float32)" in text
    assert "Array" not in text
    assert ("decoder 8 in 2 layers" in text) is (fields is not BERT)


def test_what_was_done_to_it_is_said():
    text = repr(prune(model_of(BERT), [HeadId("encoder", 0, 1)]))
    assert "encoder 7 in 2 layers" in text
    assert "output classification of 3 classes" in text
    assert text.endswith("history: prune")
    assert "none loaded" in repr(Model(model_of(BERT).config, {}))
