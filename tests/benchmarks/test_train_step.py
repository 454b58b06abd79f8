"""The train-step benchmark: the model that is measured, and its peer's absence."""

from benchmarks.train_step import bert
from headjax.core.tensors import count


def test_the_measured_model_is_bert_base():
    config = bert(12, 12)
    layers = config.attentions()["encoder"]
    assert [(layer.num_heads, layer.head_dim) for layer in layers] == [(12, 64)] * 12
    # BERT-base with its masked-language-model head, as transformers' BertForMaskedLM counts it.
    assert count(config.tensors()) == 109_514_298
