"""CP decompositions: exact where an exact one exists, monotone, deterministic; biases and scales are carried."""

import jax
import jax.numpy as jnp
import numpy as np

import headjax
from headjax.conversion.collaborative import Solver, concatenation, fit_layers, sweep
from headjax.conversion.per_head import leading_columns
from headjax.conversion.target import Products, relative_distance, squared_norm
from tests import tiny
from tests.closeness import assert_close, tolerance
from tests.conversion.cases import (
    DIM,
    EXACT,
    HEADS,
    LAYERS,
    PADDED,
    ROWS,
    attentions,
    encoder,
    hidden,
    layer_of,
    tensor,
)


def test_concatenated_heads_are_exact_at_full_rank(products: Products) -> None:
    one = layer_of(products)
    start = concatenation(one, HEADS * DIM)
    assert relative_distance(one, start.products()) < tolerance(ROWS)
    assert set(np.unique(start.mixing)) == {0.0, 1.0}
    np.testing.assert_array_equal(start.mixing.sum(axis=1), np.full(HEADS, DIM))


def test_each_factor_of_a_sweep_is_the_least_squares_solution(products: Products) -> None:
    one = layer_of(products)
    start = concatenation(one, 5)
    factors, squared_error, squared_size = jax.jit(sweep)(one, start, ridge=jnp.zeros(()), proximal=jnp.asarray(1e-7))
    left, mixing, right = (np.asarray(factor, np.float64) for factor in factors)
    full = tensor(one)
    components = np.einsum("rk,ck->krc", left, right).reshape(5, -1)
    best = np.linalg.lstsq(components.T, full.reshape(HEADS, -1).T, rcond=None)[0].T
    np.testing.assert_allclose(mixing, best, rtol=1e-3, atol=1e-4)
    approximation = np.einsum("rk,hk,ck->hrc", left, mixing, right)
    assert_close(squared_error + squared_norm(one), np.square(full - approximation).sum(), sums=tiny.SUMS)
    sizes = np.prod([np.square(factor).sum(axis=0) for factor in (left, mixing, right)], axis=0)
    assert_close(squared_size, sizes.sum(), sums=tiny.SUMS)


def test_the_error_falls_with_the_rank_and_is_the_reported_one(products: Products) -> None:
    errors = []
    for rank in (2, 5, 9):
        factors, reported = fit_layers(products, rank, Solver())
        exact = [relative_distance(layer_of(products, i), layer_of(factors, i).products()) for i in range(LAYERS)]
        assert_close(reported[:, -1], exact, sums=tiny.SUMS)
        errors.append(exact)
    assert np.all(np.diff(np.asarray(errors), axis=0) < 0)


def test_the_error_falls_from_sweep_to_sweep_and_the_same_bits_come_again(products: Products) -> None:
    (factors, errors), (same, _) = (fit_layers(products, 5, Solver(sweeps=40, tolerance=0.0)) for _ in range(2))
    assert np.all(np.diff(errors, axis=1) <= 1e-2)
    assert np.all(errors[:, -1] < errors[:, 0])
    for a, b in zip(factors, same, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_query_bias_and_the_original_scale_stay_exact_at_half_the_size() -> None:
    """All queries equal: what is left of the logits is the bias's content, whatever the rank.

    The published implementation divides by the compressed size, which multiplies all logits by sqrt(2) here.
    """
    attention = tiny.multi_head(num_heads=2, head_dim=8)
    generator = np.random.default_rng(0)
    # Two heads that read the same queries and keys are exact at half of num_heads * head_dim.
    # Logits are of the order of 1, so that the fit's relative error bounds that of the outputs.
    shared = {name: 0.3 * generator.standard_normal((tiny.WIDTH, 1, 8)).astype(np.float32) for name in ("query", "key")}
    source = encoder(attention, num_layers=1)
    layer = source.params["encoder"]["layers_0_0"]["attention"]
    repeated = {name: jnp.asarray(np.repeat(array, 2, axis=1))[None] for name, array in shared.items()}
    params = source.params | {
        "encoder": source.params["encoder"]
        | {"layers_0_0": source.params["encoder"]["layers_0_0"] | {"attention": layer | repeated}}
    }
    source = source.replace(params=params)
    converted, errors = headjax.convert(source, headjax.conversion.ToCollaborative(shared_dim=8))
    assert errors[0].relative_error < 1e-3
    assert attentions(converted)[0].head_dim == 8
    # The fit is iterative and stops at another error on another processor: that error is the unit of the outputs'.
    expected = hidden(source, PADDED)
    bound = 4.0 * errors[0].relative_error * np.abs(expected).max()
    assert np.abs(hidden(converted, PADDED) - expected).max() < bound

    def at_half(found):
        return found.module.like(found.config.replace(head_dim=found.config.head_dim // 2), found.params)

    halved = headjax.map_attention(converted, at_half)
    assert np.abs(hidden(halved, PADDED) - expected).max() > 3.0 * bound, "another scale is seen"


def test_key_biases_vanish_and_query_biases_become_the_content_bias(model) -> None:
    converted, _ = headjax.convert(model, EXACT["collaborative"])
    source, new = (m.params["encoder"]["layers_0_1"]["attention"] for m in (model, converted))
    expected = np.einsum("lmhd,lhd->lmh", source["key"], source["query_bias"])
    assert_close(new["content_bias"], expected, sums=tiny.SUMS)
    assert set(new) == {"query", "key", "mixing", "content_bias", "value", "value_bias", "output"}


def test_no_factorisation_is_batched(products: Products) -> None:
    """Batched ones of jaxlib wait on the threads that run them; two at a time have never finished on two cores."""
    one = layer_of(products)
    whole = jax.make_jaxpr(lambda products: fit_layers(products, 5, Solver(sweeps=2)))(products)
    shared = jax.make_jaxpr(lambda left, right: leading_columns(left, right, 2))(*one)
    for traced in (whole, shared):
        shapes = list(factorised(traced.jaxpr))
        assert len(shapes) > 1
        assert all(np.prod(shape[:-2]) == 1 for shape in shapes)


def factorised(jaxpr):
    """Yield the shapes of what a traced function factorises."""

    def is_jaxpr(leaf):
        return hasattr(leaf, "eqns") or hasattr(leaf, "jaxpr")

    for equation in jaxpr.eqns:
        if equation.primitive.name in ("qr", "svd", "eigh", "cholesky", "geqrf", "householder_product"):
            yield equation.invars[0].aval.shape
        for inner in filter(is_jaxpr, jax.tree.leaves(equation.params, is_leaf=is_jaxpr)):
            yield from factorised(getattr(inner, "jaxpr", inner))
