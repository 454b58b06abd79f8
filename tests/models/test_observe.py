"""Every sub-layer seen as it joins the stream, without a change of the model's results."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from headjax.models import Options
from headjax.models.hooks import Hooks
from headjax.models.observe import Observing, variance
from tests import tiny
from tests.closeness import assert_close


def test_records_of_every_sub_layer_and_the_same_hidden_states():
    model = tiny.model(tiny.decoder_config())
    batch = tiny.tokens()

    def observer(joining, state):
        stream = Hooks().join(joining)
        return stream, state + 1, (state, jnp.square(stream).mean())

    @jax.jit
    def observed(params):
        observing = Observing(observer, jnp.zeros((), jnp.int32))
        return model.config.apply(params, batch, Options(hooks=observing)).hidden, observing.records

    hidden, records = observed(model.params)
    assert_close(hidden, model(batch).hidden, sums=tiny.SUMS)
    count = 2 * len(model.config.decoder.layers)
    assert [int(number) for number, _ in records["decoder"]] == list(range(count))
    assert all(float(square) > 0.0 for _, square in records["decoder"])


def test_variance_counts_marked_tokens():
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    mask = np.array([[True, False, True], [False, False, True]])
    assert_close(variance(x), x.var(), sums=x.size)
    assert_close(variance(x, mask), x[mask].var(), sums=x.size)
