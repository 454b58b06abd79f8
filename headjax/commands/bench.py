"""`headjax bench`."""

from __future__ import annotations

import argparse
import importlib

from headjax.commands.command import Command, Result
from headjax.core.progress import Progress
from headjax.report import numbers

BENCHES = {
    "decompose": "CP decomposition of all-MiniLM-L6-v2's queries and keys beside TensorLy's parafac",
    "depth": "compile time, memory and step time of 144 single-head layers beside 12 layers of 12 heads",
    "heads": "scoring, ablating and removing heads of a BERT-base classifier beside PyTorch",
    "hub": "importing a BERT-base directory of 440 MB beside reading its file with safetensors",
    "input": "reading shuffled, bucketed and packed examples beside the BERT-base train step that consumes them",
    "train_step": "a BERT-base train step beside Hugging Face's PyTorch BERT",
}
"""Benchmarks and what they compare; each is `run` in `headjax.bench.<name>`."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    names = "; ".join(f"{name}: {text}" for name, text in BENCHES.items())
    parser.add_argument("name", choices=sorted(BENCHES), metavar="NAME", help=names)


def run(options: argparse.Namespace, progress: Progress) -> Result:
    """Measures both sides in one run, and says on what machine."""
    from headjax.bench.result import measure

    measured = measure(importlib.import_module(f"headjax.bench.{options.name}").run, progress)
    ratio = numbers.significant(measured.result.ratio)
    return Result(measured.to_json(), measured.tables, f"ratio: {ratio} (ours over the peer's)")


COMMAND = Command("bench", "side by side with a peer, ratio and spread", arguments, run)
