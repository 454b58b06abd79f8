"""What the scripts that remove heads or convert share: a model directory, its task, and the examples that choose."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from headjax.evaluation.specs import Parts, load_task, split_task
from headjax.models.config import Batch
from headjax.models.model import Model, load


class Opened(NamedTuple):
    """A model with an output for the task, the task's parts, and the options."""

    model: Model
    parts: Parts
    options: argparse.Namespace

    def calibration(self, draw: int) -> list[Batch]:
        """Return the calibration batches of a draw."""
        options = self.options
        selection = self.parts.selection
        return list(selection.sample(options.calibrate, options.batch_size, seed=draw, buckets=options.buckets))


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that the scripts share."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("model", help="model directory")
    made.add_argument("out", type=Path, help="JSON file of the results")
    made.add_argument("--task", required=True)
    made.add_argument("--calibration", default="", help="task or file whose examples choose; default: the task's own")
    made.add_argument("--train", default="", help="task or file to train on")
    made.add_argument("--calibrate", type=int, default=512, help="number of calibration examples")
    made.add_argument("--limit", type=int, default=0, help="number of evaluation examples; 0 is all")
    made.add_argument("--length", type=int, default=0)
    made.add_argument("--batch-size", type=int, default=32)
    made.add_argument("--buckets", type=lambda text: tuple(map(int, text.split(","))), default=(32, 64, 128, 256))
    made.add_argument("--seed", type=int, default=0)
    return made


def opened(options: argparse.Namespace) -> Opened:
    """Return what the options name."""
    model = load(options.model)
    task = load_task(options.task, model, options.length, split="all" if options.train else "validation")
    train = load_task(options.train, model, options.length, split="all") if options.train else None
    select = load_task(options.calibration, model, options.length) if options.calibration else "train"
    return Opened(task.fit(model), split_task(task, select, train=train), options)
