"""FLOPs of programs: products of matrices, as often as they run, and nothing that nobody reads."""

import jax
import jax.numpy as jnp

from headjax.nn.flops import product_flops

X, W = jax.ShapeDtypeStruct((3, 4), jnp.float32), jax.ShapeDtypeStruct((4, 4), jnp.float32)
ONE = 2 * 3 * 4 * 4


def test_products_count_as_often_as_they_run():
    assert product_flops(lambda x, w: x @ w + 1.0, X, W) == ONE
    assert product_flops(jax.jit(lambda x, w: jnp.einsum("nk,kd->nd", x, w) @ w), X, W) == 2 * ONE
    repeated = lambda x, w: jax.lax.scan(lambda x, _: (x @ w, None), x, length=5)[0]  # noqa: E731
    assert product_flops(repeated, X, W) == 5 * ONE


def test_weighted_sums_and_results_that_nobody_reads_do_not_count():
    assert product_flops(lambda x, w: jnp.einsum("n,nk->k", x[:, 0], x), X, W) == 0

    def half(x, w):
        unread = x @ w
        del unread
        return x @ w

    assert product_flops(half, X, W) == ONE
