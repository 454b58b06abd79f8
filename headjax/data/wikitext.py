"""WikiText-2 (Merity et al. 2016) by one fixed protocol."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from headjax.core.class_names import IGNORED
from headjax.core.errors import DataError, require
from headjax.core.fields import parse_arguments
from headjax.data.examples import Source
from headjax.data.files import packed_or_plain, search
from headjax.data.forms.form import language_measure, text_counts
from headjax.data.forms.language import LanguageForm
from headjax.data.registry import WIKITEXT_FOLDERS
from headjax.data.rows import fingerprint
from headjax.data.store import data_hash, totals
from headjax.data.task import TaskData
from headjax.data.text_rows import articles
from headjax.storage.files import read_lines
from headjax.storage.hub import source_of
from headjax.tokenizers.tokenizer import Tokenizer

CONTEXT = 1024
"""Default number of tokens of a window; models with fewer positions take as many as they have."""


def protocol(path: str) -> tuple[str, SimpleNamespace]:
    """Return the folder and the arguments of `wikitext2:FOLDER,context=1024,stride=512,split=test`; 0 if not given."""
    parts = path.split(",")
    folder = "" if "=" in parts[0] else parts[0]
    words = ",".join(parts[bool(folder) :])
    return folder, parse_arguments(words, "wikitext2", context=0, stride=0, split="validation")


def load_wikitext2(path: str, tokenizer: Tokenizer, length: int = CONTEXT, *, trains: bool = True) -> TaskData:
    """Read WikiText-2 by one fixed protocol, so that perplexities compare between models and tools.

    The raw file is encoded whole, after one `bos_token` (else `eos_token`, else nothing). Windows of `context` tokens
    start every `stride` tokens (context - 1 if not given), predict the tokens that those before have not, and the last
    ends with the text. Losses are summed over the text and divided by its tokens, words (white space separates them)
    and bytes of UTF-8. The usual stride is the rolling log-likelihood of lm-evaluation-harness with a `max_length` of
    context - 1. The training split becomes blocks of `length` tokens, each article ended.
    """
    folder, asked = protocol(path)
    context = asked.context or length
    require(context >= 2, "context", f"must be at least 2 (a token and its successor), got {context}")
    asks = f"must be below the context of {context}, so that every token is predicted, got {asked.stride}"
    require(0 <= asked.stride < context, "stride", asks)
    require(asked.split in ("validation", "test"), "split", f"must be validation or test, got {asked.split!r}")
    held = _file(folder, asked.split)
    text = "".join(read_lines(held))
    role = next((role for role in ("bos_token", "eos_token") if role in dict(tokenizer.special)), None)
    begin = [] if role is None else [tokenizer.special_id(role)]
    tokens = np.concatenate([np.asarray(begin, np.int32), tokenizer.encode([text])[0]])
    windows = Windows(tokens, min(context, len(tokens)), asked.stride or context - 1)
    counts = totals([(len(windows), text_counts([text], len(tokens) - 1))])
    stated = {
        "text": held.name,
        "split": asked.split,
        "context": context,
        "stride": windows.stride,
        "begins_with": "nothing" if role is None else dict(tokenizer.special)[role],
        **{name: counts[name] for name in ("tokens", "words", "bytes")},
    }
    info: dict[str, Any] = {"text": str(held), "protocol": stated, "validation": counts}
    train: Source = ()
    if trains:
        form = LanguageForm(length=context)
        form.check(tokenizer)
        rows = [*articles(_file(folder, "train"))]
        train, known = form.encode(tokenizer, rows, "train", (0,))
        data = data_hash(form, tokenizer, 0, fingerprint(rows))
        info |= {"train": totals([(len(train), known)]), "data": data}
    return TaskData(tokenizer, train, windows, info, language_measure(counts))


def _file(folder: str, split: str) -> Path:
    name = f"wiki.{'valid' if split == 'validation' else split}.raw"
    wanted = f"{name} or {name}.gz"
    if not folder:
        return search("wikitext2", WIKITEXT_FOLDERS, lambda place: packed_or_plain(place / name), wanted)
    file = packed_or_plain(source_of(folder) / name)
    if file is None:
        raise DataError(f"{folder}: not a folder of wikitext2: expected {wanted}")
    return file


@dataclasses.dataclass(frozen=True)
class Windows:
    """Overlapping windows of a text, in which every token but the first is predicted once."""

    tokens: np.ndarray
    context: int
    stride: int

    def __len__(self) -> int:
        return 1 + -(-(len(self.tokens) - self.context) // self.stride)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """Return a window: its `input_ids`, and `labels`, which are -100 at tokens that earlier windows predict."""
        start = min(index * self.stride, len(self.tokens) - self.context)
        ids = self.tokens[start : start + self.context]
        predicted = 0 if index == 0 else self.context + (index - 1) * self.stride
        fresh = np.arange(start, start + self.context) >= predicted
        return {"input_ids": ids, "labels": np.where(fresh, ids, np.int32(IGNORED))}
