"""Out to where training on TPUs happens: exported checkpoints in MaxText, by its loaders."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import headjax
from tests.hub.directories import CONFIGS, LLAMA, model_of, refused_export

TOKENS = np.random.default_rng(0).integers(1, 20, (8, 9))
CASES = {
    "llama": LLAMA,
    "llama scaled": LLAMA | {"tie_word_embeddings": True, "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3",
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}},
    "mistral": CONFIGS["mistral"] | {"sliding_window": None},
    "qwen3": CONFIGS["qwen3"],
}  # fmt: skip


@pytest.fixture
def maxtext():
    """Their packages log, warn and add arrays of different ranks."""
    if importlib.util.find_spec("maxtext") is None:
        pytest.skip("needs MaxText: make parity installs it on Python 3.12 and later")
    with jax.numpy_rank_promotion("allow"):
        yield importlib.import_module("maxtext")


def logits(folder, tokens):
    """What MaxText computes of a directory, with no option but its own files and those of a computation in float32."""
    from maxtext.common import checkpointing
    from maxtext.configs import pyconfig
    from maxtext.utils import model_creation_utils

    config = pyconfig.initialize(
        ["", str(folder / "maxtext.yml")],
        load_parameters_path=str(folder / "0" / "items"),
        base_output_directory=str(folder.parent / "theirs"),
        run_name="headjax",
        enable_checkpointing=False,
        skip_jax_distributed_system=True,
        hardware="cpu",
        attention="dot_product",
        dtype="float32",
        weight_dtype="float32",
        matmul_precision="highest",
        max_target_length=tokens.shape[1],
        per_device_batch_size=1,
        ici_data_parallelism=-1,
        ici_fsdp_parallelism=1,
    )
    model, mesh = model_creation_utils.from_pretrained(config)
    arrays = nnx.state(model, nnx.Param)  # of distillation; and by the loader of training
    abstract = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), arrays)
    nnx.update(model, checkpointing.load_params_from_path(config.load_parameters_path, abstract, 96))
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    segments = np.ones_like(tokens)
    with mesh:
        return np.asarray(model(tokens, positions, segments, enable_dropout=False))


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_uniform_models_load_with_equal_logits(maxtext, case, tmp_path):
    model = headjax.prune(model_of(CASES[case]), [f"decoder/{layer}/{head}" for layer in (0, 1) for head in (2, 3)])
    token = model.params["embeddings"]["token"].astype(jnp.bfloat16)  # as MaxText reads tied embeddings for logits
    embeddings = {**model.params["embeddings"], "token": token.astype(jnp.float32)}
    model = model.replace(params={**model.params, "embeddings": embeddings})
    headjax.to_huggingface(model, tmp_path / "out", "maxtext")
    wanted = np.asarray(model({"input_ids": TOKENS}).logits)
    found = logits(tmp_path / "out", TOKENS)
    difference = np.abs(found - wanted).max() / np.abs(wanted).max()
    print(f"{case}: largest difference {difference:.1e} of the largest logit")
    assert difference < 1e-5


REFUSED = {
    "biases of the output projection": LLAMA | {"attention_bias": True},
    "biases of the feed-forward": LLAMA | {"mlp_bias": True},
    "windows": CONFIGS["qwen2"] | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "activation gelu": LLAMA | {"hidden_act": "gelu"},
    "equal layers of Llama or Qwen (headjax prune --uniform)": CONFIGS["gpt2"],
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_block_computes_is_refused_by_name(what, tmp_path):
    assert what in refused_export(model_of(REFUSED[what]), tmp_path, "maxtext")


def test_ragged_heads_are_refused_with_the_way_out(tmp_path):
    model = headjax.prune(model_of(LLAMA), ["decoder/0/2", "decoder/0/3"])
    assert "headjax prune --uniform" in refused_export(model, tmp_path, "maxtext")
