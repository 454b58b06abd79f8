"""Files of a Hugging Face directory beside its config and weights: read as they are, and written again unchanged.

Those of the tokenizer and of sentence-transformers are written again where they still describe the model, else new ones
are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headjax.hub.sentences import MODULES, PIPELINE, pipeline_files, transformer_folder, write_maps
from headjax.models.model import Model
from headjax.tokenizers.files import FILES, MODEL_FILE, digest, read_object, read_tokenizer, write_tokenizer

TOKENIZER = frozenset(FILES)
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
    contents: dict[str, bytes] = {}
    for name in sorted(CARRIED):
        path = folder / name
        paths = sorted(file for file in path.glob("*.j*") if path.is_dir()) or [path]
        contents |= {file.relative_to(folder).as_posix(): file.read_bytes() for file in paths if file.is_file()}
    inner = transformer_folder(folder)
    if inner == folder:
        return contents
    first, *others = json.loads(contents[MODULES])
    flat = json.dumps([{**first, "path": ""}, *others], indent=2) + "\n"  # as an export writes it
    return {**contents, **read_companions(inner), MODULES: flat.encode()}


def write_companions(model: Model, folder: Path) -> None:
    """Write the files that a model carries, and its tokenizer, into a directory that has its `config.json`.

    The tokenizer's files come back unchanged where `transformers` reads them as it did: under the same `model_type`.
    """
    same = last_import(model).get("tokenizer") == digest(model.tokenizer, model_type_of(folder))
    others = {name: data for name, data in model.files.items() if name.partition("/")[0] not in PIPELINE}
    for name, data in (others | pipeline_files(model)).items():
        if (same and model.tokenizer is not None) or name not in TOKENIZER:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
    write_maps(model, folder)
    if model.tokenizer is not None and not same:
        config: Any = model.config
        task = getattr(config, "task", None)
        longest = getattr(task, "max_seq_length", None) or getattr(config, "max_length", None)
        write_tokenizer(model.tokenizer, folder, longest, segments=getattr(config, "segments", 0) > 1)


def tokenizer_notes(model: Model, folder: Path) -> tuple[str, ...]:
    """Return a note if `transformers` splits texts by its own class, whatever class the directory names (Qwen2)."""
    if model.tokenizer is None or model_type_of(folder) != "qwen2":
        return ()
    theirs = read_tokenizer(folder)
    ours, read = (json.loads(each.vocabulary) for each in (model.tokenizer, theirs) if each is not None)
    if all(ours.get(part) == read.get(part) for part in ("normalizer", "pre_tokenizer")):
        return ()
    return ("AutoTokenizer splits texts of qwen2 by Qwen2's rules; read the tokenizer with PreTrainedTokenizerFast",)


def last_import(model: Model) -> Mapping[str, Any]:
    """Return the last import in a model's history; an empty mapping without one."""
    entries = reversed(model.history)
    return next((entry for entry in entries if entry.get("action") == "import" and "config" in entry), {})


def model_type_of(folder: Path) -> Any:
    """Return the `model_type` of a directory, which decides how `transformers` reads its tokenizer."""
    return read_object(folder / MODEL_FILE).get("model_type")
