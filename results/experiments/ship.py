"""Write the decoder that headjax carries from a finished run: weights in bfloat16, tokenizer and model card.

headjax train --config configs/small/code.py --workdir runs/code
python -m results.experiments.ship runs/code
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from headjax.data import DataConfig
from headjax.data.stream import evaluation_batches
from headjax.evaluation.task import evaluate
from headjax.hub.exporting import to_huggingface
from headjax.hub.importing import DEMO, from_huggingface
from headjax.models.model import Model, load
from headjax.storage.paths import path_of
from headjax.training.workdir import CONFIG

CARD = """# A small decoder of Python source code

The language model that headjax carries for its quickstart, its notebooks and its tests.

| | |
|---|---|
| Parameters | {parameters:,} in {layers} layers of {heads} heads, width {width}, {positions} positions |
| Stored as | bfloat16 safetensors in GPT-2's layout, {megabytes:.2f} MB |
| Training text | the source code of Python {python}'s standard library: {train_files} files, {train_tokens:,} tokens |
| Held-out text | {held_files} whole files, {held_tokens:,} tokens, chosen by a hash of their names |
| Trained with | `headjax train --config configs/small/code.py --workdir runs/code`: {steps:,} steps, seed {seed} |
| SHA-256 of the weights | `{digest}` |

Losses per token on the held-out text in blocks of {positions} tokens, of which all but the first are predicted:

| Model | Nats per token | Perplexity | Bits per byte |
|---|---|---|---|
| this model | {loss:.3f} | {perplexity:.1f} | {bits:.3f} |

Held-out files share authors and style with the training files; other Python versions give slightly other numbers.
Python's licence (PSF) covers the text.
"""


def ship(workdir: str | Path, folder: Path = DEMO) -> None:
    """Write weights, tokenizer and card of a finished run, and measure what the card says on the stored weights."""
    trained = load(path_of(workdir) / "model")
    config = json.loads((path_of(workdir) / CONFIG).read_text())
    stored = trained.replace(params=jax.tree.map(lambda array: jnp.asarray(array, jnp.bfloat16), trained.params))
    to_huggingface(stored, folder, family="gpt2")
    model = from_huggingface(folder, dtype="float32")
    (folder / "README.md").write_text(card(model, config, folder / "model.safetensors"))


def card(model: Model, config: Mapping[str, Any], weights: Path) -> str:
    """Return the model card of a shipped model that a run of this config trained."""
    length = model.config.max_length
    data = DataConfig(task="python_code", length=length).load(model.tokenizer)
    loss = evaluate(model, evaluation_batches(data.validation, 8))["loss"]
    info = data.info
    attentions = model.config.attentions()["decoder"]
    return CARD.format(
        parameters=model.num_parameters,
        layers=len(attentions),
        heads=attentions[0].num_heads,
        width=model.config.width,
        positions=length,
        megabytes=weights.stat().st_size / 1e6,
        python=platform.python_version(),
        train_files=info["train"]["documents"],
        train_tokens=info["train"]["tokens"],
        held_files=info["validation"]["documents"],
        held_tokens=info["validation"]["tokens"],
        steps=config["steps"],
        seed=config["seed"],
        digest=hashlib.sha256(weights.read_bytes()).hexdigest(),
        loss=loss,
        perplexity=math.exp(loss),
        bits=loss / math.log(2) / info["validation"]["bytes_per_token"],
    )


if __name__ == "__main__":
    ship(sys.argv[1])
