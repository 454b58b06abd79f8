"""The benchmarks beside PyTorch: the model that is measured, its speed-up, and the peer's absence."""

from __future__ import annotations

import sys

import pytest

from benchmarks import heads, train_step
from headjax.core.errors import HeadjaxError
from headjax.core.tensors import count
from headjax.core.timing import Timing


@pytest.mark.parametrize("bench", [heads, train_step])
def test_without_pytorch_it_says_so_before_anything_is_measured(bench, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(bench, "bert", lambda *arguments: pytest.fail("measured"))
    with pytest.raises(HeadjaxError, match=rf"^bench {bench.__name__.rpartition('.')[2]}: .*torch"):
        bench.run()


def test_the_measured_model_is_bert_base():
    config = train_step.bert()
    layers = config.attentions()["encoder"]
    assert [(layer.num_heads, layer.head_dim) for layer in layers] == [(12, 64)] * 12
    # BERT-base with its masked-language-model head, as transformers' BertForMaskedLM counts it.
    assert count(config.tensors()) == 109_514_298


def test_speed_up_is_how_many_times_as_fast():
    assert heads.speed_up({"whole": Timing(3.0, 0, 0, 5), "pruned": Timing(2.0, 0, 0, 5)}) == pytest.approx(1.5)
