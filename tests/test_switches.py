"""Switches of JAX that people turn on to find mistakes: the moves work under 64 bits, and under all others at once."""

import os
import subprocess
import sys

import pytest

SWITCHES = {
    "x64": {"JAX_ENABLE_X64": "1"},
    "others": {
        "JAX_NUMPY_DTYPE_PROMOTION": "strict", "JAX_NUMPY_RANK_PROMOTION": "raise", "JAX_DEBUG_NANS": "1",
        "JAX_CHECK_TRACER_LEAKS": "1",
    },
}  # fmt: skip

MOVES = """
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
import headjax
from headjax.nn import RotaryHalves

def decoder(attention, **fields):
    sizes = {"vocab_size": 20, "width": 16, "num_layers": 1, "hidden": 16, "max_length": 12}
    config = headjax.DecoderConfig(attention=attention, **sizes, **fields)
    return headjax.Model(config, rngs=nnx.Rngs(0))

def check(model):
    assert bool(jnp.isfinite(model(batches[0]).logits).all())

tokens = np.random.default_rng(0).integers(1, 20, (8, 8))
mask = (np.arange(8) < np.array([[8], [6]])).astype(int)
batches = [{"input_ids": tokens[i : i + 2], "attention_mask": mask} for i in range(0, 8, 2)]

model = decoder(headjax.Kind(headjax.MultiHeadAttention, num_heads=4, head_dim=4))
scores = headjax.score_heads(model, batches).score("importance")
assert len(scores) == 4 and np.isfinite(list(scores.values())).all()
check(headjax.prune(model, ["decoder/0/1"]))
check(headjax.reconstruct(model, batches, ["decoder/0/1"]).model)
check(headjax.convert(model, "collaborative:shared_dim=8", batches=batches[:1]).model)
assert headjax.generate(model, {"input_ids": tokens[:2]}, max_new_tokens=3).tokens.shape == (2, 3)

grouped = headjax.Kind(headjax.GroupedAttention, num_heads=4, kv_heads=2, head_dim=4, rotary=RotaryHalves())
turning = decoder(grouped, positions="none")
check(headjax.convert(turning, "grouped:kv_heads=1", batches=batches).model)
check(headjax.convert(turning, "latent:rank=6").model)

foreign = nnx.MultiHeadAttention(4, 16, decode=False, rngs=nnx.Rngs(0))
inputs = [{"x": jax.random.normal(jax.random.key(0), (4, 6, 16), jnp.float32)}]
loss = lambda model, batch: jnp.square(model(batch["x"]) - 1).mean((1, 2))
assert len(headjax.score_heads(foreign, inputs, loss=loss).score("importance")) == 4
headjax.reconstruct(headjax.prune(foreign, ["./0"]), inputs, ["./1"], loss=loss)
"""


@pytest.mark.whole
@pytest.mark.parametrize("switch", SWITCHES)
def test_the_moves_work_under_switches_of_jax(switch: str) -> None:
    env = os.environ | {"JAX_PLATFORMS": "cpu"} | SWITCHES[switch]
    subprocess.run([sys.executable, "-c", MOVES], check=True, env=env)
