"""Which kernel is taken, and what is said when none or another would be."""

import jax
import jax.numpy as jnp
import pytest

import headjax
from headjax.nn.attend import Machine, choose
from headjax.nn.operands import AttentionInputs


def call(
    lengths=(256, 256), dtype="bfloat16", size=64, shared=False, causal=True, offset=False, **more
) -> AttentionInputs:
    """Operands of four heads, or of four that share a query and a key."""
    one = 1 if shared else 4
    query, key, value = (
        jax.ShapeDtypeStruct((2, length, heads, size), dtype)
        for length, heads in zip((*lengths, lengths[1]), (one, one, 4), strict=True)
    )
    mask = headjax.nn.Mask(causal=causal, query_offset=jnp.asarray(3) if offset else None)
    mixing = jax.ShapeDtypeStruct((4, size), dtype) if shared else None
    return AttentionInputs(query, key, value, 0.1, mask, mixing=mixing, **more)


BIAS = jax.ShapeDtypeStruct((1, 4, 256, 256), "float32")
CONTENT = jax.ShapeDtypeStruct((1, 4, 1, 256), "float32")
DROPOUT = headjax.nn.Dropout(0.1, jax.random.key(0))


@pytest.mark.parametrize(
    ("machine", "changes", "taken"),
    [
        (Machine("cpu"), {}, "einsum"),
        (Machine("tpu"), {}, "splash"),
        (Machine("tpu"), {"shared": True}, "collaborative_pallas"),
        (Machine("tpu"), {"shared": True, "bias": CONTENT, "lengths": (9, 256)}, "collaborative_pallas"),
        (Machine("tpu"), {"shared": True, "bias": BIAS}, "einsum"),
        (Machine("tpu"), {"lengths": (100, 256)}, "einsum"),
        (Machine("tpu"), {"bias": BIAS}, "einsum"),
        (Machine("tpu"), {"offset": True}, "einsum"),
        (Machine("tpu"), {"offset": True, "causal": False}, "splash"),
        (Machine("tpu"), {"dropout": DROPOUT}, "einsum"),
        (Machine("tpu", devices=4), {}, "einsum"),
        (Machine("tpu", generation=3), {}, "einsum"),
        (Machine("tpu", generation=3), {"dtype": "float32"}, "splash"),
        (Machine("tpu", generation=5), {}, "splash"),
        (Machine("gpu"), {}, "cudnn"),
        (Machine("gpu"), {"bias": BIAS}, "cudnn"),
        (Machine("gpu"), {"dtype": "float32"}, "einsum"),
        (Machine("gpu"), {"size": 768}, "einsum"),
        (Machine("gpu"), {"lengths": (255, 256)}, "einsum"),
        (Machine("gpu"), {"dropout": DROPOUT}, "einsum"),
        (Machine("gpu"), {"softcap": 50.0}, "einsum"),
        (Machine("tpu"), {"softcap": 50.0}, "einsum"),
    ],
)
def test_auto_takes_the_best_that_can(machine, changes, taken):
    assert choose("auto", call(**changes), machine) == taken
    assert choose("auto", call(**changes), machine, probabilities=True) == "einsum"
    assert choose("einsum", call(**changes), machine) == "einsum"


@pytest.mark.parametrize(
    ("name", "machine", "changes", "reason"),
    [
        ("splash", Machine("tpu"), {"lengths": (256, 200)}, "multiples of 128"),
        ("splash", Machine("cpu"), {}, "runs on tpu"),
        ("cudnn", Machine("gpu"), {"dtype": "float32"}, "float32"),
        ("cudnn", Machine("gpu"), {"size": 768}, "at most 128"),
        ("xla", Machine("cpu"), {"dropout": DROPOUT}, "dropout"),
        ("collaborative_pallas", Machine("cpu"), {}, "share"),
        ("splas", Machine("tpu"), {}, "did you mean 'splash'"),
    ],
)
def test_a_named_kernel_is_taken_or_refused_never_replaced(name, machine, changes, reason):
    with pytest.raises(headjax.KernelError, match=f"^attention implementation: .*{reason}"):
        choose(name, call(**changes), machine)
    assert choose("xla", call(), machine) == "xla"
