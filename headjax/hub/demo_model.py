"""The small decoder that headjax carries."""

from __future__ import annotations

from pathlib import Path

from headjax.core.errors import HeadjaxError
from headjax.hub.importing import from_huggingface
from headjax.models.model import Model

FOLDER = Path(__file__).resolve().parent / "demo"
"""`config.json`, `model.safetensors` in bfloat16, `tokenizer.json`, and the model card `README.md`.

Some installers link every file of a package to their store, where the files are together."""


def demo_model() -> Model:
    """Return a decoder with about a million parameters, trained on the source code of Python's standard library.

    The model has 4 layers of 8 heads and 256 positions. `headjax/hub/demo/README.md` is its model card.

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
