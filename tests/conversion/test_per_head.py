"""Other sizes of heads, and gates around them."""

from __future__ import annotations

import jax

from headjax.attention import Collaborative, Gated
from headjax.conversion import ToCollaborative, ToFixed, convert
from tests import tiny
from tests.closeness import assert_close
from tests.conversion.cases import PADDED, attentions, hidden


def test_smaller_heads_come_back_from_larger_ones(model, outputs) -> None:
    larger = convert(model, ToFixed(head_dim=7)).model
    back = convert(larger, ToFixed(head_dim=4)).model
    assert [a.head_dim for a in attentions(back)] == [4, 4]
    assert_close(hidden(back, PADDED), outputs, sums=tiny.SUMS)


def test_gates_stay_around_what_is_converted_inside_them(model, outputs) -> None:
    gated = convert(model, "gated").model
    inside = convert(gated, ToCollaborative(shared_dim=16)).model
    assert all(isinstance(a, Gated) and isinstance(a.inner, Collaborative) for a in attentions(inside))
    assert_close(hidden(inside, PADDED), outputs, sums=tiny.SUMS)
    gate = jax.grad(jax.nn.sigmoid)(4.0)
    assert gate > 0.01
