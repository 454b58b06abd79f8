"""Weights and losses that are not finite end import, save and evaluate with a name."""

import jax.numpy as jnp
import numpy as np
import pytest

from headjax.core.errors import HeadjaxError, ParameterError
from headjax.core.tensors import all_finite
from headjax.evaluation.task import evaluate
from headjax.hub import from_huggingface, to_huggingface
from tests.hub.directories import BERT, model_of, rewrite
from tests.tiny import decoder_config, model, tokens

NAME = "bert.encoder.layer.1.attention.self.query.weight"


@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16])
def test_one_value_is_found_in_any_type(dtype):
    for value in (np.nan, np.inf, -np.inf):
        array = np.full((3, 5), 1.5, dtype)
        assert all_finite(array)
        array[2, 3] = value
        assert not all_finite(array)
        assert not all_finite(jnp.asarray(array))


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_import_names_file_and_tensor(tmp_path, dtype):
    def damage(tensors):
        tensors[NAME] = tensors[NAME].copy()
        tensors[NAME][3, 4] = np.inf

    to_huggingface(model_of(BERT), tmp_path / "hf")
    rewrite(tmp_path / "hf", damage)
    with pytest.raises(ParameterError, match=rf"model\.safetensors: {NAME}"):
        from_huggingface(tmp_path / "hf", dtype=dtype)


def damaged(value):
    fine = model(decoder_config())
    embeddings = {**fine.params["embeddings"]}
    embeddings["token"] = embeddings["token"].at[3, 0].set(value)
    return fine.replace(params={**fine.params, "embeddings": embeddings})


def test_save_and_evaluate_name_the_weights_or_the_batch(tmp_path):
    with pytest.raises(ParameterError, match=r"^embeddings/token: "):
        damaged(np.nan).save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    with pytest.raises(HeadjaxError, match=r"^embeddings/token: "):
        evaluate(damaged(np.nan), [tokens()])
    # Finite weights whose products are not.
    with pytest.raises(HeadjaxError, match=r"^evaluation: .*batch 0.*(nan|inf)$"):
        evaluate(damaged(3e38), [tokens()])
