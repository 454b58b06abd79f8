"""Budgets: configs without heads are those of pruned models, and the fewest heads go."""

from __future__ import annotations

import pytest

from headjax.heads.budgets import count_parameters, heads_for_budget
from headjax.heads.head_id import all_heads
from headjax.heads.ordering import random_order
from headjax.heads.pruning import prune
from headjax.heads.surgery import without_heads
from tests.hub.directories import BERT, CONFIGS, LLAMA, T5, model_of

FAMILIES = {"bert": BERT, "llama": LLAMA, "t5": T5, "albert": CONFIGS["albert"], "qwen3": CONFIGS["qwen3"]}


@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_config_without_heads_is_that_of_the_pruned_model(name):
    model = model_of(FAMILIES[name])
    heads = all_heads(model.config)
    for count in (1, len(heads) // 2, len(heads)):
        removed = random_order(model.config, 0)[:count]
        assert without_heads(model.config, removed) == prune(model, removed).config


def test_the_fewest_heads_go():
    config = model_of(BERT).config
    order = random_order(config, 1)
    whole, flops = count_parameters(config), config.flops(8)
    sizes = [count_parameters(without_heads(config, order[:count])) for count in range(len(order) + 1)]
    assert heads_for_budget(config, order, count_parameters, whole, "parameters") == ()
    for count, size in enumerate(sizes):
        assert heads_for_budget(config, order, count_parameters, size, "parameters") == order[:count]
    half = heads_for_budget(config, order, lambda each: each.flops(8), 0.8 * flops, "flops")
    assert without_heads(config, half).flops(8) <= 0.8 * flops < without_heads(config, half[:-1]).flops(8)
