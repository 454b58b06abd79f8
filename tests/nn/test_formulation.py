"""What must hold for every formulation; a new one is covered by one line in `formulations.py`."""

import copy
import functools
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import headjax
from headjax.core import tensors as declared
from headjax.core.serialize import class_of_kind, from_data, kind_of, kinds_of, to_data
from headjax.core.tensors import RULES
from tests import tiny
from tests.closeness import assert_close
from tests.nn.formulations import (
    FORMULATIONS,
    KEPT,
    SUMS,
    WIDTH,
    kept_heads,
    module,
    outputs_of,
    random_inputs,
    random_params,
)
from tests.tiny import flatten

BATCH, LENGTH = 2, 6
WEIGHTS = np.random.default_rng(2).standard_normal((BATCH, LENGTH, WIDTH)).astype(np.float32)

EVERY = FORMULATIONS | {"own_frequencies": KEPT}
every = pytest.mark.parametrize("name", EVERY)


@functools.partial(jax.jit, static_argnums=0)
def run(attention: headjax.Kind, params: Any, x: Any, present: Any, gates: Any, weights: Any) -> Any:
    """Outputs of causal self-attention with padding and gates; gradient of sum(weights * outputs) in x and gates.

    One program of each formulation, which most tests of it call.
    """

    def loss(x: Any, gates: Any) -> Any:
        outputs = outputs_of(
            attention,
            params,
            x,
            headjax.nn.AttentionOptions(mask=headjax.nn.Mask(causal=True, keys=present)),
            gates=gates,
        )
        return jnp.sum(weights * outputs), outputs

    slopes, outputs = jax.grad(loss, argnums=(0, 1), has_aux=True)(x, gates)
    return outputs, *slopes


def everything(attention: headjax.Kind) -> tuple[Any, Any]:
    """No padding and gates of one."""
    return np.ones((BATCH, LENGTH), bool), np.ones((BATCH, LENGTH, attention.num_heads), np.float32)


def test_every_registered_kind_has_an_example():
    shown = {kind_of(attention) for attention in FORMULATIONS.values()} | {"no_heads"}
    ours = {name for name in kinds_of(headjax.Kind) if class_of_kind(name).__module__.startswith("headjax.")}
    assert ours == shown


@every
def test_is_saved_and_every_axis_has_a_sharding_rule(name):
    attention = EVERY[name]
    for saved in (attention, attention.module(WIDTH, WIDTH).config_after_pruning([1])):
        assert from_data(headjax.Kind, to_data(saved)) == saved
    axes = {axis for tensor in flatten(tiny.weights(attention, WIDTH, WIDTH)).values() for axis in tensor.out_sharding}
    assert axes - {None} <= set(RULES)


@every
def test_a_gate_of_zero_is_removal(name):
    attention = EVERY[name]
    params, x = random_params(attention), random_inputs(BATCH, LENGTH)
    present, gates = everything(attention)
    keep = [attention.num_heads - 1, 0]
    gates[:, :, [head for head in range(attention.num_heads) if head not in keep]] = 0.0
    masked, *_ = run(attention, params, x, present, gates, WEIGHTS)

    pruned, kept = kept_heads(attention, params, keep)
    assert pruned.num_heads == 2
    assert pruned.ids == (attention.num_heads - 1, 0)
    declared.check(tiny.weights(pruned, WIDTH, WIDTH), kept)
    assert declared.count(tiny.weights(pruned, WIDTH, WIDTH)) < declared.count(tiny.weights(attention, WIDTH, WIDTH))
    removed, *_ = run(pruned, kept, x, present, everything(pruned)[1], WEIGHTS)
    assert_close(removed, masked, sums=SUMS)


@every
def test_decoding_from_a_cache_is_the_full_pass(name):
    """Token by token, then one query at the place that the mask's offset says, without positions."""
    attention = EVERY[name]
    params, x = random_params(attention), random_inputs(BATCH, LENGTH)
    full, *_ = run(attention, params, x, *everything(attention), WEIGHTS)

    @jax.jit
    def remember(token, position):
        return tiny.bound(attention, params, WIDTH, WIDTH).key_values(token, position)

    @jax.jit
    def decode(query, cache, t):
        module = tiny.bound(attention, params, WIDTH, WIDTH)
        mask = headjax.nn.Mask(causal=True, query_offset=t)
        attended = module.attend(query, cache, headjax.nn.AttentionOptions(mask=mask))
        return module.output(jax.lax.collapse(attended.context, 2))

    tokens = [remember(x[:, t : t + 1], np.full((1, 1), t)) for t in range(LENGTH)]
    cache = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *tokens)
    assert sum(leaf[0, 0].size for leaf in cache.values()) == attention.module(WIDTH, WIDTH).cache_size()
    t = LENGTH - 2
    assert_close(decode(x[:, t : t + 1], cache, t)[:, 0], full[:, t], sums=SUMS)


@pytest.mark.parametrize("name", FORMULATIONS)
def test_flops_agree_with_xla(name):
    attention = EVERY[name]
    width, queries, keys = 512, 48, 64
    large = enlarge(attention)
    params = declared.abstract(tiny.weights(large, width, width))
    x = jax.ShapeDtypeStruct((1, queries, width), jnp.float32)
    y = jax.ShapeDtypeStruct((1, keys, width), jnp.float32)

    def forward(params: Any, x: Any, y: Any) -> Any:
        return outputs_of(large, params, x, headjax.nn.AttentionOptions(), y)

    counted = jax.jit(forward).lower(params, x, y).cost_analysis()
    if counted is None:
        pytest.skip(f"XLA counts no FLOPs on {jax.default_backend()}")
    assert large.module(width, width).flops(queries, keys) == pytest.approx(counted["flops"], rel=0.02)


def enlarge(attention: headjax.Kind) -> headjax.Kind:
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

    return from_data(headjax.Kind, scaled(data))


@nnx.jit
def of_module(layer, inputs):
    """Outputs of a Flax module and the gradient of their squares in its weights."""

    def loss(layer):
        outputs = layer(inputs, mask=headjax.nn.Mask(causal=True))
        return jnp.square(outputs).sum(), outputs

    slopes, outputs = nnx.grad(loss, has_aux=True)(layer)
    return outputs, slopes


@pytest.mark.parametrize("name", FORMULATIONS)
def test_its_module_is_split_merged_jitted_differentiated_copied_and_pickled(name):
    attention, layer = FORMULATIONS[name], module(name)
    params, x = random_params(attention), random_inputs(BATCH, LENGTH)
    present, gates = everything(attention)
    assert type(layer) is attention.of
    assert list(flatten(layer.params)) == list(flatten(tiny.weights(attention, WIDTH, WIDTH)))
    found, slopes = of_module(layer, x)
    assert_close(found, run(attention, params, x, present, gates, WEIGHTS)[0], sums=WIDTH)
    for twin in (nnx.merge(*nnx.split(layer)), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        np.testing.assert_array_equal(of_module(twin, x)[0], found)
        assert twin.kind == attention
    state = nnx.to_pure_dict(nnx.state(layer, nnx.Param))
    assert flatten(state).keys() == flatten(layer.params).keys()
    sizes = [float(np.abs(slope).max()) for slope in jax.tree.leaves(slopes)]
    assert [slope.shape for slope in jax.tree.leaves(slopes)] == [array.shape for array in jax.tree.leaves(state)]
    assert np.isfinite(sizes).all()
    assert max(sizes) > 0.0
