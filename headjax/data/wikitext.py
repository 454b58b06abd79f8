"""WikiText-2 (Merity et al. 2016) by one fixed protocol."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import numpy as np

from headjax.core.class_names import IGNORED
from headjax.core.errors import DataError, require
from headjax.core.fields import Checked, Count, Size
from headjax.data.examples import Source
from headjax.data.files import packed_or_plain, search
from headjax.data.forms.form import language_measure, text_counts
from headjax.data.forms.language import LanguageForm
from headjax.data.loading import data_hash, totals
from headjax.data.registry import WIKITEXT_FOLDERS
from headjax.data.rows import fingerprint
from headjax.data.task import TaskData
from headjax.data.text_rows import articles
from headjax.storage.files import read_lines
from headjax.storage.hub import source_of
from headjax.tokenizers.tokenizer import Tokenizer

CONTEXT = 1024
"""Default number of tokens of a window; models with fewer positions take as many as they have."""

FILES = {"train": "wiki.train.raw", "validation": "wiki.valid.raw", "test": "wiki.test.raw"}
"""Files by split; each may also be packed (`.gz`)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WikiText2(Checked):
    """WikiText-2 (Merity et al. 2016) by one fixed protocol, so that perplexities compare between models and tools.

    The raw file is encoded whole, after one `bos_token` (else `eos_token`, else nothing). Windows of `context` tokens
    start every `stride` tokens, predict the tokens that those before have not, and the last ends with the text. Losses
    are summed over the text and divided by its tokens, words (white space separates them) and bytes of UTF-8. The
    stride context - 1 is the rolling log-likelihood of lm-evaluation-harness with a `max_length` of context - 1.

    Attributes:
        path: folder of the files; empty looks for it under HEADJAX_DATA.
        context: number of tokens of a window.
        stride: number of tokens between the starts of windows; 0 is context - 1.
        split: the split to evaluate on. The examples to choose heads and to calibrate on are the training split's.
    """

    path: str = ""
    context: Size = CONTEXT
    stride: Count = 0
    split: Literal["validation", "test"] = "validation"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.context >= 2, "context", f"must be at least 2 (a token and its successor), got {self.context}")
        fits = self.stride < self.context
        asks = f"must be below the context of {self.context}, so that every token is predicted, got {self.stride}"
        require(fits, "stride", asks)

    def load(self, tokenizer: Tokenizer, trains: bool = True) -> TaskData:
        """Read and encode the files; the training split becomes blocks of tokens, each article ended."""
        held = self._file(self.split)
        text = "".join(read_lines(held))
        role = next((role for role in ("bos_token", "eos_token") if role in dict(tokenizer.special)), None)
        begin = [] if role is None else [tokenizer.special_id(role)]
        tokens = np.concatenate([np.asarray(begin, np.int32), tokenizer.encode([text])[0]])
        windows = Windows(tokens, min(self.context, len(tokens)), self.stride or self.context - 1)
        counts = totals([(len(windows), text_counts([text], len(tokens) - 1))])
        protocol = {
            "text": held.name,
            "split": self.split,
            "context": self.context,
            "stride": windows.stride,
            "begins_with": "nothing" if role is None else dict(tokenizer.special)[role],
            **{name: counts[name] for name in ("tokens", "words", "bytes")},
        }
        info: dict[str, Any] = {"text": str(held), "protocol": protocol, "validation": counts}
        train: Source = ()
        if trains:
            form = LanguageForm(length=self.context)
            form.check(tokenizer)
            rows = [*articles(self._file("train"))]
            train, known = form.encode(tokenizer, rows, "train", (0,))
            data = data_hash(form, tokenizer, 0, fingerprint(rows))
            info |= {"train": totals([(len(train), known)]), "data": data}
        return TaskData(tokenizer, train, windows, info, language_measure(counts))

    def _file(self, split: str) -> Path:
        name = FILES[split]
        wanted = f"{name} or {name}.gz"
        if not self.path:
            return search("wikitext2", WIKITEXT_FOLDERS, lambda folder: packed_or_plain(folder / name), wanted)
        file = packed_or_plain(source_of(self.path) / name)
        if file is None:
            raise DataError(f"{self.path}: not a folder of wikitext2: expected {wanted}")
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
