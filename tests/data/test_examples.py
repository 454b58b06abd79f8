from __future__ import annotations

import numpy as np
import pytest

from headjax.core.errors import ConfigError, DataError
from headjax.data.examples import TokenBlocks


def test_blocks_are_consecutive_and_whole():
    blocks = TokenBlocks(np.arange(11), 3)
    assert len(blocks) == 3
    assert [blocks[i]["input_ids"].tolist() for i in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert blocks[0]["input_ids"].dtype == np.int32


@pytest.mark.parametrize(
    "tokens, length, message",
    [
        (np.arange(3), 4, "^length: the text has 3 tokens, less than one block of 4$"),
        (np.zeros(8), 4, "^tokens: expected integers"),
        (np.zeros((2, 8), int), 4, "^tokens: expected integers"),
    ],
)
def test_no_blocks(tokens, length, message):
    with pytest.raises(DataError, match=message):
        TokenBlocks(tokens, length)
    with pytest.raises(ConfigError, match=r"^length: must be at least 2"):
        TokenBlocks(np.arange(9), 1)
