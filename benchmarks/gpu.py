"""`python -m benchmarks gpu`: BERT train steps in bfloat16 on one accelerator, beside PyTorch on the same one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks.result import SPREAD, BenchResult, pytorch
from benchmarks.train_step import our_step
from headjax.core import numbers
from headjax.core.errors import HeadjaxError
from headjax.core.kind import Kind
from headjax.core.progress import Progress, silent
from headjax.core.timing import Timing, time_in_turns
from headjax.models.config import ModelConfig
from headjax.models.encoder import EncoderConfig
from headjax.models.tasks import MaskedLanguageModel
from headjax.nn.block import Compute
from headjax.nn.multi_head import MultiHeadAttention
from headjax.report.tables import Column, Table

PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Dense bfloat16 FLOPs a second of a card whose name contains the key."""

REPEATS, SETTLE = 5, 2


@dataclasses.dataclass(frozen=True)
class Size:
    """Shape of a BERT and of its batch."""

    name: str
    width: int
    layers: int
    batch: int
    length: int
    vocabulary: int = 30522

    @property
    def heads(self) -> int:
        """Heads of 64 dimensions, as in both BERTs."""
        return self.width // 64

    @property
    def flops(self) -> float:
        """FLOPs of a train step: 6 a weight of a matrix and token, 12 width length a layer and token for attention."""
        weights = self.layers * 12 * self.width**2 + self.width * (self.vocabulary + self.width)
        return (6 * weights + 12 * self.layers * self.width * self.length) * self.batch * self.length


SIZES = (Size("BERT-base, 64 x 128", 768, 12, 64, 128), Size("BERT-large, 16 x 512", 1024, 24, 16, 512),
         Size("BERT-large, 32 x 512", 1024, 24, 32, 512))  # fmt: skip


def run(progress: Progress = silent, sizes: tuple[Size, ...] = SIZES) -> BenchResult:
    """Time steps in turns: same shapes, masked-language-model loss at every token, AdamW, no dropout.

    headjax computes in bfloat16 with float32 weights, by cuDNN's attention where the card has it, with its layers
    scanned and unrolled; PyTorch by autocast to bfloat16, `scaled_dot_product_attention` and fused AdamW.

    Raises:
        HeadjaxError: there is no accelerator, or PyTorch or transformers is not installed.
    """
    card = jax.devices()[0]
    if card.platform == "cpu" and sizes is SIZES:
        raise HeadjaxError("gpu: JAX sees no accelerator here")
    peak = next((value for name, value in PEAKS.items() if name in card.device_kind), None)
    rows, ours, theirs = [], {}, {}
    for size in sizes:
        kernel = "cudnn" if card.platform == "gpu" else "einsum"
        orders = {"scanned": True, "unrolled": False}
        config, batch = _config(size), _batch(size)
        computes = {name: Compute(dtype="bfloat16", attention=kernel, scan=scan) for name, scan in orders.items()}
        sides = {f"headjax, {kernel}, {name}": our_step(config, batch, compute=each) for name, each in computes.items()}
        timings = time_in_turns(sides, repeats=REPEATS, settle=SETTLE, progress=progress)
        timings |= time_in_turns({"PyTorch": _peer(size, card.platform)}, repeats=REPEATS, settle=SETTLE)
        for name, timing in timings.items():
            rows.append((size.name, name, *timing[:3], size.flops / timing.median / 1e12, _share(size, timing, peak)))
        ours[size.name] = min(timing.median for name, timing in timings.items() if name != "PyTorch")
        theirs[size.name] = timings["PyTorch"].median
    columns = (Column("Model"), Column("Train step"), *SPREAD, Column("TFLOP/s", numbers.number, "higher"),
               Column("MFU", numbers.percent, "higher"))  # fmt: skip
    last = sizes[-1].name
    note = f"{card.device_kind}, bfloat16, AdamW, {REPEATS} turns."
    table = Table(columns, rows, notes=(note,))
    return BenchResult(ours, theirs, ours[last] / theirs[last], (table,), ("torch", "transformers"))


def _share(size: Size, timing: Timing, peak: float | None) -> float | None:
    return None if peak is None else size.flops / timing.median / peak


def _batch(size: Size) -> dict[str, np.ndarray]:
    tokens = np.random.default_rng(0).integers(0, size.vocabulary, (size.batch, size.length)).astype(np.int32)
    return {"input_ids": tokens, "labels": tokens}


def _config(size: Size) -> ModelConfig:
    attention = Kind(MultiHeadAttention, num_heads=size.heads, head_dim=64)
    return EncoderConfig(
        attention=(attention,) * size.layers, hidden=(4 * size.width,) * size.layers, width=size.width,
        num_layers=size.layers, vocab_size=size.vocabulary, pooler=None, task=MaskedLanguageModel(), dropout=0.0,
        attention_dropout=0.0,
    )  # fmt: skip


def _peer(size: Size, platform: str) -> Callable[[], Any]:
    torch, transformers = pytorch("gpu")
    device = "cuda" if platform == "gpu" else "cpu"
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=size.vocabulary, hidden_size=size.width, intermediate_size=4 * size.width,
        num_hidden_layers=size.layers, num_attention_heads=size.heads, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, attn_implementation="sdpa",
    )  # fmt: skip
    model = transformers.BertForMaskedLM(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=device == "cuda")
    batch = {name: torch.from_numpy(array).long().to(device) for name, array in _batch(size).items()}

    def once() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return once
