"""Trim a model to the tokens of a corpus: rows of the embeddings, columns of logits, and the tokenizer's vocabulary.

Texts that are made of kept tokens are split as before. Their hidden states, embeddings and labels are the same to the
bit, logits of kept tokens up to the order in which a product of another size sums:

* WordPiece takes the longest piece that fits, which stays the longest when others go.
* BPE applies the merge of the lowest rank. What these make on the way from characters to a kept token stays.
* Unigram takes the best path, which stays the best when others go.

Tokens of one character stay, so that any text that could be split still can.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from headjax.core.errors import HeadjaxError
from headjax.core.tensors import flatten, map_tensors
from headjax.models.decoder import DecoderConfig
from headjax.models.encoder import EncoderConfig
from headjax.models.model import Model

GENERATION = "generation_config.json"


def trim_vocabulary(model: Model, texts: Iterable[str]) -> Model:
    """Return the model with the tokens of texts, special tokens and single characters alone.

    The new id of a token is its place among the kept ones, whose old ids are in the history: `kept[new] == old`.

        >>> model = headjax.demo_model()
        >>> smaller = headjax.trim_vocabulary(model, ["for name in names:"])
        >>> smaller.tokenizer.backend.encode("for name in names:").tokens
        ['for', 'Ġname', 'Ġin', 'Ġnames', ':']
        >>> smaller.config.vocab_size < model.config.vocab_size
        True

    Raises:
        HeadjaxError: the model has no tokenizer, one for translations, or is neither an encoder nor a decoder.
    """
    tokenizer, config = model.tokenizer, model.config
    if tokenizer is None or tokenizer.target or not isinstance(config, EncoderConfig | DecoderConfig):
        raise HeadjaxError("vocabulary: only encoders and decoders with a tokenizer can be trimmed")
    data = json.loads(tokenizer.vocabulary)
    ids = tokenizer.prompt_backend.get_vocab()
    tokens = {int(token) for text in tokenizer.encode(list(texts)) for token in text}
    tokens |= {number for token, number in ids.items() if len(token.removeprefix("##")) == 1}
    tokens |= {token["id"] for token in data["added_tokens"]} | set(range(config.position_offset))
    names = {number: token for token, number in ids.items()}
    kept = sorted(number for number in _with_parts(data["model"], tokens, names) if number < config.vocab_size)
    new = {old: place for place, old in enumerate(kept)}
    smaller = dataclasses.replace(config, vocab_size=len(kept))
    before, arrays, rows = flatten(config.tensors()), flatten(model.params), jnp.asarray(kept)

    def cut(path: str, tensor: Any) -> Any:
        sizes = zip(before[path].shape, tensor.shape, strict=True)
        axes = [axis for axis, (old, size) in enumerate(sizes) if old != size]
        return jnp.take(arrays[path], rows, axis=axes[0]) if axes else arrays[path]

    params = map_tensors(cut, smaller.tensors())
    vocabulary = json.dumps(_trimmed(data, new), ensure_ascii=False)
    trimmed, files = dataclasses.replace(tokenizer, vocabulary=vocabulary), dict(model.files)
    if GENERATION in files:  # an export writes the tokenizer's own files anew
        fields = json.loads(files[GENERATION])
        for name, ids in fields.items():
            if name.endswith("_token_id"):
                fields[name] = [new[each] for each in ids] if isinstance(ids, list) else new.get(ids, ids)
        files[GENERATION] = json.dumps(fields).encode()
    model = model.replace(config=smaller, params=params, tokenizer=trimmed, files=files)
    return model.with_entry("trim_vocabulary", kept=kept)


def _with_parts(algorithm: Mapping[str, Any], tokens: Collection[int], names: Mapping[int, str]) -> set[int]:
    """Return ids with those of all tokens that merges make on the way to them, and of the token for what is unknown."""
    kept, ids = set(tokens), {token: number for number, token in names.items()}
    unknown = ids.get(algorithm.get("unk_token", ""), algorithm.get("unk_id"))
    kept |= set() if unknown is None else {unknown}
    ranks = {tuple(_parts(merge)): rank for rank, merge in enumerate(algorithm.get("merges") or ())}
    ending = algorithm.get("end_of_word_suffix") or ""
    for token in [names[number] for number in kept if number in names] if ranks else ():
        kept |= {ids[part] for part in _merged(token, ending, ranks) if part in ids}
    return kept


def _merged(token: str, ending: str, ranks: Mapping[tuple[str, ...], int]) -> Iterator[str]:
    """Yield what merges make of a token's characters, the lowest rank first.

    They are the merges of every text that is split into this token: one across its ends would have split it otherwise.
    """
    parts = list(token.removesuffix(ending)) if ending else list(token)
    if ending and token.endswith(ending):
        parts[-1:] = [parts[-1] + ending] if parts else [ending]
    yield from parts
    while len(parts) > 1:
        rank, place = min((ranks.get(pair, len(ranks)), at) for at, pair in enumerate(itertools.pairwise(parts)))
        if rank == len(ranks):  # a token that only a whole word is looked up as
            return
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
        yield parts[place]


def _parts(merge: str | Sequence[str]) -> Sequence[str]:
    return merge.split(" ") if isinstance(merge, str) else merge


def _trimmed(data: Mapping[str, Any], new: Mapping[int, int]) -> dict[str, Any]:
    """Return a `tokenizer.json` with kept tokens alone, under their new ids."""
    algorithm = dict(data["model"])
    if isinstance(algorithm["vocab"], Mapping):
        algorithm["vocab"] = {token: new[number] for token, number in algorithm["vocab"].items() if number in new}
    else:  # Unigram: the id of a piece is its place
        algorithm["vocab"] = [piece for number, piece in enumerate(algorithm["vocab"]) if number in new]
        algorithm["unk_id"] = new.get(algorithm.get("unk_id", -1))
    if "merges" in algorithm:
        whole = algorithm["vocab"].keys()
        merges = algorithm["merges"]
        algorithm["merges"] = [each for each in merges if {"".join(_parts(each)), *_parts(each)} <= whole]
    added = [token | {"id": new[token["id"]]} for token in data["added_tokens"] if token["id"] in new]
    padding = data.get("padding")
    if padding is not None:
        padding = padding | {"pad_id": new.get(padding["pad_id"], 0)}
    ends = _renumbered(data.get("post_processor"), new)
    return {**data, "model": algorithm, "added_tokens": added, "post_processor": ends, "padding": padding}


def _renumbered(processor: Any, new: Mapping[int, int]) -> Any:
    """Return a post-processor with the new ids of the tokens that it adds."""
    if isinstance(processor, list):
        if len(processor) == 2 and isinstance(processor[0], str) and type(processor[1]) is int:
            return [processor[0], new[processor[1]]]  # `cls` and `sep`
        return [_renumbered(entry, new) for entry in processor]
    if isinstance(processor, Mapping):
        return {
            name: [new[number] for number in entry] if name == "ids" else _renumbered(entry, new)
            for name, entry in processor.items()
        }
    return processor
