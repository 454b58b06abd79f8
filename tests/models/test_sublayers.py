"""Feed-forward sub-layers against their formulas."""

from __future__ import annotations

import numpy as np
import pytest

from headjax.attention.operands import Dropout
from headjax.models.sublayers import Dense, GatedDense
from tests.closeness import assert_close

WIDTH, HIDDEN = 4, 6


@pytest.mark.parametrize("kind", [Dense, GatedDense])
@pytest.mark.parametrize("bias", [True, False])
def test_maps_are_those_of_the_formula(kind, bias):
    feed_forward = kind(HIDDEN, activation="relu", bias=bias)
    generator = np.random.default_rng(0)
    declared = feed_forward.tensors(WIDTH)
    params = {name: generator.standard_normal(tensor.shape).astype(np.float32) for name, tensor in declared.items()}
    assert ("up_bias" in params) == bias
    x = generator.standard_normal((2, 3, WIDTH)).astype(np.float32)

    def mapped(name, inputs):
        return inputs @ params[name] + params.get(f"{name}_bias", np.zeros(params[name].shape[1]))[None, None]

    activated = np.maximum(mapped("up" if kind is Dense else "gate", x), 0.0)
    inner = activated if kind is Dense else activated * mapped("up", x)
    assert_close(feed_forward.bind(params, WIDTH)(x, Dropout()), mapped("down", inner), sums=4 * (WIDTH + HIDDEN))
