"""One model, its batches and their scores for the tests of heads: programs are compiled once."""

import numpy as np
import pytest

from headjax.heads.scoring import score_heads
from tests import tiny

LENGTHS = (8, 5, 5, 8)
"""Tokens of each example of a batch; the rest is padding."""


@pytest.fixture(scope="session")
def model():
    multi = tiny.layer(tiny.multi_head(3))
    return tiny.model(tiny.decoder_config(multi, multi, tiny.layer(tiny.collaborative(2))))


@pytest.fixture(scope="session")
def batches():
    mask = (np.arange(8)[None, :] < np.array(LENGTHS)[:, None]).astype(np.int32)
    return [tiny.tokens(4, 8, seed) | {"attention_mask": mask} for seed in (1, 2)]


@pytest.fixture(scope="session")
def scores(model, batches):
    return score_heads(model, batches)
