"""What must hold for every formulation; a new one is covered by one line in `formulations.py`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.attention import Attention, Call, Mask, NoHeads
from headjax.core import tensors as declared
from headjax.core.serialize import from_data, kind_of, kinds_of, to_data
from headjax.core.tensors import RULES
from tests.attention.formulations import FORMULATIONS, SUMS, WIDTH, kept_heads, outputs_of, random_inputs, random_params
from tests.closeness import assert_close

BATCH, LENGTH = 2, 6

every = pytest.mark.parametrize("name", FORMULATIONS)


@functools.partial(jax.jit, static_argnums=0)
def run(attention: Attention, params: Any, x: Any, present: Any, gates: Any) -> Any:
    """Outputs `[batch, length, width]` of causal self-attention with padding and gates."""
    call = Call(mask=Mask(causal=True, keys=present), gates=gates)
    return outputs_of(attention, params, x, call)


@functools.partial(jax.jit, static_argnums=0)
def gradient(attention: Attention, params: Any, x: Any, present: Any, gates: Any, weights: Any) -> Any:
    """Gradient of sum(weights * outputs) with respect to the inputs and the gates."""

    def loss(x: Any, gates: Any) -> Any:
        return jnp.sum(weights * run(attention, params, x, present, gates))

    return jax.grad(loss, argnums=(0, 1))(x, gates)


def everything(attention: Attention) -> tuple[Any, Any]:
    """No padding and gates of one."""
    return np.ones((BATCH, LENGTH), bool), np.ones((BATCH, LENGTH, attention.num_heads), np.float32)


def test_every_registered_kind_has_an_example():
    shown = {kind_of(attention) for attention in FORMULATIONS.values()} | {"no_heads"}
    assert set(kinds_of(Attention)) == shown


@every
def test_every_axis_has_a_sharding_rule(name):
    tensors = declared.flatten(FORMULATIONS[name].tensors(WIDTH, WIDTH)).values()
    axes = {axis for tensor in tensors for axis in tensor.out_sharding}
    assert axes - {None} <= set(RULES)


@every
def test_survives_json(name):
    attention = FORMULATIONS[name]
    assert from_data(Attention, to_data(attention)) == attention
    assert from_data(Attention, to_data(attention.with_heads([1]))) == attention.with_heads([1])


@every
def test_a_gate_of_zero_is_removal(name):
    attention = FORMULATIONS[name]
    params, x = random_params(attention), random_inputs(BATCH, LENGTH)
    present, gates = everything(attention)
    keep = [attention.num_heads - 1, 0]
    gates[:, :, [head for head in range(attention.num_heads) if head not in keep]] = 0.0
    masked = run(attention, params, x, present, gates)

    pruned, kept = kept_heads(attention, params, keep)
    assert pruned.num_heads == 2
    assert pruned.ids == (attention.num_heads - 1, 0)
    declared.check(pruned.tensors(WIDTH, WIDTH), kept)
    assert declared.count(pruned.tensors(WIDTH, WIDTH)) < declared.count(attention.tensors(WIDTH, WIDTH))
    removed = run(pruned, kept, x, present, everything(pruned)[1])
    assert_close(removed, masked, sums=SUMS)

    # Removal composes: the heads of the pruned layer can go too, and a layer can lose all of them.
    last, kept = kept_heads(pruned, kept, [1])
    assert last.ids == (0,)
    declared.check(last.tensors(WIDTH, WIDTH), kept)
    gates[:, :, -1] = 0.0
    masked = run(attention, params, x, present, gates)
    assert_close(run(last, kept, x, present, everything(last)[1]), masked, sums=SUMS)
    none, kept = kept_heads(last, kept, [])
    assert isinstance(none, NoHeads)
    masked = run(attention, params, x, present, np.zeros_like(gates))
    assert_close(np.broadcast_to(run(none, kept, x, present, gates[:, :, :0]), masked.shape), masked, sums=SUMS)


@every
def test_gates_of_every_shape_and_their_gradient(name):
    attention = FORMULATIONS[name]
    params, x = random_params(attention), random_inputs(BATCH, LENGTH)
    present, ones = everything(attention)
    generator = np.random.default_rng(3)
    per_head = generator.uniform(size=(attention.num_heads,)).astype(np.float32)
    per_query = np.broadcast_to(per_head, ones.shape)
    expected = run(attention, params, x, present, per_query)
    for gates in (per_head, per_query[:, 0]):
        call = Call(mask=Mask(causal=True), gates=jnp.asarray(gates))
        assert_close(outputs_of(attention, params, jnp.asarray(x), call), expected, sums=SUMS)

    # Outputs are linear in the gates, so a finite difference is exact up to rounding.
    weights = generator.standard_normal(x.shape).astype(np.float32)
    _, slope = gradient(attention, params, x, present, per_query, weights)
    nudged = per_query.copy()
    nudged[1, 2, -1] += 1.0
    change = np.sum(weights * (run(attention, params, x, present, nudged) - expected))
    assert_close(slope[1, 2, -1], change, sums=2 * SUMS, scale=float(np.abs(weights * expected).sum()))


@every
def test_causality_and_padding_by_gradient(name):
    attention = FORMULATIONS[name]
    params, x = random_params(attention), random_inputs(BATCH, LENGTH)
    present, gates = everything(attention)
    present[1, 1] = False
    weights = np.zeros_like(x)
    weights[:, 3] = np.random.default_rng(4).standard_normal((BATCH, WIDTH))
    reached = np.abs(gradient(attention, params, x, present, gates, weights)[0]).max(axis=-1) > 1e-7
    assert reached[0].tolist() == [True, True, True, True, False, False]
    assert reached[1].tolist() == [True, False, True, True, False, False]


@every
def test_decoding_from_a_cache_is_the_full_pass(name):
    attention = FORMULATIONS[name]
    params, x = random_params(attention), jnp.asarray(random_inputs(BATCH, LENGTH))
    present, gates = everything(attention)
    full = run(attention, params, x, present, gates)
    module = attention.bind(params, WIDTH, WIDTH)
    remember = jax.jit(module.key_values)
    tokens = [remember(x[:, t : t + 1], jnp.full((1, 1), t)) for t in range(LENGTH)]
    cache = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *tokens)
    assert sum(leaf[0, 0].size for leaf in cache.values()) == attention.cache_size(WIDTH, WIDTH)
    t = LENGTH - 2
    # Without positions the mask's offset says where the query stands.
    mask = Mask(causal=True, query_offset=jnp.asarray(t))
    decoded = module.combine(
        jax.jit(lambda *arrays: module.attend(*arrays, Call(mask=mask)).context)(x[:, t : t + 1], cache)
    )
    assert_close(decoded[:, 0], full[:, t], sums=SUMS)


@every
def test_flops_agree_with_xla(name):
    attention = FORMULATIONS[name]
    width, queries, keys = 512, 48, 64
    large = enlarge(attention)
    params = declared.abstract(large.tensors(width, width))
    x = jax.ShapeDtypeStruct((1, queries, width), jnp.float32)
    y = jax.ShapeDtypeStruct((1, keys, width), jnp.float32)

    def forward(params: Any, x: Any, y: Any) -> Any:
        return outputs_of(large, params, x, Call(), y)

    counted = jax.jit(forward).lower(params, x, y).cost_analysis()["flops"]
    assert large.flops(width, width, queries, keys) == pytest.approx(counted, rel=0.02)


def enlarge(attention: Attention) -> Attention:
    """The formulation with every size 32 times larger, so that matrix products outweigh softmax and biases."""
    data = to_data(attention)

    def scaled(data: dict[str, Any]) -> dict[str, Any]:
        return {
            field: scaled(entry)
            if field == "inner"
            else 32 * entry  # a list, of the components of each frequency, is repeated
            if entry is not None and field.endswith(("_dim", "_rank", "rank", "components"))
            else entry
            for field, entry in data.items()
        }

    return from_data(Attention, scaled(data))


@every
def test_bfloat16_is_close(name):
    attention = FORMULATIONS[name]
    params, x = random_params(attention), random_inputs(BATCH, LENGTH)
    present, gates = everything(attention)
    expected = run(attention, params, x, present, gates)
    half = run(
        attention, jax.tree.map(lambda a: jnp.asarray(a, jnp.bfloat16), params), x.astype("bfloat16"), present, gates
    )
    assert half.dtype == jnp.bfloat16
    assert np.abs(np.asarray(half, np.float32) - expected).mean() < 0.03 * np.abs(expected).mean()
