"""Which kernel is taken, and what is said when none or another would be."""

from __future__ import annotations

import logging

import pytest

from headjax.attention import Grouped, MultiHead, NoHeads, explain
from headjax.attention.kernels import KERNELS, CallFacts, choose, refusal, target
from headjax.attention.kernels.choose import _say_once
from headjax.core.errors import KernelError
from tests.attention.formulations import FORMULATIONS

MULTI_HEAD = MultiHead(num_heads=4, head_dim=64)

ASKED = CallFacts(
    platform="tpu",
    devices=1,
    dtype="bfloat16",
    queries=256,
    keys=256,
    heads=4,
    key_heads=4,
    value_heads=4,
    qk_dim=64,
    value_dim=64,
    masks=frozenset({"causal"}),
    bias="none",
    dropout=False,
    mixing=False,
    probabilities=False,
)


@pytest.mark.parametrize(
    "platform, changes, taken, because",
    [
        ("cpu", {}, "einsum", "no kernel is preferred on cpu"),
        ("tpu", {}, "splash", "preferred on tpu; not collaborative_pallas: it needs one shared query"),
        ("tpu", {"mixing": True, "key_heads": 1}, "collaborative_pallas", "preferred on tpu"),
        ("tpu", {"queries": 100}, "einsum", "not splash: the query length is 100, and it needs multiples of 128"),
        ("tpu", {"bias": "full"}, "einsum", "not splash: it adds no bias to the logits, and this call has one"),
        ("tpu", {"masks": frozenset({"causal", "offset"})}, "einsum", "not splash: it knows no offset mask"),
        ("tpu", {"devices": 4}, "einsum", "not splash: XLA does not spread it over 4 devices by itself"),
        ("tpu", {"generation": 3}, "einsum", "not splash: it computes in bfloat16 from TPU v4 on, and this is v3"),
        ("tpu", {"generation": 3, "dtype": "float32"}, "splash", "preferred on tpu"),
        ("tpu", {"generation": 5}, "splash", "preferred on tpu"),
        ("tpu", {"probabilities": True}, "einsum", "not splash: it returns no probabilities, and a probe may look"),
        ("gpu", {}, "cudnn", "preferred on gpu"),
        ("gpu", {"dtype": "float32"}, "einsum", "not cudnn: it computes in bfloat16 and float16, and the inputs are"),
        ("gpu", {"qk_dim": 768}, "einsum", "not cudnn: qk_dim is 768, and its largest is 128"),
        ("gpu", {"dropout": True}, "einsum", "not cudnn: it has no dropout of attention probabilities"),
    ],
)
def test_auto_takes_the_best_that_can_and_says_why(platform, changes, taken, because):
    choice = choose("auto", ASKED._replace(platform=platform, **changes))
    assert choice.implementation == taken
    assert because in choice.reason


def test_a_named_kernel_is_taken_or_refused_never_replaced():
    assert choose("xla", ASKED).implementation == "xla"
    message = (
        "attention implementation: splash cannot compute this: the key length is 200, and it needs multiples of 128; "
        "einsum and xla can"
    )
    with pytest.raises(KernelError) as error:
        choose("splash", ASKED._replace(keys=200))
    assert str(error.value).startswith(message)
    with pytest.raises(KernelError, match="unknown name 'splas'; did you mean 'splash'"):
        choose("splas", ASKED)


def test_the_reference_can_do_everything():
    hard = {"dropout": True, "bias": "full", "qk_dim": 768, "queries": 7, "dtype": "float16"}
    assert refusal(KERNELS["einsum"].can, ASKED._replace(**hard)) is None


def test_the_choice_is_logged_once(caplog):
    _say_once.cache_clear()
    with caplog.at_level(logging.INFO, logger="headjax.attention"):
        for _ in range(3):
            choose("auto", ASKED)
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == ["attention on tpu: splash"]


def test_a_target_holds_only_within():
    with target("tpu"):
        assert explain(Grouped(num_heads=4, kv_heads=2, head_dim=8), query_length=128).implementation == "splash"
    assert explain(Grouped(num_heads=4, kv_heads=2, head_dim=8), query_length=128).implementation == "einsum"


@pytest.mark.parametrize(
    ("attention", "machine", "answer"),
    [
        (MULTI_HEAD, {"query_length": 100}, "einsum"),
        (MULTI_HEAD, {"query_length": 256, "causal": True, "padding": True, "platform": "tpu"}, "splash"),
        (MULTI_HEAD, {"query_length": 256, "platform": "tpu", "devices": 8}, "einsum"),
        (MULTI_HEAD, {"query_length": 10, "dtype": "bfloat16", "bias": True, "platform": "gpu"}, "cudnn"),
        (FORMULATIONS["collaborative"], {"query_length": 9, "platform": "tpu"}, "collaborative_pallas"),
        (NoHeads(), {"query_length": 9}, "none"),
        (
            MultiHead(num_heads=1, head_dim=768),
            {"query_length": 128, "dtype": "bfloat16", "implementation": "cudnn", "platform": "gpu"},
            KernelError("qk_dim is 768, and its largest is 128"),
        ),
        (MULTI_HEAD, {"query_length": 128, "dropout": 0.1, "implementation": "xla"}, KernelError("no dropout")),
        (
            MULTI_HEAD,
            {"query_length": 128, "segments": True, "bias": True, "implementation": "splash", "platform": "tpu"},
            KernelError("it adds no bias to the logits"),
        ),
    ],
)
def test_explain_answers_for_any_machine(attention, machine, answer):
    if isinstance(answer, KernelError):
        with pytest.raises(KernelError, match=str(answer)):
            explain(attention, **machine)
    else:
        assert explain(attention, **machine).implementation == answer
