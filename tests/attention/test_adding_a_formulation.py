"""A formulation that the package does not know: one class, without a change elsewhere, as CONTRIBUTING says."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import headjax
import headjax.flax
from headjax.attention import Attention, Call, Mask
from headjax.attention.operands import Attended
from headjax.attention.projections import declare_into_heads, declare_output, into_heads, out_of_heads
from headjax.core import serialize
from headjax.core.fields import Size
from headjax.core.serialize import kind
from headjax.core.tensors import Ones, count, flatten, weight
from headjax.heads.gates import without
from headjax.heads.head_id import HeadId
from headjax.mesh.mesh import MeshConfig
from headjax.mesh.rules import shardings
from tests import tiny
from tests.closeness import assert_close


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tempered(Attention):
    """head_h = softmax(t_h Q_h K_h^T) V_h with a learned temperature t_h of each head.

    Attributes:
        head_dim: size of each query, key and value.
    """

    head_dim: Size

    def tensors(self, width, memory_width):
        return {
            **declare_into_heads("query", width, self.num_heads, self.head_dim, bias=False),
            **declare_into_heads("key", memory_width, self.num_heads, self.head_dim, bias=False),
            **declare_into_heads("value", memory_width, self.num_heads, self.head_dim, bias=False),
            "temperature": weight((self.num_heads,), ("heads",), Ones, decay=False),
            **declare_output(self.num_heads, self.head_dim, width, bias=False),
        }

    def key_values(self, params, inputs, positions):
        return {name: into_heads(inputs, params[name]) for name in ("key", "value")}

    def attend(self, params, inputs, key_values, call: Call) -> Attended:
        query = into_heads(inputs, params["query"]) * params["temperature"][None, None, :, None]
        return call(query, key_values["key"], key_values["value"], scale=1.0)

    def combine(self, params, context):
        return out_of_heads(context, params["output"])

    def flops(self, width, memory_width, query_length, key_length):
        projections = query_length * 2 * width + key_length * 2 * memory_width
        return 2 * self.num_heads * self.head_dim * (projections + 2 * query_length * key_length)


BATCH = tiny.tokens(4, 8)


@pytest.fixture(scope="module", autouse=True)
def registered():
    """`@kind("test_tempered")`, undone afterwards: other tests go through every registered formulation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serialize, "_KINDS", dict(serialize._KINDS))
        kind("test_tempered")(Tempered)
        yield


@pytest.fixture(scope="module")
def model(registered):
    return tiny.model(tiny.decoder_config(*(tiny.layer(Tempered(num_heads=4, head_dim=4)),) * 2))


def test_it_is_counted_and_summarised(model):
    attention = model.config.attentions()["decoder"][0]
    assert count(attention.tensors(16, 16)) == 4 * 16 * 4 * 4 + 4
    assert attention.cache_size(16, 16) == 2 * 4 * 4
    assert sum(array.size for array in flatten(model.params).values()) == model.num_parameters


def test_its_heads_are_spread_over_the_mesh():
    placed = shardings(Tempered(num_heads=4, head_dim=4).tensors(16, 16), MeshConfig(data=2, fsdp=2, model=2).build())
    assert tuple(placed["temperature"].spec) == ("model",)
    assert tuple(placed["query"].spec) == ("fsdp", "model")
    assert tuple(placed["output"].spec) == ("model", None, "fsdp")


def test_it_is_causal_and_scored(model):
    changed = {name: array.copy() for name, array in BATCH.items()}
    changed["input_ids"][:, 5:] = 1
    before, after = model(BATCH).logits, model(changed).logits
    assert_close(after[:, :5], before[:, :5], sums=500)
    assert float(jnp.abs(after[:, 5:] - before[:, 5:]).max()) > 1e-3
    scores = headjax.score_heads(model, [BATCH]).values["importance"]
    assert len(scores) == 8
    assert all(score > 0 for score in scores.values())


def test_removing_a_head_is_closing_its_gate_also_after_saving(model, tmp_path):
    gone = [HeadId("decoder", 0, 1), HeadId("decoder", 1, 3)]
    pruned = headjax.prune(model, gone)
    assert pruned.config.attentions()["decoder"][0].ids == (0, 2, 3)
    masked = model(BATCH, without(model.config, gone)).logits
    assert_close(pruned(BATCH).logits, masked, sums=500)
    pruned.save(tmp_path / "model")
    loaded = headjax.load(tmp_path / "model")
    assert loaded.config == pruned.config
    np.testing.assert_array_equal(loaded(BATCH).logits, pruned(BATCH).logits)


def test_it_has_a_flax_module():
    layer = headjax.flax.TemperedAttention(16, num_heads=2, head_dim=4, rngs=nnx.Rngs(0))
    inputs = np.random.default_rng(0).standard_normal((2, 5, 16)).astype(np.float32)
    assert layer(inputs, mask=Mask(causal=True)).shape == (2, 5, 16)
    assert layer.temperature[...].shape == (2,)
