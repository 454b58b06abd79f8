"""`headjax bench`."""

from __future__ import annotations

import dataclasses
import importlib

from headjax.commands.options import CommandOptions, Result, argument
from headjax.core.progress import Progress
from headjax.core.serialize import unknown_name
from headjax.report import numbers

BENCHES = {
    "decompose": "CP decomposition of all-MiniLM-L6-v2's queries and keys beside TensorLy's parafac",
    "depth": "compile time, memory and step time of 144 single-head layers beside 12 layers of 12 heads",
    "generate": "prefill and decode of a Llama shape, whole, pruned and converted, beside transformers",
    "heads": "scoring, ablating and removing heads of a BERT-base classifier beside PyTorch",
    "hub": "importing a BERT-base directory of 440 MB beside reading its file with safetensors",
    "input": "reading shuffled, bucketed and packed examples beside the BERT-base train step that consumes them",
    "train_step": "a BERT-base train step beside Hugging Face's PyTorch BERT",
}
"""Benchmarks and what they compare; each is `run` in `headjax.bench.<name>`."""


def _known(name: str) -> str:
    if name not in BENCHES:
        raise ValueError(unknown_name("benchmark", name, BENCHES))
    return name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Options of `headjax bench`."""

    name: str = argument("NAME", "; ".join(f"{name}: {text}" for name, text in BENCHES.items()), read=_known)


def run(options: Options, progress: Progress) -> Result:
    """Measures both sides in one run, and says on what machine."""
    from headjax.bench.result import measure

    measured = measure(importlib.import_module(f"headjax.bench.{options.name}").run, progress)
    ratio = numbers.significant(measured.result.ratio)
    return Result(measured.to_json(), measured.tables, f"ratio: {ratio} (ours over the peer's)")
