"""The small decoder that headjax carries, and a language model's text: blocks to choose on, blocks to judge on."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.data.task import TaskData
from headjax.evaluation.measures import LanguageModelling
from headjax.evaluation.task import Task, evaluate
from headjax.heads.gates import without
from headjax.heads.head_id import HeadId
from headjax.hub.importing import from_huggingface
from headjax.models.config import Batch
from headjax.models.model import Model

HELD_OUT_BLOCKS = 32
"""Held-out blocks, evenly spread over the text, that everything is judged on."""

BATCH = 8


class Text:
    """A text in blocks.

    Attributes:
        data: the text, with the blocks that everything is judged on as its validation examples.
        held_out: `[blocks, length]`, these blocks.
        bytes_per_token: of the held-out text.
    """

    def __init__(self, data: TaskData) -> None:
        source, last = data.validation, len(data.validation) - 1
        places = np.unique(np.linspace(0, last, min(HELD_OUT_BLOCKS, len(source))).round().astype(int))
        self.held_out = np.stack([np.asarray(source[int(place)]["input_ids"]) for place in places])
        self.data = data._replace(validation=[{"input_ids": block} for block in self.held_out])
        self.bytes_per_token = float(data.info["validation"]["bytes_per_token"])

    @property
    def name(self) -> str:
        """Name of the text."""
        return str(self.data.info["text"])

    @property
    def length(self) -> int:
        """Tokens of a block."""
        return int(self.held_out.shape[1])

    def task(self) -> Task:
        """Return the task of predicting the held-out blocks, in bits per byte."""
        return Task(self.name, self.data, LanguageModelling("bits_per_byte", bytes_per_token=self.bytes_per_token))

    def training_blocks(self, count: int, seed: int = 0) -> np.ndarray:
        """Return blocks of training text drawn at random, `[blocks, length]`."""
        total = len(self.data.train)
        chosen = np.random.default_rng(seed).permutation(total)[:count]
        return np.stack([np.asarray(self.data.train[int(place)]["input_ids"]) for place in sorted(chosen)])

    def measure(self, model: Model, removed: Sequence[HeadId] = ()) -> tuple[float, float]:
        """Return the loss in nats per held-out token, and the median seconds of a batch of `BATCH` blocks.

        The first batch, which compiles, is not timed.

        Args:
            model: the model.
            removed: heads that are gated off.
        """
        gates = without(model.config, removed)
        losses, seconds = [], []
        for batch in batches(self.held_out):
            started = time.perf_counter()
            losses.append(evaluate(model, [batch], gates=gates)["loss"])
            seconds.append(time.perf_counter() - started)
        return statistics.fmean(losses), statistics.median(seconds[1:] or seconds)

    def bits(self, loss: float) -> float:
        """Return bits per byte of a loss in nats per token."""
        return loss / math.log(2.0) / self.bytes_per_token

    def perplexity(self, bits: float) -> float:
        """Return the perplexity per token of a number of bits per byte."""
        return math.exp(bits * math.log(2.0) * self.bytes_per_token)


def batches(blocks: np.ndarray, size: int = BATCH) -> Iterator[Batch]:
    """Return blocks in batches of one size; an incomplete last batch is dropped unless it is the only one."""
    size = min(size, len(blocks))
    for start in range(0, len(blocks) - size + 1, size):
        yield {"input_ids": blocks[start : start + size]}


FOLDER = Path(__file__).resolve().parent / "weights"
"""`config.json`, `model.safetensors` in bfloat16, `tokenizer.json`, and the model card `README.md`.

Some installers link every file of a package to their store, where the files are together."""


def demo_model() -> Model:
    """Return a decoder with about a million parameters, trained on the source code of Python's standard library.

    The model has 4 layers of 8 heads and 256 positions. `headjax/quickstart/weights/README.md` is its model card.

        >>> print(headjax.demo_model())
        Model: decoder, width 128, output tied
          heads: decoder 32 in 4 layers
          parameters: 1,088,256 (float32)
          tokenizer: yes; history: import

    Raises:
        HeadjaxError: this installation of headjax has no weights.
    """
    if not (FOLDER / "model.safetensors").is_file():
        raise HeadjaxError(f"{FOLDER}: this installation of headjax carries no weights; install it again")
    return from_huggingface(FOLDER, dtype="float32")
