"""Forms between their tensors and ours are inverses and know each other's shapes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headjax.core.tensors import weight
from headjax.hub.rules import FLAT, LAST_FIRST, MATRIX, SAME, TRANSPOSED, leading

FORMS = [SAME, FLAT, leading(), leading(2), MATRIX, TRANSPOSED, LAST_FIRST]


@st.composite
def tensors(draw, smallest=2):
    shape = draw(st.lists(st.integers(1, 4), min_size=smallest, max_size=4))
    inputs = draw(st.integers(1, len(shape) - 1)) if len(shape) > 1 else 1
    return weight(tuple(shape), (None,) * len(shape), inputs=tuple(range(inputs)))


@pytest.mark.parametrize("form", FORMS, ids=str)
@given(tensor=tensors())
def test_there_and_back(form, tensor):
    ours = np.arange(tensor.size, dtype=np.float32).reshape(tensor.shape)
    theirs = form.store([ours], [tensor])
    assert theirs.shape == form.shape([tensor])
    np.testing.assert_array_equal(form.load(theirs, [tensor], 0), ours)


def test_linear_layers_are_transposed():
    """y = x W^T there is sum over the inputs here, whichever dimensions are the inputs."""
    generator = np.random.default_rng(0)
    x, theirs = generator.standard_normal((3, 6)), generator.standard_normal((8, 6))
    into = weight((6, 4, 2), (None,) * 3, inputs=(0,))
    np.testing.assert_allclose(
        np.einsum("ni,ihd->nhd", x, TRANSPOSED.load(theirs, [into], 0)), (x @ theirs.T).reshape(3, 4, 2)
    )
    out = weight((3, 2, 8), (None,) * 3, inputs=(0, 1))
    np.testing.assert_allclose(
        np.einsum("nhd,hdo->no", x.reshape(3, 3, 2), TRANSPOSED.load(theirs, [out], 0)), x @ theirs.T
    )


def test_fused_parts_lie_side_by_side():
    parts = [weight((3, heads, 2), (None,) * 3, inputs=(0,)) for heads in (2, 1, 3)]
    arrays = [np.full(part.shape, i, np.float32) for i, part in enumerate(parts)]
    form = MATRIX
    theirs = form.store(arrays, parts)
    assert theirs.shape == form.shape(parts) == (3, 12)
    assert theirs[0].tolist() == [0] * 4 + [1] * 2 + [2] * 6
    for i, array in enumerate(arrays):
        np.testing.assert_array_equal(form.load(theirs, parts, i), array)
