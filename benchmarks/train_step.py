"""`python -m benchmarks train_step`: a BERT-base train step beside Hugging Face's PyTorch BERT on the same machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks.result import SPREAD, BenchResult, pytorch
from headjax.core import numbers
from headjax.core.progress import Progress, silent
from headjax.core.tensors import Params
from headjax.core.timing import Timing, time_in_turns
from headjax.mesh.distributed import put_batch
from headjax.mesh.mesh import MeshConfig
from headjax.models.config import Batch, ModelConfig
from headjax.models.encoder import EncoderConfig
from headjax.models.tasks import MaskedLanguageModel, TaskOutput
from headjax.nn.block import Compute
from headjax.report.tables import Column, Table
from headjax.training.config import AdamW, ConstantRate
from headjax.training.step import Trainer

BATCH, LENGTH, REPEATS = 8, 128, 5


def run(progress: Progress = silent) -> BenchResult:
    """Time both steps in turns: same shapes, masked-language-model loss on random tokens, AdamW, float32, no dropout.

    Raises:
        HeadjaxError: PyTorch or transformers is not installed.
    """
    peer = _peer()
    sides = {"headjax": our_step(bert(), _batch()), "transformers (PyTorch)": peer}
    timings = time_in_turns(sides, repeats=REPEATS, progress=progress)
    mine, theirs = timings.values()
    ratio = mine.median / theirs.median
    return BenchResult(mine._asdict(), theirs._asdict(), ratio, (_table(timings),), ("torch", "transformers"))


def _table(timings: dict[str, Timing]) -> Table:
    rows = [(name, *timing[:3], BATCH * LENGTH / timing.median) for name, timing in timings.items()]
    columns = (Column("Train step"), *SPREAD, Column("Tokens/s", numbers.count, "higher"))
    note = f"BERT-base, batch {BATCH} x {LENGTH}, float32, AdamW, {REPEATS} turns, the second step of each."
    return Table(columns, rows, notes=(note,))


def _batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    tokens = rng.integers(1000, 30000, size=(BATCH, LENGTH)).astype(np.int32)
    labels = np.where(rng.random((BATCH, LENGTH)) < 0.15, tokens, -100).astype(np.int32)
    return {"input_ids": tokens, "labels": labels}


def our_step(
    config: ModelConfig, batch: Batch, params: Params | None = None, compute: Compute = Compute()
) -> Callable[[], Any]:
    """Return a function that takes one step of AdamW after the other, all on one device and one batch.

    Args:
        config: the model.
        batch: the batch.
        params: start from these instead of fresh ones.
        compute: how to compute.
    """
    mesh = MeshConfig(data=1).build(jax.devices()[:1])
    optimizer = AdamW(schedule=ConstantRate(peak=1e-4), clip_norm=0.0).build(config.tensors(), 100)
    trainer = Trainer(config, optimizer, mesh, compute)
    held, placed = {"state": trainer.first_state(params)}, put_batch(batch, mesh)

    def once() -> Any:
        held["state"], metrics = trainer(held["state"], placed)
        return held["state"], metrics

    return once


def _peer() -> Callable[[], Any]:
    torch, transformers = pytorch("train_step")
    torch.manual_seed(0)
    config = transformers.BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = transformers.BertForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    batch = {name: torch.from_numpy(array).long() for name, array in _batch().items()}

    def once() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(**batch).loss.backward()
        optimizer.step()

    return once


def bert(task: TaskOutput = MaskedLanguageModel()) -> ModelConfig:
    """Return the config of BERT-base without dropout, whose random numbers the libraries draw differently."""
    pooler = "tanh" if task.needs_pooler else None
    return EncoderConfig.bert_base(pooler=pooler, task=task, dropout=0.0, attention_dropout=0.0)
