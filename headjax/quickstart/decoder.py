"""The small decoder that headjax carries: a language model of Python source code, in Hugging Face's GPT-2 layout."""

from __future__ import annotations

from pathlib import Path

from headjax.core.errors import HeadjaxError
from headjax.hub.importing import from_huggingface
from headjax.models.model import Model

FOLDER = Path(__file__).resolve().parent / "weights"
"""`config.json`, `model.safetensors` in bfloat16, `tokenizer.json`, and the model card `README.md`.

Some installers link every file of a package to their store, where the files are together."""


def demo_model() -> Model:
    """Return a decoder with about a million parameters, trained on the source code of Python's standard library.

    It has 4 layers of 8 heads and 256 positions. `headjax/quickstart/weights/README.md` is its model card.

    Raises:
        HeadjaxError: this installation of headjax has no weights.
    """
    if not (FOLDER / "model.safetensors").is_file():
        raise HeadjaxError(f"{FOLDER}: this installation of headjax carries no weights; install it again")
    return from_huggingface(FOLDER, dtype="float32")
