"""Files of a Hugging Face directory beside its config and weights: read as they are, and written again unchanged.

Those of the tokenizer and of sentence-transformers are written again where they still describe the model, else new ones
are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headjax.hub.sentences import MODULES, PIPELINE, pipeline_files, transformer_folder, write_maps
from headjax.models.model import Model
from headjax.tokenizers.files import CONFIG_FILE, FILES, MODEL_FILE, read_tokenizer, write_tokenizer
from headjax.tokenizers.tokenizer import TARGET_FILE

TOKENIZER = frozenset({*FILES, TARGET_FILE, "spiece.model", "sentencepiece.bpe.model"}) - {MODEL_FILE}
"""Files of a tokenizer."""

_PREPROCESSING = {f"{name}_config.json" for name in ("preprocessor", "processor", "video_preprocessor")}
_TEXTS = {
    "README.md",
    "USE_POLICY.md",
    *(f"{name}{end}" for name in ("LICENSE", "NOTICE") for end in ("", ".md", ".txt")),
}
_CHAT = {"chat_template.jinja", "chat_template.json", "additional_chat_templates", "generation_config.json"}
CARRIED = TOKENIZER | PIPELINE | _CHAT | _PREPROCESSING | _TEXTS
"""Files, and folders of files, that a model carries."""


def read_companions(folder: Path) -> dict[str, bytes]:
    """Return the files that a model carries, by name."""
    found: dict[str, bytes] = {}
    for name in sorted(CARRIED):
        place = folder / name
        files = sorted(file for file in place.glob("*.j*") if place.is_dir()) or [place]
        found |= {file.relative_to(folder).as_posix(): file.read_bytes() for file in files if file.is_file()}
    inner = transformer_folder(folder)
    if inner == folder:
        return found
    first, *others = json.loads(found[MODULES])
    flat = json.dumps([{**first, "path": ""}, *others], indent=2) + "\n"  # as an export writes it
    return {**found, **read_companions(inner), MODULES: flat.encode()}


def write_companions(model: Model, folder: Path) -> None:
    """Write the files that a model carries, and its tokenizer, into a directory that has its `config.json`."""
    others = {name: data for name, data in model.files.items() if name.partition("/")[0] not in PIPELINE}
    for name, data in (others | pipeline_files(model)).items():
        if model.tokenizer is not None or name not in TOKENIZER:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
    write_maps(model, folder)
    if model.tokenizer is None or read_tokenizer(folder) == model.tokenizer:
        return
    for name in TOKENIZER:
        (folder / name).unlink(missing_ok=True)
    config: Any = model.config
    longest = getattr(getattr(config, "task", None), "max_seq_length", None) or getattr(config, "max_length", None)
    write_tokenizer(model.tokenizer, folder, longest, segments=getattr(config, "segments", 0) > 1)


def declaring_tokenizer(model: Model) -> Model:
    """Return the model without tokenizer files that name no class, which then follows from a family's `model_type`."""
    settings = json.loads(model.files.get(CONFIG_FILE, b"{}"))
    if isinstance(settings, dict) and settings.get("tokenizer_class"):
        return model
    return model.replace(files={name: data for name, data in model.files.items() if name not in TOKENIZER})
