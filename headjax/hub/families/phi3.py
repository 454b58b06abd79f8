"""Phi-3: Llama with fused maps, of whose heads a part of the dimensions may turn."""

from __future__ import annotations

from headjax.hub.families.entries import text_classes
from headjax.hub.families.llama import HEAD_DIM, NORMS, decoder_family, decoder_rules, decoder_table
from headjax.hub.families.positions import rotary, window
from headjax.hub.rules import QUERY_KEY_VALUE, Rules, affine, projection
from headjax.hub.table import Optional, flag, number, record
from headjax.nn.norms import RMSNorm

_PART = number("partial_rotary_factor", 1.0)
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
        rotary_positions=rotary(part=_PART, head_dim=HEAD_DIM),
        part=_PART,
        layer_window=window(),
        norm=record(RMSNorm, epsilon=number("rms_norm_eps", 1e-5)),
        dropout=number("resid_pdrop", 0.0),
        embedding_dropout=Optional(number("embd_pdrop", 0.0), when=lambda fields: True),
    ),
    classes=text_classes(flag("tie_word_embeddings", False), padding=32000),
    rules=decoder_rules(NORMS, _FUSED),
    supported={"layer_types": (None,), "rope_scaling": (None,)},  # longrope depends on the length of a text
)
