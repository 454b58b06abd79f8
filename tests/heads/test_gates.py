"""Names of heads, and gates from them."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import headjax
from headjax.heads.head_id import position
from headjax.heads.seam import UNIT
from headjax.heads.site import at_path
from tests import tiny

KEPT = tiny.multi_head(2, head_ids=(0, 3))
CONFIG = tiny.decoder_config(tiny.layer(tiny.multi_head(4)), tiny.layer(KEPT), tiny.layer(tiny.no_heads()))
HEADS = headjax.all_heads(CONFIG)


@hypothesis.given(st.sampled_from(["encoder", "decoder", "cross"]), st.integers(0, 200), st.integers(0, 200))
def test_names_read_back_as_they_print(stack, layer, head):
    name = headjax.HeadId(stack, layer, head)
    assert str(name) == f"{stack}/{layer}/{head}"
    assert headjax.HeadId.parse(str(name)) == name


@pytest.mark.parametrize("text", ["", "encoder/1", "encoder/1/2/3", "Encoder/1/2", "encoder/1/+2", "encoder/\u0661/2"])
def test_anything_else_is_an_error(text):
    with pytest.raises(headjax.HeadjaxError, match="expected stack/layer/head"):
        headjax.HeadId.parse(text)


def test_all_heads_have_their_original_numbers():
    assert [str(head) for head in HEADS] == [
        "decoder/0/0", "decoder/0/1", "decoder/0/2", "decoder/0/3", "decoder/1/0", "decoder/1/3",
    ]  # fmt: skip
    assert position(CONFIG, headjax.HeadId("decoder", 1, 3)) == 1
    assert sorted(HEADS, reverse=True)[0] == headjax.HeadId("decoder", 1, 3)


def test_gates_are_those_of_the_heads_that_are_named():
    model = tiny.model(CONFIG)
    sites = headjax.attention_sites(model)
    assert tuple(head for site in sites for head in site.head_ids()) == HEADS
    off = headjax.gated(model, {HEADS[2]: 0.0, "decoder/1/3": 0.5})
    gates = [np.asarray(at_path(off, site.path).head_gate[...]) / UNIT for site in sites]
    np.testing.assert_array_equal(np.concatenate(gates, axis=None), [1, 1, 0, 1, 1, 0.5])
