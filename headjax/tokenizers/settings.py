"""What `tokenizer_config.json` and its companions change of a vocabulary, as `transformers` applies them.

`transformers` builds the tokenizer of a class it knows anew: the rules of the class with the settings of
`tokenizer_config.json`, whatever `tokenizer.json` says of them. Tokens that were added to a vocabulary come behind it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headjax.core.errors import DataError

SPACE = "▁"
"""The character that SentencePiece writes for a space."""

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Special tokens that a tokenizer's files may name."""

ADDED_FILE = "added_tokens.json"

_PLAIN = ("PreTrainedTokenizer", "TokenizersBackend", "")
"""Classes that take `tokenizer.json` as it is."""

_CLASSES = {
    "bart": "Roberta",
    "bert": "Bert",
    "distilbert": "Bert",
    "electra": "Bert",
    "gpt2": "GPT2",
    "llama": "Llama",
    "mpnet": "MPNet",
    "qwen2": "Qwen2",
    "qwen3": "Qwen2",
    "roberta": "Roberta",
}
"""The class of each `model_type`, less `Tokenizer`, where the directory names none."""

_WORDPIECE = ("Bert", "DistilBert", "Electra", "MPNet")
_SPACED = ("GPT2", "Roberta", "Bart", "Qwen2")
"""Classes that put a space before a text where `add_prefix_space` says so."""


class Added(NamedTuple):
    """A token that the files of a directory add to its vocabulary."""

    content: str
    id: int | None
    flags: Mapping[str, bool]


def class_of(config: Mapping[str, Any], model_type: str) -> str:
    """Return the class that `transformers` takes, less `Tokenizer`; empty where it takes `tokenizer.json` as it is."""
    name = config.get("tokenizer_class")
    if isinstance(name, str):
        name = name.removesuffix("Fast")
        return "" if name in _PLAIN else name.removesuffix("Tokenizer")
    return _CLASSES.get(model_type, "")


def with_settings(text: str, kind: str, config: Mapping[str, Any]) -> str:
    """Return the text of a `tokenizer.json` with what a class takes from `tokenizer_config.json` instead."""
    data = json.loads(text)
    before = json.dumps(data)
    wordpiece = (data.get("model") or {}).get("type") == "WordPiece"
    if kind in _WORDPIECE and wordpiece:
        data["normalizer"] = {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": bool(config.get("tokenize_chinese_chars", True)),
            "strip_accents": config.get("strip_accents"),
            "lowercase": bool(config.get("do_lower_case", True)),
        }
    if kind == "Llama" and data["model"].get("byte_fallback"):
        _set_spaces(data, config)
    if kind in _SPACED:
        for part in _parts(data.get("pre_tokenizer")):
            if part.get("type") == "ByteLevel":
                part["add_prefix_space"] = bool(config.get("add_prefix_space"))
    names = config.get("model_input_names")
    if isinstance(names, list) and "token_type_ids" not in names:
        data["post_processor"] = _one_type(data.get("post_processor"))
    return text if json.dumps(data) == before else json.dumps(data, ensure_ascii=False)


def _set_spaces(data: dict[str, Any], config: Mapping[str, Any]) -> None:
    """Put Llama's space before a text, before each part between special tokens (`legacy`), or nowhere."""
    prefix = config.get("add_prefix_space")
    scheme = "never" if prefix is False else "always" if config.get("legacy", False) else "first"
    data["normalizer"] = None
    data["pre_tokenizer"] = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}
    parts = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}]
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if scheme != "never" else []
    data["decoder"] = {"type": "Sequence", "decoders": [*parts, {"type": "Fuse"}, *strip]}


def _parts(part: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield a pre-tokenizer, or those of a sequence."""
    yield from (part or {}).get("pretokenizers", [part] if part else [])


def _one_type(processor: Any) -> Any:
    """Return a post-processor that gives both texts of a pair the type 0, as for a model without `token_type_ids`."""
    if not isinstance(processor, dict):
        return processor
    if processor.get("type") == "Sequence":
        return processor | {"processors": [_one_type(each) for each in processor["processors"]]}
    if processor.get("type") == "TemplateProcessing":
        pair = [{kind: part | {"type_id": 0} for kind, part in each.items()} for each in processor["pair"]]
        return processor | {"pair": pair}
    return processor


def added_tokens(config: Mapping[str, Any], companion: Mapping[str, Any], added: Mapping[str, Any]) -> list[Added]:
    """Return the tokens that a directory adds, by id; its companions count without `added_tokens_decoder`."""
    decoder = config.get("added_tokens_decoder")
    settings = dict(config) if isinstance(decoder, dict) else {**config, **companion}
    named = [settings.get(role) for role in ROLES]
    named += [value for name, value in settings.items() if name.endswith("_token") and name not in ROLES]
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    named += extra.values() if isinstance(extra, dict) else extra if isinstance(extra, list) else []
    special = [token for token in map(_token, named) if token is not None]
    if isinstance(decoder, dict):
        numbered = [(int(number), _token(token, special=False)) for number, token in decoder.items()]
    else:
        known = {token.content: token for token in special}
        numbered = [
            (number, known.get(content, Added(content, None, {"normalized": True})))
            for content, number in added.items()
        ]
    stated = [token._replace(id=number) for number, token in sorted(numbered, key=lambda each: each[0]) if token]
    return [*stated, *special]


def _token(value: Any, special: bool = True) -> Added | None:
    """Return the token that an entry stands for: a string, or an object with flags."""
    if isinstance(value, str):
        return Added(value, None, {"special": special, "normalized": not special})
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        return None
    names = ("lstrip", "rstrip", "single_word", "normalized", "special")
    flags = {name: value[name] for name in names if isinstance(value.get(name), bool)}
    return Added(value["content"], None, {"normalized": not special, "special": special} | flags)


def with_added(text: str, tokens: list[Added], place: Path, *, flags: bool) -> str:
    """Return the text of a `tokenizer.json` with tokens behind its vocabulary, and `flags` also of its own ones."""
    import tokenizers

    backend = tokenizers.Tokenizer.from_str(text)
    own = {token.content for token in backend.get_added_tokens_decoder().values()}
    first = {token.content: token for token in reversed(tokens) if token.content}
    new = [token for token in dict.fromkeys(token.content for token in tokens) if token and token not in own]
    backend.add_tokens([tokenizers.AddedToken(token, **first[token].flags) for token in new])
    for token in tokens:
        found = backend.token_to_id(token.content)
        if token.id is not None and found != token.id:
            raise DataError(f"{place}: {token.content!r} has the id {token.id}, but would get {found}")
    changed = first.keys() & own if flags else set()
    if not new and not changed:
        return text
    data = json.loads(backend.to_str())
    for entry in data["added_tokens"]:
        if entry["content"] in changed:
            entry.update(first[entry["content"]].flags)
    return json.dumps(data, ensure_ascii=False)
