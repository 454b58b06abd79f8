"""`attend` and multi-head attention against PyTorch's."""

import jax.numpy as jnp
import numpy as np
import pytest

from headjax.nn import Call, Mask, attend
from tests import tiny
from tests.closeness import assert_close
from tests.nn.formulations import SUMS, WIDTH, attended_by, random_inputs, random_params

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity


@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("masking", ["none", "causal", "padding", "bias"])
def test_attend_is_scaled_dot_product_attention(masking, key_heads):
    generator = np.random.default_rng(0)
    query = generator.standard_normal((2, 6, 4, 8)).astype(np.float32)
    key, value = (generator.standard_normal((2, 6, key_heads, 8)).astype(np.float32) for _ in range(2))
    present = np.arange(6)[None] < np.array([[6], [4]])
    bias = generator.standard_normal((1, 4, 6, 6)).astype(np.float32)
    ours = {
        "none": {},
        "causal": {"mask": Mask(causal=True)},
        "padding": {"mask": Mask(keys=jnp.asarray(present))},
        "bias": {"bias": jnp.asarray(bias)},
    }[masking]
    theirs = {
        "none": {},
        "causal": {"is_causal": True},
        "padding": {"attn_mask": torch.from_numpy(present)[:, None, None]},
        "bias": {"attn_mask": torch.from_numpy(bias)},
    }[masking]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(array).transpose(1, 2) for array in (query, key, value)),
        scale=0.3,
        enable_gqa=True,
        **theirs,
    )
    attended = attend(query, key, value, scale=0.3, **ours)
    assert_close(attended.context, expected.transpose(1, 2), sums=SUMS)


def test_multi_head_is_torchs_multihead_attention():
    attention = tiny.multi_head(4, 4)
    params, x = random_params(attention), random_inputs()
    theirs = torch.nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def torched(array: np.ndarray) -> torch.Tensor:
        return torch.tensor(np.asarray(array))

    # PyTorch keeps [out, in], queries, keys and values one below the other.
    projections = ("query", "key", "value")
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([torched(params[name]).reshape(WIDTH, WIDTH).T for name in projections]))
        theirs.in_proj_bias.copy_(torch.cat([torched(params[f"{name}_bias"]).reshape(-1) for name in projections]))
        theirs.out_proj.weight.copy_(torched(params["output"]["kernel"]).reshape(WIDTH, WIDTH).T)
        theirs.out_proj.bias.copy_(torched(params["output"]["bias"]))
        inputs = torch.from_numpy(x)
        hidden = torch.triu(torch.ones(6, 6, dtype=torch.bool), diagonal=1)
        output, weights = theirs(inputs, inputs, inputs, attn_mask=hidden, average_attn_weights=False)

    y = jnp.asarray(x)
    attended = attended_by(attention, params, y, Call(mask=Mask(causal=True)))
    assert_close(attended.probabilities, weights, sums=SUMS)
    assert_close(tiny.bound(attention, params, WIDTH, WIDTH).combine(attended.context), output, sums=SUMS)
