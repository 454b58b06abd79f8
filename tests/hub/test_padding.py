"""Padding: every parameter is stacked once, however many layers are looked at first."""

from __future__ import annotations

from headjax.hub.padding import pad_heads
from headjax.models.stack import Stack
from tests.hub.directories import BERT, T5, family, model_of


def test_padding_stacks_the_parameters_once(monkeypatch):
    """To look at the heads is no reason to write all parameters anew: one pass over each stack does."""
    stacked = []
    restack = Stack.restack

    def counted(self, layers, params):
        stacked.append(len(layers))
        return restack(self, layers, params)

    monkeypatch.setattr(Stack, "restack", counted)
    for fields, stacks in ((BERT, 1), (T5, 2)):
        stacked.clear()
        pad_heads(model_of(fields), family(fields["model_type"]))
        assert stacked == [2] * stacks
