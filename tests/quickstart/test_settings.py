"""The quickstart compares like with like, on blocks of a text, and says so in sentences."""

import numpy as np
import pytest

from headjax.core import tensors as declared
from headjax.core.errors import ConfigError
from headjax.data.task import TaskData
from headjax.heads.head_id import all_heads
from headjax.quickstart.page import device, relative_change
from headjax.quickstart.settings import FORMULATIONS, training
from headjax.quickstart.text import HELD_OUT_BLOCKS, Text, batches
from headjax.training.config import train_config
from headjax.training.config_file import load_config_file


def models():
    return {name: train_config(training(name, steps=8)).model.build() for name in FORMULATIONS}


def test_all_formulations_have_the_same_budget_and_as_many_heads():
    sizes = {name: declared.count(model.tensors()) for name, model in models().items()}
    assert max(sizes.values()) < 1.01 * min(sizes.values())
    assert all(1_000_000 <= size <= 3_000_000 for size in sizes.values())
    assert {len(all_heads(model)) for model in models().values()} == {32}


def test_the_formulations_are_what_they_are_called():
    built = models()
    attention = {name: model.attentions()["decoder"][0] for name, model in built.items()}
    assert attention["standard"].head_dim * 8 == built["standard"].width
    assert attention["fixed"].head_dim * 8 > built["fixed"].width
    assert attention["collaborative"].shared_dim < 8 * attention["collaborative"].value_dim


def test_the_config_file_is_the_same_run():
    config = load_config_file("configs/quickstart.py:formulation=fixed,steps=8")
    assert train_config(config) == train_config(training("fixed", steps=8))


def test_an_unknown_formulation_is_an_error():
    with pytest.raises(ConfigError, match=r"^formulation: unknown formulation 'fxed'; did you mean 'fixed'\?$"):
        training("fxed", steps=8)


def test_fewer_steps_than_one_are_named():
    with pytest.raises(ConfigError, match=r"^config\.steps: must be an integer of at least 1, got -3$"):
        train_config(training("standard", steps=-3))


@pytest.fixture
def text():
    def blocks(count, start):
        return [{"input_ids": np.arange(4, dtype=np.int32) + start + place} for place in range(count)]

    info = {"text": "numbers", "validation": {"bytes_per_token": 2.0}}
    return Text(TaskData(None, blocks(100, 0), blocks(200, 1000), info))


def test_a_bit_per_byte_is_ln_2_times_the_bytes_of_a_token(text):
    assert text.bits(2 * np.log(2.0)) == pytest.approx(1.0)
    assert text.perplexity(1.0) == pytest.approx(4.0)
    assert np.exp(3.0) == pytest.approx(text.perplexity(text.bits(3.0)))


def test_held_out_blocks_are_spread_over_the_text_and_judge_everything(text):
    firsts = text.held_out[:, 0] - 1000
    assert len(firsts) == HELD_OUT_BLOCKS
    assert (firsts[0], firsts[-1]) == (0, 199)
    assert np.diff(firsts).max() <= 200 // HELD_OUT_BLOCKS + 1
    assert len(text.data.validation) == HELD_OUT_BLOCKS


def test_training_blocks_are_drawn_without_repetition_and_by_seed(text):
    drawn = text.training_blocks(10)[:, 0]
    assert len(set(drawn.tolist())) == 10
    np.testing.assert_array_equal(drawn, text.training_blocks(10)[:, 0])
    assert set(drawn.tolist()) != set(text.training_blocks(10, seed=1)[:, 0].tolist())


def test_batches_have_one_size():
    assert [len(batch["input_ids"]) for batch in batches(np.zeros((20, 4)), 8)] == [8, 8]
    assert [len(batch["input_ids"]) for batch in batches(np.zeros((3, 4)), 8)] == [3]


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "0.0 %"), (1.004, "0.4 %"), (1.096, "9.6 %"), (1.5, "50 %"), (0.98, "-2.0 %")]
)
def test_small_changes_have_a_digit_more(value, text):
    assert relative_change(2 * value, 2.0) == text.replace(" ", "\N{NO-BREAK SPACE}")


def test_the_device_is_named():
    assert device().endswith("CPU")
