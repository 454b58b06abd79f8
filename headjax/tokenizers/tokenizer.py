"""Tokenizers as values: the text of a Hugging Face `tokenizer.json`, and the roles of its special tokens."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from headjax.core.errors import DataError
from headjax.storage.files import check_characters, parse_json, read_document, write_file
from headjax.storage.paths import path_of

if TYPE_CHECKING:
    import tokenizers

END_OF_TEXT = "<|endoftext|>"  # GPT-2's token between documents

VOCABULARY_FILE = "tokenizer.json"
SPECIAL_FILE = "special_tokens_map.json"
CONFIG_FILE = "tokenizer_config.json"
TARGET_FILE = "target_tokenizer.json"

UNLIMITED = 10**9  # `model_max_length` of tokenizers without a limit is above
_ENCODED_AT_ONCE = 1024
CANNOT_READ = "tokenizer: cannot read a text"


@contextlib.contextmanager
def library_errors(place: str) -> Iterator[None]:
    """Turn errors of the `tokenizers` library into a `DataError`; a panic of its Rust code is a `BaseException`."""
    try:
        yield
    except DataError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{place}: {' '.join(str(error).split())}") from None


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """Text to token ids and back, computed by the Hugging Face `tokenizers` library for any of its algorithms.

        >>> headjax.demo_model().tokenizer.backend.encode("for name in names:").tokens
        ['for', 'Ġname', 'Ġin', 'Ġnames', ':']

    Attributes:
        vocabulary: text of a `tokenizer.json`.
        special: special tokens by role, in pairs of Hugging Face's role (`eos_token`, `pad_token`, ...) and token.
        target: text of a second `tokenizer.json` for translations, where a model splits its target language by
            other rules than its source language (Marian). Tokens have the same ids in both.
        settings: text of a `tokenizer_config.json` of `transformers`, where the tokenizer came with one: the sides of
            truncation and padding, the greatest length, a chat template.
    """

    vocabulary: str = dataclasses.field(repr=False)
    special: tuple[tuple[str, str], ...] = ()
    target: str = dataclasses.field(default="", repr=False)
    settings: str = dataclasses.field(default="", repr=False)

    @functools.cached_property
    def config(self) -> Mapping[str, Any]:
        """The fields of the settings."""
        fields: dict[str, Any] = json.loads(self.settings or "{}")
        return fields

    @property
    def max_length(self) -> int | None:
        """The greatest number of tokens that `transformers` keeps of a text (`model_max_length`); None is no limit."""
        limit = int(self.config.get("model_max_length", UNLIMITED))
        return limit if limit < UNLIMITED else None

    @property
    def truncation_side(self) -> str:
        """The side on which texts are cut, `right` or `left`."""
        return str(self.config.get("truncation_side", "right"))

    def types(self, encoding: tokenizers.Encoding) -> np.ndarray:
        """Return the `token_type_ids` of an encoding, int32 `[tokens]`; 0 where `transformers` gives the model none."""
        names = self.config.get("model_input_names", ("token_type_ids",))
        return np.asarray(encoding.type_ids, np.int32) * np.int32("token_type_ids" in names)

    @functools.cached_property
    def for_targets(self) -> Tokenizer:
        """The tokenizer of translations; the tokenizer itself unless it has a `target`."""
        return Tokenizer(self.target, self.special, settings=self.settings) if self.target else self

    @functools.cached_property
    def backend(self) -> tokenizers.Tokenizer:
        """The library's tokenizer.

        Raises:
            DataError: the vocabulary is not the text of a `tokenizer.json`.
        """
        vocabulary, roles = self.vocabulary, {token for _, token in self.special}
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):  # the library says what is wrong
            data = json.loads(vocabulary)
            others = [token for token in data["added_tokens"] if token["special"] and token["content"] not in roles]
            for token in others:  # without a role, they are not special
                token["special"] = False
            vocabulary = json.dumps(data) if others else vocabulary
        backend = self._library(vocabulary)
        backend.encode_special_tokens = True  # text that spells a token with a role is text
        return backend

    @functools.cached_property
    def prompt_backend(self) -> tokenizers.Tokenizer:
        """The library's tokenizer that reads a special token where a text spells one, as in prompts."""
        return self._library(self.vocabulary)

    def _library(self, vocabulary: str) -> tokenizers.Tokenizer:
        import tokenizers

        with library_errors(f"{VOCABULARY_FILE}: not a tokenizer"):
            backend = tokenizers.Tokenizer.from_str(vocabulary)
        backend.no_truncation()  # files from elsewhere may ask for either
        backend.no_padding()
        return backend

    @functools.cached_property
    def special_tokens(self) -> tuple[str, ...]:
        """Every special token, those without a role included."""
        added = self.prompt_backend.get_added_tokens_decoder().values()
        return tuple(sorted({token.content for token in added if token.special} | {token for _, token in self.special}))

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        return int(self.backend.get_vocab_size())

    @functools.cached_property
    def largest_id(self) -> int:
        """The largest id of a token; more than their number less one where ids have gaps."""
        return max(self.backend.get_vocab().values(), default=-1)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of the vocabulary, 16 hexadecimal digits: equal for equal tokens under equal ids."""
        return hashlib.sha256(json.dumps(sorted(self.backend.get_vocab().items())).encode()).hexdigest()[:16]

    def encodings(self, inputs: Iterable[Any], cut: Mapping[str, Any] = {}, **options: Any) -> list[Any]:
        """Return encodings of texts or pairs, with the template's special tokens, cut as `enable_truncation(**cut)`."""
        backend = self.backend
        if cut:
            backend = self._library(backend.to_str())
            backend.encode_special_tokens = True
            backend.enable_truncation(**cut)
        with library_errors(CANNOT_READ):
            return list(backend.encode_batch(list(inputs), **options))

    @overload
    def encode(self, texts: str) -> np.ndarray: ...  # type: ignore[overload-overlap]

    @overload
    def encode(self, texts: Sequence[str]) -> list[np.ndarray]: ...

    def encode(self, texts: str | Sequence[str]) -> np.ndarray | list[np.ndarray]:
        """Return the token ids of each text, int32 `[tokens]`, without special tokens; one array for one string.

        Raises:
            DataError: a text holds half of a surrogate pair, or the vocabulary has no tokens for it.
        """
        if isinstance(texts, str):
            return self.encode([texts])[0]
        for number, text in enumerate(texts):
            check_characters(text, f"texts[{number}]")
        encoded: list[np.ndarray] = []
        for start in range(0, len(texts), _ENCODED_AT_ONCE):
            some = list(texts[start : start + _ENCODED_AT_ONCE])
            with library_errors(CANNOT_READ):
                encodings = self.backend.encode_batch_fast(some, add_special_tokens=False)
            encoded.extend(np.asarray(encoding.ids, dtype=np.int32) for encoding in encodings)
        return encoded

    def prompt_ids(self, text: str, *, spelled: bool = True, template: bool = True) -> list[int]:
        """Return the token ids of one text as a model reads it.

        Args:
            text: the text.
            spelled: whether a special token that the text spells is that token.
            template: whether the template's special tokens are added.

        Raises:
            DataError: the vocabulary has no tokens for the text.
        """
        backend = self.prompt_backend if spelled else self.backend
        with library_errors(CANNOT_READ):
            return list(backend.encode(text, add_special_tokens=template).ids)

    @functools.cached_property
    def prefix(self) -> np.ndarray:
        """Ids of the special tokens that the template puts before a text, int32 `[tokens]`: `<bos>` of Gemma."""
        try:
            encoding = self.encodings(["a"])[0]
        except DataError:  # no token for it
            return np.zeros(0, np.int32)
        count = next((at for at, special in enumerate(encoding.special_tokens_mask) if not special), 0)
        return np.asarray(encoding.ids[:count], np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the text of token ids `[tokens]`. Bytes that are not UTF-8 (a character cut in two) become U+FFFD."""
        with library_errors("tokenizer: cannot decode tokens"):
            return str(self.backend.decode(np.asarray(ids, dtype=np.int64).tolist(), skip_special_tokens=False))

    @property
    def padding_id(self) -> int:
        """Id of padding; 0 if the tokenizer has no padding token, since the attention mask hides padding."""
        return self.special_id("pad_token") if "pad_token" in dict(self.special) else 0

    def special_id(self, role: str) -> int:
        """Return the id of the special token of a role (`eos_token`, `pad_token`, `cls_token`, `mask_token`, ...).

        Raises:
            DataError: the tokenizer has no such token.
        """
        token = dict(self.special).get(role)
        token_id = None if token is None else self.backend.token_to_id(token)
        if token_id is None:
            roles = ", ".join(name for name, _ in self.special) or "none"
            raise DataError(f"tokenizer: it has no {role}; special tokens it has: {roles}")
        return int(token_id)

    def save(self, directory: str | Path) -> None:
        """Write `tokenizer.json` and `special_tokens_map.json`, which `load` and other tools read.

        A tokenizer with a `target` also writes `target_tokenizer.json`, one with settings `tokenizer_config.json`.

        Raises:
            HeadjaxError: a file cannot be written.
        """
        roles = json.dumps(dict(self.special), indent=2) + "\n"
        texts = {VOCABULARY_FILE: self.vocabulary, TARGET_FILE: self.target, SPECIAL_FILE: roles}
        for name, text in (texts | {CONFIG_FILE: self.settings}).items():
            if text:
                write_file(path_of(directory) / name, text.encode())

    @classmethod
    def load(cls, directory: str | Path) -> Tokenizer:
        """Read the files that `save` wrote.

        Raises:
            DataError: a file is missing or broken; the message starts with it.
        """
        folder = path_of(directory)
        vocabulary, special = (read_document(folder / name) for name in (VOCABULARY_FILE, SPECIAL_FILE))
        files = (folder / TARGET_FILE, folder / CONFIG_FILE)
        target, settings = (read_document(file) if file.is_file() else "" for file in files)
        roles: dict[str, str] = {}
        for role, value in object_of(special, folder / SPECIAL_FILE).items():
            token = value.get("content") if isinstance(value, dict) else value  # an object has options beside it
            if isinstance(token, str):
                roles[role] = check_characters(token, f"{folder / SPECIAL_FILE}: {role}")
        object_of(settings or "{}", folder / CONFIG_FILE)
        loaded = cls(vocabulary, tuple(sorted(roles.items())), target, settings)
        try:
            loaded.backend  # noqa: B018
        except DataError as error:
            raise DataError(f"{directory}/{error}") from None
        return loaded


def object_of(text: str, file: Path) -> dict[str, Any]:
    """Return the JSON object of a file's text."""
    data = parse_json(text, str(file))
    if not isinstance(data, dict):
        raise DataError(f"{file}: not a JSON object")
    return data
