"""The kernel that a formulation takes, without computing it."""

from __future__ import annotations

import pytest

from headjax.attention import MultiHead, NoHeads, explain
from headjax.core.errors import KernelError
from tests.attention.formulations import FORMULATIONS

MULTI_HEAD = FORMULATIONS["multi_head"]


def test_explain_answers_for_other_machines():
    assert explain(MULTI_HEAD, query_length=100).implementation == "einsum"
    assert explain(MULTI_HEAD, query_length=256, causal=True, padding=True, platform="tpu").implementation == "splash"
    assert explain(MULTI_HEAD, query_length=256, platform="tpu", devices=8).implementation == "einsum"
    assert explain(MULTI_HEAD, query_length=10, dtype="bfloat16", bias=True, platform="gpu").implementation == "cudnn"
    assert (
        explain(FORMULATIONS["collaborative"], query_length=9, platform="tpu").implementation == "collaborative_pallas"
    )
    assert explain(NoHeads(), query_length=9).implementation == "none"
    wide = MultiHead(num_heads=1, head_dim=768)
    with pytest.raises(KernelError, match="qk_dim is 768, and its largest is 128"):
        explain(wide, query_length=128, dtype="bfloat16", implementation="cudnn", platform="gpu")
    with pytest.raises(KernelError, match="no dropout"):
        explain(MULTI_HEAD, query_length=128, dropout=0.1, implementation="xla")
    with pytest.raises(KernelError, match="it adds no bias to the logits"):
        explain(MULTI_HEAD, query_length=128, segments=True, bias=True, implementation="splash", platform="tpu")


def test_talking_heads_refuse_kernels_that_cannot_mix():
    talking = FORMULATIONS["talking"]
    with pytest.raises(KernelError, match="talking heads mix the weights of all heads, and it never holds"):
        explain(talking, query_length=6, implementation="xla")
