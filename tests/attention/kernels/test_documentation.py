"""docs/kernels.md says what the code does."""

from __future__ import annotations

import functools
from pathlib import Path

import jax
import numpy as np
import pytest

from docs.kernels import EXAMPLES, answer, markdown
from headjax.attention import Attention, Call, Mask
from headjax.core.serialize import kind_of, kinds_of
from tests.attention.formulations import attended_by, random_inputs, random_params
from tests.closeness import assert_close

SUMS = 8 + 768 + 2 * 5
"""Terms on the way to a context: projection, logits of one head of 768, softmax and context over five keys."""

PAGE = Path(__file__).resolve().parents[3] / "docs" / "kernels.md"


def test_the_page_is_what_the_table_says():
    assert PAGE.read_text() == markdown(), "run: python -m docs.kernels > docs/kernels.md"


def test_every_formulation_is_on_the_page():
    assert {kind_of(attention) for attention in EXAMPLES.values()} | {"no_heads"} == set(kinds_of(Attention))


@pytest.mark.parametrize("name", [name for name in EXAMPLES if answer(EXAMPLES[name], "xla") == "yes"])
def test_xla_computes_what_the_page_promises(name):
    attention = EXAMPLES[name]
    params, x = random_params(attention, width=8), random_inputs(1, 5, width=8)
    present = np.asarray([[True, True, False, True, True]])

    @functools.partial(jax.jit, static_argnums=0)
    def compute(kernel, params, x, present):
        call = Call(mask=Mask(causal=True, keys=present), implementation=kernel)
        return attended_by(attention, params, x, call).context

    def context(kernel):
        return compute(kernel, params, x, present)

    assert_close(context("xla"), context("einsum"), sums=SUMS)
