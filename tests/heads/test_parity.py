"""Every definition of importance against PyTorch's autograd, on imported models."""

import importlib.util

import numpy as np
import pytest

import headjax
from benchmarks.heads import torch_gate_gradient
from tests import tiny
from tests.closeness import assert_close, close_to

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs the parity extra"),
]

LAYERS, HEADS, VOCABULARY, LENGTH = 3, 4, 50, 12
LENGTHS = ((12, 7, 9), (5, 12, 11))
"""Tokens of each example of the two batches; the rest is padding."""


def bert(transformers):
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=24, max_position_embeddings=20, num_labels=3, initializer_range=0.3,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    return model, [layer.attention.output.dense for layer in model.bert.encoder.layer]


def gpt2(transformers):
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=LAYERS, n_head=HEADS, n_positions=20, initializer_range=0.3,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    return model, [block.attn.c_proj for block in model.transformer.h]


def batches(stack):
    generator = np.random.default_rng(0)
    for lengths in LENGTHS:
        mask = (np.arange(LENGTH)[None, :] < np.array(lengths)[:, None]).astype(np.int32)
        tokens = generator.integers(0, VOCABULARY, mask.shape, dtype=np.int32)
        labels = generator.integers(0, 3, len(lengths), dtype=np.int32)
        if stack == "decoder":
            labels = np.where(mask == 1, tokens, -100).astype(np.int32)
        yield {"input_ids": tokens, "attention_mask": mask, "labels": labels}


@pytest.mark.parametrize("build, stack", [(bert, "encoder"), (gpt2, "decoder")])
def test_every_definition_is_what_autograd_gives(build, stack, tmp_path):
    import torch
    import transformers

    torch.manual_seed(0)
    peer, projections = build(transformers)
    peer.eval()
    peer.save_pretrained(tmp_path)
    model = headjax.from_huggingface(tmp_path)
    expected = {"importance": 0.0, "importance_token": 0.0, "fisher": 0.0}
    given = list(batches(stack))
    losses, targets = 0.0, 0
    for batch in given:
        tensors = {name: torch.from_numpy(array).long() for name, array in batch.items()}
        labels = tensors.pop("labels")

        def loss(tensors=tensors, labels=labels):
            logits = peer(**tensors).logits
            if stack == "decoder":
                logits, labels = logits[:, :-1], labels[:, 1:]
            return torch.nn.functional.cross_entropy(
                logits.flatten(0, -2), labels.flatten(), reduction="sum", ignore_index=-100
            )

        total, gradient = torch_gate_gradient(projections, (*batch["input_ids"].shape, HEADS), loss)
        by_token = gradient.double().numpy()
        example = by_token.sum(axis=2)
        expected["importance"] += np.abs(example).sum(axis=1)
        expected["importance_token"] += np.abs(by_token).sum(axis=(1, 2))
        expected["fisher"] += np.square(example).sum(axis=1)
        losses += float(total)
        targets += int((labels[:, 1:] if stack == "decoder" else labels).ne(-100).sum())
    examples = sum(map(len, LENGTHS))
    divisors = {"importance": examples, "importance_token": np.sum(LENGTHS)}
    scores = headjax.score_heads(model, given)
    for name in ("importance", "importance_token", "fisher"):
        values = scores.score(name)
        ours = np.array(
            [[values[headjax.HeadId(stack, layer, head)] for head in range(HEADS)] for layer in range(LAYERS)]
        )
        assert_close(ours, expected[name] / divisors.get(name, 1), sums=2 * tiny.SUMS, message=name)
    assert scores.loss == close_to(losses / targets, sums=tiny.SUMS)
