"""Other sizes of heads."""

import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from tests import tiny
from tests.closeness import assert_close
from tests.conversion.cases import PADDED, attentions, converted_layer, hidden
from tests.nn.formulations import WIDTH, outputs_of, random_inputs, random_params


def test_smaller_heads_come_back_from_larger_ones(model, outputs) -> None:
    larger = headjax.convert(model, headjax.conversion.ToFixed(head_dim=7)).model
    back = headjax.convert(larger, headjax.conversion.ToFixed(head_dim=4)).model
    assert [a.head_dim for a in attentions(back)] == [4, 4]
    assert_close(hidden(back, PADDED), outputs, sums=tiny.SUMS)


@pytest.mark.parametrize(
    ("sizes", "field"), [({"head_dim": 10**12}, "head_dim"), ({"head_dim": 4, "value_dim": 10**12}, "value_dim")]
)
def test_heads_beyond_memory_are_refused_by_the_name_of_the_field(model, sizes, field):
    """Before anything is computed, which would end in an error of the memory at large."""
    with pytest.raises(headjax.ConfigError, match=f"0: {field}:"):
        headjax.convert(model, headjax.conversion.ToFixed(**sizes))


ROTARY = tiny.multi_head(3, 6, rotary=headjax.nn.RotaryHalves(base=100.0), value_dim=4)


def test_smaller_heads_that_turn_keep_the_frequencies_of_their_logits() -> None:
    """Exactly, where a head has no keys at the others; each head has its own."""
    params, inputs = random_params(ROTARY), jnp.asarray(random_inputs())
    kept = ((0, 1), (1, 2), (0, 2))
    mask = np.zeros((3, 6), np.float32)
    for head, pair in enumerate(kept):
        mask[head, [*pair, *(number + 3 for number in pair)]] = 1.0
    params |= {"key": params["key"] * mask[None], "key_bias": params["key_bias"] * mask}
    found, weights = converted_layer(ROTARY, params, headjax.conversion.ToFixed(head_dim=4, value_dim=4))
    assert (found.head_dim, found.frequencies, found.rotary.dim) == (4, kept, 6)

    def output(attention, params):
        return outputs_of(attention, params, inputs)

    assert_close(output(found, weights), output(ROTARY, params), sums=2 * tiny.SUMS)


@pytest.mark.parametrize(
    ("target", "fields", "field"),
    [
        (headjax.conversion.ToFixed(head_dim=3), {}, "head_dim"),
        (headjax.conversion.ToFixed(head_dim=4), {"rotary": headjax.nn.RotaryHalves(dim=2)}, "rotary"),
        (
            headjax.conversion.ToGrouped(kv_heads=1),
            {"head_dim": 2, "rotary": headjax.nn.RotaryHalves(dim=4), "frequencies": ((0,), (1,), (1,))},
            "frequencies",
        ),
    ],
)
def test_heads_that_turn_and_cannot_shrink_are_refused(target, fields, field) -> None:
    with pytest.raises(headjax.ConfigError, match=f"^{field}:"):
        target.check(ROTARY.replace(**fields), WIDTH, WIDTH)
