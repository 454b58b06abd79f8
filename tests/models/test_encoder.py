"""The encoder and its relatives: padding, segments, positions, shared layers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import headjax
from headjax.core import tensors
from headjax.core.modules import declared
from headjax.nn.block import Block
from headjax.nn.embeddings import Positions, few_rows
from tests import tiny
from tests.closeness import assert_close

SIZES = {"vocab_size": tiny.VOCABULARY, "max_length": tiny.MAX_LENGTH, "width": tiny.WIDTH, "num_layers": 3}
RELATIVES = {
    "bert": {},
    "distilbert": {"segments": 0, "pooler": None},
    "roberta": {
        "segments": 1, "pooler": None, "norm": headjax.nn.LayerNorm(1e-5), "positions": "learned_present",
        "position_offset": 2,
    },
    "albert": {"shared_layers": True, "embedding_size": 8, "dropout": 0.0, "attention_dropout": 0.0},
}  # fmt: skip
PADDED = tiny.tokens() | {"attention_mask": np.array([[1] * 10, [1] * 7 + [0] * 3])}


def config(name: str = "bert", **fields) -> headjax.EncoderConfig:
    defaults = {"attention": tiny.multi_head(), "hidden": 32, "initializer": headjax.nn.Normal(0.3)}
    return headjax.EncoderConfig(**SIZES | defaults | RELATIVES[name] | fields)


def test_rows_of_a_small_table_are_looked_up_exactly_with_the_gradient_of_a_look_up():
    table = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)), jnp.float32)
    rows, weights = jnp.array([[0, 2, 2], [0, 0, 2]]), jnp.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(few_rows(table, rows), table[rows])
    found, expected = (
        jax.grad(lambda table, read=read: (read(table) * weights).sum())(table)
        for read in (lambda table: few_rows(table, rows), lambda table: table[rows])
    )
    np.testing.assert_array_equal(found, expected)


def test_encoders_count_positions_as_transformers_does():
    """RoBERTa's family counts tokens other than the padding token, which has id 1; others count padding."""
    left, right = ({"input_ids": np.array([row])} for row in ([1, 1, 5, 6, 7], [5, 6, 7, 1, 1]))
    left, right = (batch | {"attention_mask": batch["input_ids"] != 1} for batch in (left, right))
    roberta, bert = tiny.model(config("roberta")), tiny.model(config("bert"))
    assert_close(roberta(left).hidden[:, 2:], roberta(right).hidden[:, :3], sums=tiny.SUMS)
    assert np.abs(bert(left).hidden[:, 2:] - bert(right).hidden[:, :3]).max() > 0.1
    # Rows of the table: padding has 1, the first token 2, whatever the mask shows.
    positions = Positions("learned_present", 5, offset=2)
    np.testing.assert_array_equal(positions.count(jnp.asarray([[1, 9, 0, 1, 4]])) + 2, [[1, 2, 3, 1, 4]])
    assert positions.table(3).shape == (7, 3)


def test_albert_is_one_layer_at_every_depth():
    """The same function as an ordinary stack that holds the layer three times, with a third of its parameters."""
    shared = tiny.model(config("albert"))
    plain = dataclasses.replace(shared.config, shared_layers=False)
    stack, three = (config.stacks()["encoder"] for config in (shared.config, plain))
    params = shared.params | {"encoder": three.restack(stack.unstack(shared.params["encoder"]), {})}
    ordinary = shared.replace(config=plain, params=params)
    tensors.check(ordinary.config.tensors(), ordinary.params)
    assert_close(ordinary(PADDED).hidden, shared(PADDED).hidden, sums=tiny.SUMS)
    layer = tensors.count(declared(Block(stack.layers[0])))
    assert ordinary.num_parameters - shared.num_parameters == 2 * layer
    assert ordinary.config.flops(10) == shared.config.flops(10)


def test_a_head_of_shared_layers_is_gated_by_depth_and_removed_at_every_depth():
    shared = tiny.model(config("albert"))
    once = headjax.gated(shared, {"encoder/1/2": 0.0})
    probed = once(PADDED, probe=lambda probe: probe.attended.context).probes["encoder"]
    assert [bool(np.any(contexts[..., 2, :])) for contexts in probed] == [True, False, True]
    pruned = headjax.prune(shared, ["encoder/1/2"])
    tensors.check(pruned.config.tensors(), pruned.params)
    assert [attention.ids for attention in pruned.config.attentions()["encoder"]] == [(0, 1, 3)] * 3
    assert pruned.history[-1]["removed"] == ["encoder/0/2", "encoder/1/2", "encoder/2/2"]
    off = headjax.gated(shared, {f"encoder/{depth}/2": 0.0 for depth in range(3)})
    assert_close(pruned(PADDED).hidden, off(PADDED).hidden, sums=tiny.SUMS)
