"""Phi-3: Llama with fused maps, of whose heads a part of the dimensions may turn."""

from __future__ import annotations

from headjax.hub.families.entries import text_classes
from headjax.hub.families.llama import HEAD_DIM, NORMS, decoder_family, decoder_rules, decoder_table
from headjax.hub.families.positions import rotary, window
from headjax.hub.fields import Fields
from headjax.hub.rules import QUERY_KEY_VALUE, Rules, affine, projection
from headjax.hub.table import Custom, Optional, flag, number, record
from headjax.nn.norms import RMSNorm
from headjax.nn.rotary import RotaryHalves

_PART = number("partial_rotary_factor", 1.0)
_ROTARY = rotary(part=_PART, head_dim=HEAD_DIM)


def _read_rotary(fields: Fields) -> RotaryHalves:
    """Read rotary positions; every scaling is longrope here, whose frequencies change with the length of a text."""
    found: RotaryHalves = _ROTARY.read(fields)
    if found.scaling is not None:
        raise fields.error("rope_scaling", "Phi-3 has no scaling but longrope, which is not supported")
    return found


_FUSED: Rules = (
    *projection("self_attn.qkv_proj", QUERY_KEY_VALUE),
    *affine("self_attn.o_proj", "attention/output"),
    *projection("mlp.gate_up_proj", ("feed_forward/gate", "feed_forward/up")),
)

PHI3 = decoder_family(  # Abdin et al. 2024
    "phi3",
    "Phi3",
    decoder_table(
        projection_bias=False,
        output_bias=False,
        rotary_positions=Custom(_read_rotary, _ROTARY.writer),
        part=_PART,
        layer_window=window(),
        norm=record(RMSNorm, epsilon=number("rms_norm_eps", 1e-5)),
        dropout=number("resid_pdrop", 0.0),
        embedding_dropout=Optional(number("embd_pdrop", 0.0), when=lambda fields: True),
    ),
    classes=text_classes(flag("tie_word_embeddings", False), padding=32000),
    rules=decoder_rules(NORMS, _FUSED),
    supported={"layer_types": (None,)},
)
