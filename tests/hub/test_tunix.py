"""Out to where training happens: exported models in Tunix, with equal logits, distilled by its trainer."""

import dataclasses
import importlib
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import headjax
from tests.hub.directories import CONFIGS, LLAMA, model_of

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),  # Tunix 0.1.7 uses what Flax has deprecated
    pytest.mark.skipif(importlib.util.find_spec("tunix") is None, reason="needs Tunix: make parity installs it"),
]

TIED = {"tie_word_embeddings": True, "rope_theta": 1e6, "rms_norm_eps": 1e-6}
FAMILIES = {  # Llama 3 of Tunix 0.1.7 turns by a base of 1e6 whatever its config says
    "llama3": LLAMA | TIED,
    "qwen2": CONFIGS["qwen2"] | TIED,
    "qwen3": CONFIGS["qwen3"] | TIED,
    "gemma3": CONFIGS["gemma3_text"] | TIED | {"query_pre_attn_scalar": 4, "sliding_window_pattern": 6},
}
TOKENS = np.random.default_rng(0).integers(1, 20, (4, 9))


@pytest.fixture(autouse=True)
def promotion():
    """Their code adds arrays of different ranks."""
    with jax.numpy_rank_promotion("allow"):
        yield


def mesh():
    return jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def loaded(family, model, folder):
    """A model in Tunix, by way of an exported directory."""
    headjax.to_huggingface(model, folder, layout="native")
    module = importlib.import_module(f"tunix.models.{family}.model")
    params = importlib.import_module(f"tunix.models.{family}.params{'_safetensors' if family == 'gemma3' else ''}")
    attention = model.config.attentions()["decoder"][0]
    sizes = {"num_layers": 2, "vocab_size": 20, "num_embed": 20, "embed_dim": 8, "hidden_dim": 12, "head_dim": 4}
    sizes |= {"num_heads": attention.num_heads, "num_kv_heads": len(set(attention.groups)), "rope_theta": 1_000_000}
    sizes |= {"norm_eps": 1e-6, "use_tied_embedding": True, "weight_tying": True, "param_dtype": jnp.float32}
    sizes |= {"sliding_window_size": 4, "local_base_frequency": 10_000, "global_base_frequency": 1_000_000}
    fields = {field.name for field in dataclasses.fields(module.ModelConfig)}
    config = module.ModelConfig(**{name: size for name, size in sizes.items() if name in fields})
    with jax.set_mesh(mesh()):
        return params.create_model_from_safe_tensors(str(folder), config, mesh(), dtype=jnp.float32)


def logits(model, tokens):
    batch, length = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(length)[None], (batch, length))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool))[None], (batch, length, length))
    return model(tokens, positions, None, mask)[0]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("heads", [(), (0, 3)])
def test_uniform_models_load_with_equal_logits(family, heads, tmp_path):
    model = model_of(FAMILIES[family])
    pruned = headjax.prune(model, [f"decoder/{layer}/{head}" for layer in (0, 1) for head in heads])
    wanted = np.asarray(pruned({"input_ids": TOKENS}).logits)
    found = np.asarray(logits(loaded(family, pruned, tmp_path / "out"), TOKENS))
    difference = np.abs(found - wanted).max() / np.abs(wanted).max()
    print(f"{family}: largest difference {difference:.1e} of the largest logit")
    assert difference < 1e-5


def training_inputs(module, count):
    mask = np.ones(TOKENS.shape, bool)
    return [module.TrainingInput(input_tokens=TOKENS, input_mask=mask) for _ in range(count)]


def model_input(data):
    positions = jnp.broadcast_to(jnp.arange(TOKENS.shape[1])[None], TOKENS.shape)
    return {"input_tokens": data.input_tokens, "input_mask": data.input_mask, "positions": positions}


@pytest.fixture
def models(tmp_path):
    """A teacher, and a student without half of its heads."""
    whole = model_of(FAMILIES["qwen2"])
    pruned = headjax.prune(whole, [f"decoder/{layer}/{head}" for layer in (0, 1) for head in (0, 3)])
    return loaded("qwen2", whole, tmp_path / "teacher"), loaded("qwen2", pruned, tmp_path / "student")


def apart(student, teacher):
    """KL(teacher || student) a token."""
    one, other = (jax.nn.log_softmax(logits(model, TOKENS)) for model in (teacher, student))
    return float((jnp.exp(one) * (one - other)).sum(axis=-1).mean())


def test_a_pruned_student_is_distilled(models):
    from tunix.distillation import distillation_trainer, strategies

    teacher, student = models

    def forward(model, input_tokens, **inputs):
        return logits(model, input_tokens)

    strategy = strategies.LogitStrategy(
        forward, forward, lambda input_tokens, **inputs: jax.nn.one_hot(input_tokens, 20), temperature=1.0, alpha=1.0
    )
    config = distillation_trainer.TrainingConfig(eval_every_n_steps=100, max_steps=2, pbar_description=None)
    before = apart(student, teacher)
    trainer = distillation_trainer.DistillationTrainer(student, teacher, strategy, optax.adam(3e-3), config)
    trainer.with_gen_model_input_fn(model_input)
    with jax.set_mesh(mesh()):
        trainer.train(training_inputs(distillation_trainer, 2))
    after = apart(student, teacher)
    print(f"divergence from the teacher before {before:.4f} and after two steps {after:.4f}")
    assert after < before
