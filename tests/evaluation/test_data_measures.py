from __future__ import annotations

import numpy as np
import pytest

from headjax.data.task import TaskData
from headjax.data.text_data import LanguageConfig
from headjax.evaluation.task import measure_of


def test_training_on_text_ends_with_the_perplexity_per_word_too(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"Words, {i} of them and {i * i} more.\n\n" for i in range(300)))
    config = LanguageConfig(path=str(tmp_path), length=16, tokenizer="bytes")
    data = config.load()
    counts = data.info["validation"]
    metrics = measure_of(data).metrics({"loss": np.array([3.0, 5.0]), "targets": np.array([2.0, 2.0])})
    assert metrics["perplexity"] == pytest.approx(np.exp(2.0))
    assert metrics["word_perplexity"] == pytest.approx(np.exp(2.0 * counts["tokens"] / counts["words"]))
    assert metrics["bits_per_byte"] == pytest.approx(2.0 / np.log(2) * counts["tokens"] / counts["bytes"])
    tokens_alone = TaskData(None, data.train, data.validation, {"text": "a random walk"})
    assert measure_of(tokens_alone) is None
