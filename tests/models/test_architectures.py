"""What holds for every architecture: its config is data, and how it is computed changes nothing."""

import numpy as np
import pytest
from flax import nnx

import headjax
from tests import tiny
from tests.closeness import assert_close
from tests.layer_walk import walk
from tests.models.test_decoder import MIXED
from tests.models.test_encoder import PADDED, RELATIVES
from tests.models.test_encoder import config as encoder
from tests.models.test_encoder_decoder import BATCH, CONFIGS
from tests.models.test_vision import BATCH as IMAGES
from tests.models.test_vision import config as vision
from tests.selected import first

TEXT = {name: (encoder(name, task=headjax.tasks.MaskedLanguageModel(), dropout=0.1), PADDED) for name in RELATIVES}
PAIRS = {name: (config, BATCH) for name, config in CONFIGS.items()}
CASES = TEXT | PAIRS | {"decoder": (MIXED, PADDED), "vision": (vision(dropout=0.1), IMAGES)}
STACKS = ["decoder", "bert", "albert", "translation", "t5", "vision"]
"""Those whose stacks differ: RoBERTa and DistilBERT have BERT's."""


@pytest.mark.parametrize("name", first(2, STACKS))
def test_scanned_is_unrolled_and_dropout_follows_its_key(name):
    config, batch = CASES[name]
    model = tiny.model(config)
    scanned, unrolled = (model(batch, compute=headjax.Compute(scan=scan)).logits for scan in (True, False))
    assert_close(scanned, unrolled, sums=tiny.SUMS)
    first, again, other = (np.asarray(model(batch, rngs=nnx.Rngs(seed)).logits) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-2
    assert np.abs(first - scanned).max() > 1e-2


@pytest.mark.parametrize("name", first(1, ["decoder", "t5", "albert"]))
def test_layer_by_layer_is_the_whole_forward(name):
    config, batch = CASES[name]
    model = tiny.model(config)
    assert_close(walk(model, batch).output, model(batch).hidden, sums=tiny.SUMS)
