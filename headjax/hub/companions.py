"""Files of a Hugging Face directory beside its config and weights: read as they are, and written again unchanged.

Those of the tokenizer are written again where they still give the model's tokenizer, else the model's own are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headjax.core.errors import ConfigError
from headjax.models.model import Model
from headjax.storage.files import check_links
from headjax.tokenizers.files import CONFIG_FILE, FILES, MODEL_FILE, read_tokenizer, write_tokenizer
from headjax.tokenizers.tokenizer import TARGET_FILE

TOKENIZER = frozenset({*FILES, TARGET_FILE, "spiece.model", "sentencepiece.bpe.model"}) - {MODEL_FILE}
"""Files of a tokenizer."""

MODULES = "modules.json"

CARRIED = TOKENIZER | {
    *("chat_template.jinja", "chat_template.json", "additional_chat_templates"),
    *("generation_config.json", "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"),
    *(MODULES, "config_sentence_transformers.json", "sentence_bert_config.json", "1_Pooling", "2_Normalize"),
    *("README.md", "LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE", "NOTICE.txt", "NOTICE.md", "USE_POLICY.md"),
}
"""Files, and folders of files, that a model carries."""


def read_companions(folder: Path) -> dict[str, bytes]:
    """Return the files that a model carries, by name."""
    check_links(folder, sorted(CARRIED))
    found: dict[str, bytes] = {}
    for name in sorted(CARRIED):
        place = folder / name
        files = sorted(file for file in place.glob("*.j*") if place.is_dir()) or [place]
        found |= {file.relative_to(folder).as_posix(): file.read_bytes() for file in files if file.is_file()}
    if MODULES in found:
        _check_pipeline(folder, found)
    return found


def write_companions(model: Model, folder: Path) -> None:
    """Write the files that a model carries, and its tokenizer, into a directory that has its `config.json`."""
    for name, data in model.files.items():
        if model.tokenizer is not None or name not in TOKENIZER:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
    if model.tokenizer is None or read_tokenizer(folder) == model.tokenizer:
        return
    for name in TOKENIZER:
        (folder / name).unlink(missing_ok=True)
    longest = getattr(model.config, "max_length", None)
    write_tokenizer(model.tokenizer, folder, longest, segments=getattr(model.config, "segments", 0) > 1)


def declaring_tokenizer(model: Model) -> Model:
    """Return the model without tokenizer files that name no class, which then follows from a family's `model_type`."""
    settings = json.loads(model.files.get(CONFIG_FILE, b"{}"))
    if isinstance(settings, dict) and settings.get("tokenizer_class"):
        return model
    return model.replace(files={name: data for name, data in model.files.items() if name not in TOKENIZER})


def _check_pipeline(folder: Path, files: dict[str, bytes]) -> None:
    """Raise `ConfigError` unless sentences become the mean of their tokens, perhaps normalized, and nothing else."""
    kinds = []
    for module in json.loads(files[MODULES]):
        kind, path = str(module["type"]).rpartition(".")[2], module["path"]
        kinds.append(kind)
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise ConfigError(f"{folder / MODULES}: the module {kind} is not supported")
        if kind == "Pooling":
            name = f"{path}/config.json"
            modes = _pooling_modes(json.loads(files.get(name, b"{}")))
            if modes != ["mean"]:
                raise ConfigError(f"{folder / name}: pooling by {' and '.join(modes)} is not supported, only by mean")
    settings = json.loads(files.get("config_sentence_transformers.json", b"{}"))
    compared = settings.get("similarity_fn_name") or "cosine"
    if compared != "cosine" and not (compared == "dot" and "Normalize" in kinds):
        raise ConfigError(
            f"{folder}/config_sentence_transformers.json: similarity_fn_name: {compared!r} is not supported"
        )
    if settings.get("prompts", {}).get(settings.get("default_prompt_name")):
        raise ConfigError(f"{folder}/config_sentence_transformers.json: default_prompt_name: is not supported")
    if json.loads(files.get("sentence_bert_config.json", b"{}")).get("do_lower_case"):
        raise ConfigError(f"{folder}/sentence_bert_config.json: do_lower_case: is not supported")


def _pooling_modes(config: dict[str, Any]) -> list[str]:
    """Return the names of pooling that a config asks for, as one name or as flags."""
    if "pooling_mode" in config:
        mode = config["pooling_mode"]
        return list(mode) if isinstance(mode, list | tuple) else [str(mode)]
    flags = {name.removeprefix("pooling_mode_"): on for name, on in config.items() if name.startswith("pooling_mode_")}
    chosen = [name.removesuffix("_tokens").removesuffix("_token") for name, on in flags.items() if on]
    return chosen or ["mean"]
