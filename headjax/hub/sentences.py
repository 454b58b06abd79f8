"""Directories of sentence-transformers: `modules.json` and what it names, as the task `SentenceSimilarity`.

Those of a `CrossEncoder` say how a classifier or a regression reads texts, and what becomes of its logits. Read are the
names of fields of versions 2 to 6; other fields are refused. Written are those of 2, which all versions read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

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
from headjax.models.tasks import Classification, Dense, MultiLabel, NoTask, Regression, SentenceSimilarity, TaskOutput
from headjax.models.tasks.similarity import Pooling, Similarity
from headjax.nn.projections import ActivationName
from headjax.storage.files import parse_json
from headjax.tokenizers.tokenizer import UNLIMITED, Tokenizer

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

_NESTED = "0_Transformer"
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
_IMMATERIAL = ("trust_remote_code", "add_pooling_layer", "attn_implementation", "use_fast")
"""Arguments of the classes of transformers by which vectors and scores stay the same."""

SCORES: Mapping[str, Literal["sigmoid"] | None] = {
    **dict.fromkeys(("torch.nn.modules.activation.Sigmoid", "torch.nn.Sigmoid"), "sigmoid"),
    **dict.fromkeys(("torch.nn.modules.linear.Identity", "torch.nn.Identity"), None),
}
"""The activation of a cross-encoder's logits by its name in the files. Of two names, the first one is written."""

SCORE_FIELDS = _GROUP, _OLD_ACTIVATION = "sentence_transformers", "sbert_ce_default_activation_function"
"""Fields of a cross-encoder's `config.json`, of versions 4 and 5 and of those before."""

_SCORED = (Classification, MultiLabel, Regression)


def transformer_folder(folder: Path) -> Path:
    """Return the folder of the Hugging Face model: the directory itself, or that of the first of its modules."""
    file = folder / MODULES
    modules = parse_json(file.read_bytes(), str(file)) if file.is_file() else []
    first = modules[0] if isinstance(modules, list) and modules else {}
    return folder / _NESTED if isinstance(first, dict) and first.get("path") == _NESTED else folder


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
    pooling, settings = _fields(folder, files, "1_Pooling/config.json"), _settings(folder, files)
    pooling.no_others("word_embedding_dimension", "embedding_dimension", "pooling_mode", "include_prompt", *_FLAGS)
    settings.only("model_type", ("SentenceTransformer",), "SentenceTransformer")
    settings.only("similarity_fn_name", get_args(Similarity), "cosine")
    if kinds[-1] == "Normalize":
        _vectors_alone(_fields(folder, files, f"{len(kinds) - 1}_Normalize/config.json"))
    modes = pooling.data.get("pooling_mode")  # names, in place of flags
    if modes is None:
        modes = [mode for flag, mode in _FLAGS.items() if pooling.flag(flag, False)] or "mean"
    modes = tuple(modes) if isinstance(modes, list) else (modes,)
    for mode in modes:
        if mode not in get_args(Pooling):
            raise pooling.unsupported("pooling_mode", mode, get_args(Pooling))
    prompts, usual = _prompts(settings)
    _check_reading(folder, files, "feature-extraction", "last_hidden_state", "token_embeddings")
    return SentenceSimilarity(
        pooling=modes,
        dense=tuple(_dense(_fields(folder, files, f"{place}/config.json")) for place in DENSE[: len(maps)]),
        normalize=kinds[-1] == "Normalize",
        similarity=settings.data.get("similarity_fn_name") or "cosine",
        prompts=prompts if any(prompts.values()) else {},
        default_prompt_name=usual,
        include_prompt=pooling.flag("include_prompt", True),
        max_seq_length=_max_seq_length(folder, files),
        truncate_dim=settings.size("truncate_dim") if settings.has("truncate_dim") else None,
    )


def is_cross_encoder(files: Mapping[str, bytes], config: Mapping[str, Any]) -> bool:
    """Return whether a directory holds a `CrossEncoder`, by its files and the fields of its `config.json`."""
    if MODULES in files:
        return list(_module_kinds(Path(), files)) == ["Transformer"]
    return bool(config.get(_GROUP) or config.get(_OLD_ACTIVATION))


def with_scores(task: Any, folder: Path, files: Mapping[str, bytes], config: Mapping[str, Any]) -> TaskOutput:
    """Return the output of a cross-encoder with the length of its texts and the activation of its numbers."""
    scored = isinstance(task, Regression)
    settings, model_fields = _settings(folder, files), Fields(config, folder / "config.json")
    group = Fields(model_fields.group(_GROUP), f"{model_fields.file}: {_GROUP}")
    places = ((settings, "activation_fn"), (group, "activation_fn"), (model_fields, _OLD_ACTIVATION))
    usual = next(iter(SCORES)) if scored and task.outputs == 1 else "torch.nn.Identity"
    fields, name = next(((fields, name) for fields, name in places if fields.has(name)), (settings, "activation_fn"))
    known = [theirs for theirs, ours in SCORES.items() if ours is None or scored]
    fields.only(name, known, usual)
    if MODULES in files:
        settings.only("model_type", ("CrossEncoder",), "CrossEncoder")
        prompts, default = _prompts(settings)
        if prompts.get(default):
            raise settings.error("default_prompt_name", "a prompt of pairs is not supported; remove it from the file")
        _check_reading(folder, files, "sequence-classification", "logits", "scores")
    parts: dict[str, Any] = {"activation": SCORES[fields.text(name, usual)]} if scored else {}
    return dataclasses.replace(task, max_seq_length=_max_seq_length(folder, files), **parts)


def pipeline_config(
    config: ModelConfig, folder: Path, files: Mapping[str, bytes], fields: Mapping[str, Any]
) -> ModelConfig:
    """Return the architecture of a directory with what files of sentence-transformers say about its output.

    `fields` are those of its `config.json`. Sentence vectors come in place of another output.
    """
    task, usual = read_task(folder, files), getattr(config, "task", None)
    if task is None and isinstance(usual, _SCORED) and is_cross_encoder(files, fields):
        return dataclasses.replace(config, task=with_scores(usual, folder, files, fields))  # type: ignore[call-arg]
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
    normalizers = [data["normalizer"]] if data.get("normalizer") else []
    data["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *normalizers]}
    return dataclasses.replace(tokenizer, vocabulary=json.dumps(data, ensure_ascii=False))


def _activation_field(task: Any) -> dict[str, str]:
    """Return the field that names the activation of a cross-encoder's logits."""
    activation = getattr(task, "activation", None)
    return {"activation_fn": next(theirs for theirs, ours in SCORES.items() if ours == activation)}


def task_files(task: SentenceSimilarity, width: int) -> dict[str, bytes]:
    """Return the files that describe a task, without the weights of its maps."""
    normalize = [f"{2 + len(task.dense)}_Normalize"] if task.normalize else []
    places = ["", "1_Pooling", *DENSE[: len(task.dense)], *normalize]
    kinds = [place.rpartition("_")[2] or "Transformer" for place in places]
    modules = [_module(number, *each) for number, each in enumerate(zip(places, kinds, strict=True))]
    flags: dict[str, Any] = {flag: mode in task.pooling for flag, mode in _FLAGS.items()}
    usual = tuple(mode for mode in _FLAGS.values() if mode in task.pooling) == task.pooling
    pooling = {"word_embedding_dimension": width, **(flags if usual else {"pooling_mode": list(task.pooling)})}
    files: dict[str, Any] = {
        MODULES: modules,
        SETTINGS: {
            "prompts": dict(task.prompts),
            "default_prompt_name": task.default_prompt_name or None,
            "similarity_fn_name": task.similarity,
            **({} if task.truncate_dim is None else {"truncate_dim": task.truncate_dim}),
        },
        TRANSFORMER[0]: {"max_seq_length": task.max_seq_length, "do_lower_case": False},
        "1_Pooling/config.json": pooling if task.include_prompt else {**pooling, "include_prompt": False},
    }
    names = {ours: theirs for theirs, ours in _PHI.items()}
    for place, dense, size in zip(DENSE, task.dense, task.sizes(width), strict=False):
        files[f"{place}/config.json"] = {
            "in_features": size,
            "out_features": dense.size,
            "bias": dense.bias,
            "activation_function": names[dense.activation],
        }
    files |= {f"{place}/config.json": {} for place in normalize}
    return _written(files)


def _module(number: int, place: str, kind: str) -> dict[str, Any]:
    return {"idx": number, "name": str(number), "path": place, "type": f"sentence_transformers.models.{kind}"}


def _written(files: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: (json.dumps(data, indent=2) + "\n").encode() for name, data in files.items()}


def pipeline_files(model: Model) -> dict[str, bytes]:
    """Return the files of a model's task: those that it came with if they describe it, else new ones, if any."""
    task = getattr(model.config, "task", None)
    carried = {name: data for name, data in model.files.items() if name.partition("/")[0] in PIPELINE}
    read = carried | {name: data for name, data in model.files.items() if name == "tokenizer_config.json"}
    if isinstance(task, SentenceSimilarity):
        return carried if read_task(Path(), read) == task else task_files(task, model.config.width)
    if isinstance(task, _SCORED) and is_cross_encoder(carried, {}):
        with contextlib.suppress(ConfigError):  # of an activation that such an output cannot have
            if with_scores(plain_scores(task), Path(), read, {}) == task:
                return carried
    if isinstance(task, _SCORED) and task != plain_scores(task):
        reading = {"max_seq_length": task.max_seq_length, "transformer_task": "sequence-classification"}
        settings = {"model_type": "CrossEncoder", "prompts": {}, **_activation_field(task)}
        return _written({MODULES: [_module(0, "", "Transformer")], SETTINGS: settings, TRANSFORMER[0]: reading})
    return {} if MODULES in carried else carried


def score_fields(task: Any, files: Collection[str], past: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a cross-encoder's `config.json`, `past` those that it came with; none for other models."""
    if not isinstance(task, _SCORED) or not (MODULES in files or past.get(_GROUP) or past.get(_OLD_ACTIVATION)):
        return {}
    return {_GROUP: {**Fields(past).group(_GROUP), **_activation_field(task)}}


def plain_scores(task: Any) -> TaskOutput:
    """Return the output of a cross-encoder as a Hugging Face class has it."""
    more = {"activation": None} if isinstance(task, Regression) else {}
    return dataclasses.replace(task, max_seq_length=None, **more)


def read_maps(folder: Path, declared: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the weights of maps by their paths, checked to be those declared."""
    maps: dict[str, np.ndarray] = {}
    names = {"linear.weight": "kernel", "linear.bias": "bias"}
    for place, (name, tensors) in zip(DENSE, declared.items(), strict=False):
        files = SafetensorsFiles(folder / place)
        arrays = {names.get(theirs, theirs): files.read(theirs).T for theirs in files.entries}
        shapes = {path: tensor.shape for path, tensor in tensors.items()}
        if {path: array.shape for path, array in arrays.items()} != shapes:
            raise ParameterError(f"{files.source}: not the tensors of its config.json")
        maps |= {f"{name}/{path}": array for path, array in arrays.items()}
    return maps


def write_maps(model: Model, folder: Path) -> None:
    """Write the weights of a task's maps."""
    embeds = isinstance(getattr(model.config, "task", None), SentenceSimilarity)
    for place, params in zip(DENSE, model.params["output"].values() if embeds else (), strict=False):
        tensors = {"linear.weight": np.asarray(params["kernel"]).T}
        if "bias" in params:
            tensors["linear.bias"] = np.asarray(params["bias"])
        write_safetensors(folder / place / SINGLE, tensors, tensors.items())


def without_pipeline(model: Model) -> Model:
    """Return the model without what files of sentence-transformers hold: vectors and what becomes of scores."""
    task = getattr(model.config, "task", None)
    if isinstance(task, _SCORED):
        config = dataclasses.replace(model.config, task=plain_scores(task))
        return model if config == model.config else model.replace(config=config)
    if not isinstance(task, SentenceSimilarity):
        return model
    if len(task.dense) > len(DENSE) or not {dense.activation for dense in task.dense} <= {*_PHI.values()}:
        known = ", ".join(map(str, _PHI.values()))
        raise InexpressibleError(f"task.dense: at most {len(DENSE)} maps are written, with activations {known}")
    plain = None if isinstance(model.config, DecoderConfig) else NoTask()  # with logits of its embeddings
    config = dataclasses.replace(model.config, task=plain)
    return model.replace(config=config, params={**model.params, "output": {}})


def _module_kinds(folder: Path, files: Mapping[str, bytes]) -> Iterator[str]:
    """Yield the names of the modules, which lie where they always do."""
    modules = parse_json(files[MODULES], str(folder / MODULES))
    if not isinstance(modules, list) or not modules or not all(isinstance(module, dict) for module in modules):
        raise ConfigError(f"{folder / MODULES}: expected a list of objects")
    for number, module in enumerate(modules):
        package, _, kind = str(module.get("type")).rpartition(".")
        place, usual = module.get("path"), f"{number}_{kind}" if number else ""
        place = "" if not number and place == _NESTED else place
        known = package.startswith("sentence_transformers") and kind in ("Transformer", "Pooling", "Dense", "Normalize")
        if not known or place != usual or (number and place not in FOLDERS):
            raise ConfigError(f"{folder / MODULES}: the module {module.get('type')} at {place!r} is not supported")
        yield kind


def _dense(fields: Fields) -> Dense:
    phi = fields.text("activation_function", "torch.nn.modules.activation.Tanh")
    if phi not in _PHI:
        raise fields.unsupported("activation_function", phi, _PHI)
    fields.only("use_residual", (False,), False)
    _vectors_alone(fields, "in_features", "out_features", "bias", "activation_function", "use_residual")
    return Dense(size=fields.size("out_features"), activation=_PHI[phi], bias=fields.flag("bias", True))


def _vectors_alone(fields: Fields, *known: str) -> None:
    """Check that a module behind the pooling reads and writes the sentence vector, and has no other field."""
    names = ("module_input_name", "module_output_name")
    for name in names:
        fields.only(name, ("sentence_embedding",), "sentence_embedding")
    fields.no_others(*names, *known)


def _settings(folder: Path, files: Mapping[str, bytes]) -> Fields:
    fields = _fields(folder, files, SETTINGS)
    fields.no_others(
        *("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "model_type", "activation_fn"),
        *("__version__", "requirements", "keep_in_fp32_modules"),  # of no effect on float32
    )
    return fields


def _prompts(settings: Fields) -> tuple[dict[str, str], str]:
    """Return the prompts by name, and the name of the usual one; empty for none."""
    prompts = {str(name): str(text or "") for name, text in settings.group("prompts").items()}
    usual = settings.text("default_prompt_name", "") if any(prompts.values()) else ""
    if usual and usual not in prompts:
        raise settings.error("default_prompt_name", f"{usual!r} is not among the prompts")
    return prompts, usual


def _check_reading(folder: Path, files: Mapping[str, bytes], task: str, output: str, name: str) -> None:
    """Check that texts are read as they are, and that this output of the model is taken."""
    fields = _reading(folder, files)
    fields.only("transformer_task", (task,), task)
    fields.only("module_output_name", (name,), name)
    kinds, text = fields.group("modality_config"), {"method": "forward", "method_output_name": output}
    if kinds and (kinds.get("text") != text or "message" in kinds):  # texts as messages of a chat template
        raise fields.unsupported("modality_config", kinds, [{"text": text}])
    for empty in ("processing_kwargs", "query_expansion", "query_length", "document_length", "tokenizer_name_or_path"):
        fields.only(empty, ({},), {})
    arguments = [f"{what}_{end}" for what in ("model", "config", "tokenizer") for end in ("args", "kwargs")]
    for group in (*arguments, "processor_kwargs"):
        Fields(fields.group(group), f"{fields.file}: {group}").no_others(*_IMMATERIAL)
    known = ("transformer_task", "module_output_name", "modality_config", "max_seq_length", "do_lower_case")
    fields.no_others(*known, *arguments, "processor_kwargs", "unpad_inputs")


def _max_seq_length(folder: Path, files: Mapping[str, bytes]) -> int | None:
    limit = _reading(folder, files).integer("max_seq_length", 0)
    if not limit:
        limit = int(_fields(folder, files, "tokenizer_config.json").data.get("model_max_length") or UNLIMITED)
    return limit if limit < UNLIMITED else None


def _reading(folder: Path, files: Mapping[str, bytes]) -> Fields:
    return _fields(folder, files, next((name for name in TRANSFORMER if name in files), TRANSFORMER[0]))


def _fields(folder: Path, files: Mapping[str, bytes], name: str) -> Fields:
    """Return the fields of a file; one that is missing has none."""
    data = parse_json(files.get(name, b"{}"), str(folder / name))
    if not isinstance(data, dict):
        raise ConfigError(f"{folder / name}: not a JSON object")
    return Fields(data, folder / name)
