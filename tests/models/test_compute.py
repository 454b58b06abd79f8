"""Options of a forward, and groups of layers as scans."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from headjax.core.errors import ConfigError
from headjax.core.tensors import abstract
from headjax.models import Compute, Options
from tests import tiny

MULTI = tiny.layer()


def test_names_and_types_are_checked_when_the_options_are_made():
    with pytest.raises(ConfigError, match=r"attention: "):
        Compute(attention="splas")
    with pytest.raises(ConfigError, match=r"attention: "):
        Compute(attention="cudnn")


def test_a_deeper_run_is_no_longer_program():
    """One scan whatever the depth; unrolled, the program grows with it."""

    def equations(depth: int, scan: bool) -> int:
        config = tiny.decoder_config(*[MULTI] * depth)
        options = Options(compute=Compute(scan=scan))
        batch = {"input_ids": jax.ShapeDtypeStruct((2, 8), jnp.int32)}
        jaxpr = jax.make_jaxpr(lambda p, b: config.apply(p, b, options).logits)(abstract(config.tensors()), batch)
        return len(jaxpr.eqns)

    assert equations(3, scan=True) == equations(144, scan=True)
    assert equations(6, scan=False) > 1.5 * equations(3, scan=False)


def test_stacked_layers_are_drawn_apart():
    """Layers of a group start from different weights."""
    params = tiny.decoder_config().initialize(jax.random.key(0))["decoder"]["layers_0_1"]["attention"]["query"]
    assert float(jnp.abs(params[0] - params[1]).max()) > 0.1
