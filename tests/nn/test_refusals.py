"""Formulations that cannot be: each is refused with the field that is to change."""

import pytest

import headjax
from headjax.core.fields import options_of
from headjax.core.serialize import class_of, make
from tests.nn.formulations import FORMULATIONS, KEPT

MULTI_HEAD = headjax.Kind(headjax.MultiHeadAttention, num_heads=2, head_dim=4)
GROUPED = headjax.Kind(headjax.GroupedAttention, num_heads=4, kv_heads=4, head_dim=4)
LATENT = headjax.Kind(headjax.LatentAttention, num_heads=2, rank=6, head_dim=4)
COLLABORATIVE = FORMULATIONS["collaborative"]


@pytest.mark.parametrize(
    ("attention", "fields", "field"),
    [
        (MULTI_HEAD, {"num_heads": 0}, "num_heads"),
        (MULTI_HEAD, {"head_dim": 0}, "head_dim"),
        (MULTI_HEAD, {"head_ids": (1, 1)}, "head_ids"),
        (GROUPED, {"kv_heads": 3}, "kv_heads"),
        (GROUPED, {"kv_heads": 2, "kv_index": (0, 0, 0, 0)}, "kv_index"),
        (KEPT, {"rotary": headjax.nn.RotaryHalves()}, "frequencies"),
        (KEPT, {"head_dim": 6}, "frequencies"),
        (KEPT, {"frequencies": ((0, 1), (1, 4), (0, 2))}, "frequencies"),
        (MULTI_HEAD, {"head_dim": 7, "rotary": headjax.nn.RotaryHalves()}, "head_dim"),
        (MULTI_HEAD, {"rotary": headjax.nn.RotaryHalves(dim=6)}, "head_dim"),
        (headjax.nn.RotaryHalves(), {"dim": 3}, "dim"),
        (headjax.nn.YarnScaling(factor=4.0, original_length=512), {"slow": 32.0}, "slow"),
        (COLLABORATIVE, {"shared_dim": 6, "mixing_init": headjax.nn.Concatenate()}, "shared_dim"),
        (LATENT, {"rotary": headjax.nn.RotaryHalves()}, "rotary_dim"),
        (LATENT, {"rotary_dim": 3, "rotary": headjax.nn.RotaryInterleaved()}, "rotary_dim"),
        (LATENT, {"query_norm": headjax.nn.RMSNorm()}, "query_norm"),
        (FORMULATIONS["compressed"], {"inner": FORMULATIONS["compressed"]}, "inner"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(attention, fields, field):
    with pytest.raises(headjax.ConfigError) as error:
        make(class_of(attention), {name: getattr(attention, name) for name in options_of(class_of(attention))} | fields)
    assert str(error.value).startswith(field), error.value
