"""Directories of sentence-transformers: `modules.json` and what it names, as the task `SentenceSimilarity`.

Read are the names of fields of its versions 2 to 6. Written are those of 2, which all versions read.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from headjax.core.errors import ConfigError, ParameterError
from headjax.core.serialize import kind_of
from headjax.hub.fields import Fields
from headjax.hub.safetensors_files import SINGLE, SafetensorsFiles, write_safetensors
from headjax.hub.table import InexpressibleError
from headjax.models.config import ModelConfig
from headjax.models.decoder import DecoderConfig
from headjax.models.encoder import EncoderConfig
from headjax.models.model import Model
from headjax.models.tasks import Dense, NoTask, SentenceSimilarity
from headjax.models.tasks.similarity import Pooling, Similarity
from headjax.nn.feed_forward import ActivationName
from headjax.storage.files import parse_json
from headjax.tokenizers.tokenizer import Tokenizer

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
TRANSFORMER = tuple(
    f"sentence_{name}_config.json" for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta")
)
"""Files about the reading of texts; the first that is there counts."""

DENSE = ("2_Dense", "3_Dense", "4_Dense")
FOLDERS = ("1_Pooling", *DENSE, *(f"{number}_Normalize" for number in range(2, 6)))
PIPELINE = frozenset({MODULES, SETTINGS, *TRANSFORMER, *FOLDERS})
"""Files and folders of a directory of sentence-transformers beside those of the Hugging Face model."""

_READ = ("Transformer", "Pooling", "Dense", "Normalize")
_FLAGS = {  # in the order in which several are concatenated
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_PHI: Mapping[str, ActivationName | None] = {
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
    "torch.nn.modules.linear.Identity": None,
}
_UNLIMITED = 10**9
"""`model_max_length` of tokenizers without a limit is above."""


def read_task(folder: Path, files: Mapping[str, bytes]) -> SentenceSimilarity | None:
    """Return the task that a directory's files describe; None where they do not make sentence vectors."""
    if MODULES not in files:
        return None
    kinds = list(_module_kinds(folder, files))
    if kinds == ["Transformer"]:
        return None  # a cross-encoder
    maps = kinds[2:-1] if kinds[-1] == "Normalize" else kinds[2:]
    if kinds[:2] != ["Transformer", "Pooling"] or set(maps) - {"Dense"}:
        order = "Transformer, Pooling, Dense ..., Normalize"
        raise ConfigError(f"{folder / MODULES}: {', '.join(kinds)} is not supported, only {order}")
    pooling, settings = _fields(folder, files, "1_Pooling/config.json"), _fields(folder, files, SETTINGS)
    settings.only("similarity_fn_name", get_args(Similarity), "cosine")
    prompts = {str(name): str(text or "") for name, text in settings.group("prompts").items()}
    usual = settings.text("default_prompt_name", "") if any(prompts.values()) else ""
    if usual and usual not in prompts:
        raise settings.error("default_prompt_name", f"{usual!r} is not among the prompts")
    return SentenceSimilarity(
        pooling=_poolings(pooling),
        dense=tuple(_dense(_fields(folder, files, f"{place}/config.json")) for place in DENSE[: len(maps)]),
        normalize=kinds[-1] == "Normalize",
        similarity=settings.data.get("similarity_fn_name") or "cosine",
        prompts=prompts if any(prompts.values()) else {},
        default_prompt_name=usual,
        include_prompt=pooling.flag("include_prompt", True),
        max_seq_length=_max_seq_length(folder, files),
    )


def embedding_config(config: ModelConfig, folder: Path, files: Mapping[str, bytes]) -> ModelConfig:
    """Return the architecture of a directory with sentence vectors in place of another output, where it makes them."""
    task = read_task(folder, files)
    if task is None:
        return config
    if isinstance(config, DecoderConfig):
        return dataclasses.replace(config, task=task, tied=True, output_bias=False)  # logits without weights
    if not isinstance(config, EncoderConfig):
        raise ConfigError(f"{folder / MODULES}: sentence vectors of a {kind_of(config)} are not supported")
    return dataclasses.replace(config, task=task)


def read_cased(folder: Path, files: Mapping[str, bytes], tokenizer: Tokenizer | None) -> Tokenizer | None:
    """Return the tokenizer of a directory, with a normalizer to lower case before its own where the files say so."""
    if tokenizer is None or MODULES not in files or not _reading(folder, files).flag("do_lower_case", False):
        return tokenizer
    normalizer = tokenizer.backend.normalizer
    if normalizer is not None and normalizer.normalize_str("A") == normalizer.normalize_str("a"):
        return tokenizer
    data = json.loads(tokenizer.vocabulary)
    own = [data["normalizer"]] if data.get("normalizer") else []
    data["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *own]}
    return dataclasses.replace(tokenizer, vocabulary=json.dumps(data, ensure_ascii=False))


def task_files(task: SentenceSimilarity, width: int) -> dict[str, bytes]:
    """Return the files that describe a task, without the weights of its maps."""
    normalize = [f"{2 + len(task.dense)}_Normalize"] if task.normalize else []
    places = ["", "1_Pooling", *DENSE[: len(task.dense)], *normalize]
    kinds = [place.rpartition("_")[2] or "Transformer" for place in places]
    modules = [
        {"idx": number, "name": str(number), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for number, (place, kind) in enumerate(zip(places, kinds, strict=True))
    ]
    flags: dict[str, Any] = {flag: mode in task.pooling for flag, mode in _FLAGS.items()}
    usual = tuple(mode for mode in _FLAGS.values() if mode in task.pooling) == task.pooling
    pooling = {"word_embedding_dimension": width, **(flags if usual else {"pooling_mode": list(task.pooling)})}
    found: dict[str, Any] = {
        MODULES: modules,
        SETTINGS: {
            "prompts": dict(task.prompts),
            "default_prompt_name": task.default_prompt_name or None,
            "similarity_fn_name": task.similarity,
        },
        TRANSFORMER[0]: {"max_seq_length": task.max_seq_length, "do_lower_case": False},
        "1_Pooling/config.json": pooling if task.include_prompt else {**pooling, "include_prompt": False},
    }
    names = {ours: theirs for theirs, ours in _PHI.items()}
    for place, dense, size in zip(DENSE, task.dense, task.sizes(width), strict=False):
        found[f"{place}/config.json"] = {
            "in_features": size,
            "out_features": dense.size,
            "bias": dense.bias,
            "activation_function": names[dense.activation],
        }
    found |= {f"{place}/config.json": {} for place in normalize}
    return {name: (json.dumps(data, indent=2) + "\n").encode() for name, data in found.items()}


def pipeline_files(model: Model) -> dict[str, bytes]:
    """Return the files of a model's task: those that it came with if they describe it, else new ones, if any."""
    task = getattr(model.config, "task", None)
    own = {name: data for name, data in model.files.items() if name.partition("/")[0] in PIPELINE}
    settings = {name: data for name, data in model.files.items() if name == "tokenizer_config.json"}
    wanted = task if isinstance(task, SentenceSimilarity) else None
    if read_task(Path(), own | settings) == wanted:
        return own
    return {} if wanted is None else task_files(wanted, model.config.width)


def read_maps(folder: Path, declared: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the weights of maps by their paths, checked to be those declared."""
    found: dict[str, np.ndarray] = {}
    names = {"linear.weight": "kernel", "linear.bias": "bias"}
    for place, (name, tensors) in zip(DENSE, declared.items(), strict=False):
        files = SafetensorsFiles(folder / place)
        own = {names.get(theirs, theirs): files.read(theirs).T for theirs in files.entries}
        if {path: array.shape for path, array in own.items()} != {path: one.shape for path, one in tensors.items()}:
            raise ParameterError(f"{files.source}: not the tensors of its config.json")
        found |= {f"{name}/{path}": array for path, array in own.items()}
    return found


def write_maps(model: Model, folder: Path) -> None:
    """Write the weights of a task's maps."""
    embeds = isinstance(getattr(model.config, "task", None), SentenceSimilarity)
    for place, params in zip(DENSE, model.params["output"].values() if embeds else (), strict=False):
        tensors = {"linear.weight": np.asarray(params["kernel"]).T}
        if "bias" in params:
            tensors["linear.bias"] = np.asarray(params["bias"])
        write_safetensors(folder / place / SINGLE, tensors, tensors.items())


def without_sentences(model: Model) -> Model:
    """Return the model without sentence vectors, which no Hugging Face class has but sentence-transformers can hold."""
    task = getattr(model.config, "task", None)
    if not isinstance(task, SentenceSimilarity):
        return model
    if len(task.dense) > len(DENSE) or not {dense.activation for dense in task.dense} <= {*_PHI.values()}:
        known = ", ".join(map(str, _PHI.values()))
        raise InexpressibleError(f"task.dense: at most {len(DENSE)} maps are written, with activations {known}")
    plain = None if isinstance(model.config, DecoderConfig) else NoTask()  # with logits of its embeddings
    config = dataclasses.replace(model.config, task=plain)  # type: ignore[call-arg]
    return model.replace(config=config, params={**model.params, "output": {}})


def _module_kinds(folder: Path, files: Mapping[str, bytes]) -> Iterator[str]:
    """Yield the names of the modules, which lie where they always do."""
    modules = parse_json(files[MODULES], str(folder / MODULES))
    if not isinstance(modules, list) or not modules or not all(isinstance(module, dict) for module in modules):
        raise ConfigError(f"{folder / MODULES}: expected a list of objects")
    for number, module in enumerate(modules):
        package, _, kind = str(module.get("type")).rpartition(".")
        place, usual = module.get("path"), f"{number}_{kind}" if number else ""
        known = package.startswith("sentence_transformers") and kind in _READ
        if not known or place != usual or (number and place not in FOLDERS):
            raise ConfigError(f"{folder / MODULES}: the module {module.get('type')} at {place!r} is not supported")
        yield kind


def _poolings(fields: Fields) -> tuple[Pooling, ...]:
    """Return the poolings that a config asks for, as names or as flags."""
    modes: Any = fields.data.get("pooling_mode")
    if modes is None:
        modes = [mode for flag, mode in _FLAGS.items() if fields.flag(flag, False)] or ["mean"]
    modes = tuple(modes) if isinstance(modes, list) else (modes,)
    known = get_args(Pooling)
    for mode in modes:
        if mode not in known:
            raise fields.unsupported("pooling_mode", mode, known)
    return modes


def _dense(fields: Fields) -> Dense:
    phi = fields.text("activation_function", "torch.nn.modules.activation.Tanh")
    if phi not in _PHI:
        raise fields.unsupported("activation_function", phi, _PHI)
    fields.only("use_residual", (False,), False)
    return Dense(size=fields.size("out_features"), activation=_PHI[phi], bias=fields.flag("bias", True))


def _max_seq_length(folder: Path, files: Mapping[str, bytes]) -> int | None:
    """Return the greatest number of tokens."""
    fields = _reading(folder, files)
    fields.only("processing_kwargs", ({},), {})
    limit = fields.integer("max_seq_length", 0)
    if not limit:
        limit = int(_fields(folder, files, "tokenizer_config.json").data.get("model_max_length") or _UNLIMITED)
    return limit if limit < _UNLIMITED else None


def _reading(folder: Path, files: Mapping[str, bytes]) -> Fields:
    return _fields(folder, files, next((name for name in TRANSFORMER if name in files), TRANSFORMER[0]))


def _fields(folder: Path, files: Mapping[str, bytes], name: str) -> Fields:
    """Return the fields of a file; one that is missing has none."""
    data = parse_json(files.get(name, b"{}"), str(folder / name))
    if not isinstance(data, dict):
        raise ConfigError(f"{folder / name}: not a JSON object")
    return Fields(data, folder / name)
