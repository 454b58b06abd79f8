"""The quickstart compares like with like."""

import pytest

from headjax.core import tensors as declared
from headjax.core.configuration import load_config_file
from headjax.core.errors import ConfigError
from headjax.heads.head_id import all_heads
from headjax.quickstart.settings import FORMULATIONS, training
from headjax.training.config import train_config


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
