"""`headjax bench train_step`: a BERT-base train step beside Hugging Face's PyTorch BERT on the same machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks.result import BenchResult
from headjax.attention.multi_head import MultiHead
from headjax.core.errors import HeadjaxError
from headjax.core.progress import Progress, silent
from headjax.core.timing import Timing, time_in_turns
from headjax.mesh.distributed import put_batch
from headjax.mesh.mesh import MeshConfig
from headjax.models.compute import Compute
from headjax.models.config import ModelConfig
from headjax.models.encoder import Bert
from headjax.models.outputs import Pooler
from headjax.models.sublayers import Dense
from headjax.models.tasks import MaskedLanguageModel, TaskOutput
from headjax.report import numbers
from headjax.report.tables import Column, Table
from headjax.training.optimizer import AdamW, ConstantRate
from headjax.training.state import initial_state
from headjax.training.step import train_step

BATCH, LENGTH, REPEATS = 8, 128, 5


def run(progress: Progress = silent) -> BenchResult:
    """Times both steps in turns: same shapes, masked-language-model loss on random tokens, AdamW, float32, no dropout.

    Raises:
        HeadjaxError: PyTorch or transformers is not installed.
    """
    steps = {"headjax": our_step(), "transformers (PyTorch)": _peer()}
    timings = time_in_turns(steps, repeats=REPEATS, progress=progress)
    ours, peer = timings.values()
    ratio = ours.median / peer.median
    return BenchResult(ours._asdict(), peer._asdict(), ratio, (_table(timings),), ("torch", "transformers"))


def _table(timings: dict[str, Timing]) -> Table:
    tokens = BATCH * LENGTH
    rows = [(name, t.median, t.low, t.high, tokens / t.median) for name, t in timings.items()]
    columns = (
        Column("Train step"),
        Column("Median", numbers.duration, "lower"),
        Column("First quartile", numbers.duration),
        Column("Third quartile", numbers.duration),
        Column("Tokens/s", numbers.count, "higher"),
    )
    return Table(
        columns,
        rows,
        notes=(f"BERT-base, batch {BATCH} x {LENGTH}, float32, AdamW, {REPEATS} turns, the second step of each.",),
    )


def _batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    tokens = rng.integers(1000, 30000, size=(BATCH, LENGTH)).astype(np.int32)
    labels = np.where(rng.random((BATCH, LENGTH)) < 0.15, tokens, -100).astype(np.int32)
    return {"input_ids": tokens, "labels": labels}


def our_step() -> Callable[[], Any]:
    """One step of headjax per call, waited for."""
    mesh = MeshConfig(data=1).build(jax.devices()[:1])
    model = bert(12, 12)
    optimizer = AdamW(schedule=ConstantRate(peak=1e-4), clip_norm=0.0).build(model.tensors(), 100)
    step = train_step(model, optimizer, mesh, compute=Compute(), seed=0)
    held = {"state": initial_state(model, optimizer, mesh, 0)}
    batch = put_batch(_batch(), mesh)

    def once() -> None:
        held["state"], metrics = step(held["state"], batch)
        jax.block_until_ready((held["state"], metrics))

    return once


def _peer() -> Callable[[], Any]:
    try:
        import torch
        from transformers import BertConfig, BertForMaskedLM
    except ImportError as error:
        raise HeadjaxError(f"bench train_step: needs the parity extra ({error.name} is not installed)") from None
    torch.manual_seed(0)
    config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = BertForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    batch = {name: torch.from_numpy(array).long() for name, array in _batch().items()}

    def once() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(**batch).loss.backward()
        optimizer.step()

    return once


def bert(
    num_heads: int,
    num_layers: int,
    *,
    width: int = 768,
    hidden: int = 3072,
    task: TaskOutput = MaskedLanguageModel(),
    dropout: float = 0.0,
) -> ModelConfig:
    """Return the config of a BERT with heads of 64.

    Args:
        num_heads: heads a layer.
        num_layers: layers.
        width: size of the residual stream.
        hidden: inner feed-forward size.
        task: its output.
        dropout: rate everywhere; benchmarks against other libraries leave it at 0, since generators differ.
    """
    return Bert(
        width=width,
        num_layers=num_layers,
        attention=MultiHead(num_heads=num_heads, head_dim=64),
        feed_forward=Dense(hidden),
        pooler=Pooler() if task.needs_pooler else None,
        task=task,
        dropout=dropout,
        attention_dropout=dropout,
    ).build()
