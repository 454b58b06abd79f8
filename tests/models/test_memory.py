"""Sizes that cannot fit into memory are refused with a lower bound that everything that fits passes."""

import numpy as np
import pytest

import headjax
from headjax.core.memory import MEMORY, check_batch_memory, check_training_memory, host_memory
from tests import tiny

EXAMPLE = {"input_ids": np.zeros(10, np.int32), "labels": np.zeros(10, np.int32)}


def test_the_state_of_a_model():
    config = tiny.decoder_config()
    parameters = tiny.model(config).num_parameters
    check_training_memory("config.model", parameters, 12 * parameters)
    check_training_memory("config.model", parameters, None)
    with pytest.raises(
        headjax.ConfigError, match=rf"^config.model: {parameters:,} parameters in training take at least"
    ):
        check_training_memory("config.model", parameters, 12 * parameters - 1)


def test_a_directory_larger_than_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    model = tiny.model(tiny.decoder_config())
    model.save(tmp_path / "model")
    headjax.to_huggingface(model, tmp_path / "theirs")
    monkeypatch.setenv("HEADJAX_MEMORY", str(4 * model.num_parameters - 1))
    for read, name in ((headjax.load, "model"), (headjax.from_huggingface, "theirs")):
        with pytest.raises(headjax.ConfigError, match=rf"{name}: "):
            read(tmp_path / name)


def test_a_batch():
    """Of two arrays of 10 int32, and 10 positions of width 16 in bfloat16."""
    check_batch_memory("--batch-size", 3, EXAMPLE, 16, 3 * (80 + 320))
    check_batch_memory("--batch-size", 4, EXAMPLE, 16, 4 * 80 + 2 * 320, parts=2)
    check_batch_memory("--batch-size", 3, {"pixel_values": np.zeros((2, 2, 3), np.float32)}, 16, 3 * 48)
    with pytest.raises(headjax.ConfigError, match=r"^--batch-size: "):
        check_batch_memory("--batch-size", 3, EXAMPLE, 16, 3 * (80 + 320) - 1)


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("500M", 500 * 2**20), ("8g", 8 * 2**30), ("2KiB", 2048), ("3 ", 3)]
)
def test_a_variable_sets_the_memory(monkeypatch, text, size):
    assert host_memory() is None or host_memory() > 2**28
    monkeypatch.setenv(MEMORY, text)
    assert host_memory() == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5G", "8X", "9" * 5000, "nan"])
def test_a_variable_without_a_size_is_an_error(monkeypatch, text):
    monkeypatch.setenv(MEMORY, text)
    with pytest.raises(headjax.HeadjaxError, match=r"^HEADJAX_MEMORY: "):
        host_memory()
