"""A formulation that the package does not know: a config and a Flax module in one file, as CONTRIBUTING says."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import headjax
from headjax.attention import Attention, AttentionModule, HeadOutput, Mask
from headjax.core import serialize
from headjax.core.fields import Size
from headjax.core.serialize import kind
from headjax.core.tensors import Ones, weight
from headjax.heads.head_id import HeadId
from tests import tiny
from tests.closeness import assert_close


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tempered(Attention):
    """head_h = softmax(t_h Q_h K_h^T) V_h with a learned temperature t_h of each head.

    Attributes:
        head_dim: size of each query, key and value.
    """

    head_dim: Size

    def module(self, width, memory_width):
        return TemperedAttention(width, memory_width=memory_width, config=self)

    def flops(self, width, memory_width, query_length, key_length):
        projections = query_length * 2 * width + key_length * 2 * memory_width
        return 2 * self.num_heads * self.head_dim * (projections + 2 * query_length * key_length)


class TemperedAttention(AttentionModule):
    """Multi-head attention whose heads learn how sharp they are."""

    formulation = Tempered

    def __init__(self, width, *, rngs=None, params=None, **options):
        super().__init__(width, rngs=rngs, params=params, **options)
        heads, size, memory_width = self.config.num_heads, self.config.head_dim, self.memory_width
        self.query = weight((width, heads, size), ("embed", "heads", "head_dim"))
        self.key = weight((memory_width, heads, size), ("embed", "heads", "head_dim"))
        self.value = weight((memory_width, heads, size), ("embed", "heads", "head_dim"))
        self.temperature = weight((heads,), ("heads",), Ones, decay=False)
        self.output = HeadOutput(heads, size, width, bias=False)
        self.fill(rngs, params)

    def key_values(self, inputs, positions):
        return {
            "key": jnp.einsum("bkw,whd->bkhd", inputs, self.key[...]),  # [batch, key, heads, head_dim]
            "value": jnp.einsum("bkw,whd->bkhd", inputs, self.value[...]),
        }

    def attend(self, inputs, key_values, call):
        query = jnp.einsum("bqw,whd->bqhd", inputs, self.query[...])  # [batch, query, heads, head_dim]
        query = query * self.temperature[...][None, None, :, None]
        return call(query, key_values["key"], key_values["value"], scale=1.0)


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
    masked = headjax.gated(model, dict.fromkeys(gone, 0.0))(BATCH).logits
    assert_close(pruned(BATCH).logits, masked, sums=500)
    pruned.save(tmp_path / "model")
    loaded = headjax.load(tmp_path / "model")
    assert loaded.config == pruned.config
    np.testing.assert_array_equal(loaded(BATCH).logits, pruned(BATCH).logits)


def test_it_works_in_a_flax_model():
    layer = TemperedAttention(16, num_heads=2, head_dim=4, rngs=nnx.Rngs(0))
    inputs = np.random.default_rng(0).standard_normal((2, 5, 16)).astype(np.float32)
    assert layer(inputs, mask=Mask(causal=True)).shape == (2, 5, 16)
    assert layer.temperature[...].shape == (2,)
