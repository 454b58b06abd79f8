"""The tasks of text as seqio reads them for text-to-text models (Raffel et al. 2020). Imports TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from headjax.core.errors import DataError
from headjax.data.forms.labelled import LabelledForm
from headjax.data.forms.language import LanguageForm
from headjax.data.forms.questions import QuestionForm
from headjax.data.forms.translation import TranslationForm
from headjax.data.tasks.spec import TaskSpec
from headjax.tokenizers.tokenizer import Tokenizer

Row = Mapping[str, tf.Tensor]


class TokenizerVocabulary(seqio.Vocabulary):
    """A tokenizer as a vocabulary of seqio's, which pads with 0 whatever token that is.

    Args:
        tokenizer: with an end token.

    Raises:
        DataError: it has none.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self._end = tokenizer.special_id("eos_token")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenizerVocabulary) and other.tokenizer == self.tokenizer

    def __hash__(self) -> int:
        return hash(self.tokenizer)

    @property
    def eos_id(self) -> int:
        """The end token's id."""
        return self._end

    @property
    def unk_id(self) -> int | None:
        """The id of unknown text; None where every text has tokens."""
        return self.tokenizer.special_id("unk_token") if "unk_token" in dict(self.tokenizer.special) else None

    @property
    def _base_vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    def _encode(self, s: str) -> list[int]:
        found: list[int] = self.tokenizer.encode([s])[0].tolist()
        return found

    def _decode(self, ids: Iterable[int]) -> str:
        return self.tokenizer.decode([number for number in ids if number != self._end])

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        ids = tf.numpy_function(lambda text: np.asarray(self._encode(text.decode()), np.int32), [s], tf.int32)
        ids.set_shape([None])
        return ids

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        rows = tf.reshape(ids, [-1, tf.shape(ids)[-1]])
        texts = tf.map_fn(
            lambda row: tf.numpy_function(self.decode, [row], tf.string), rows, fn_output_signature=tf.string
        )
        return tf.reshape(texts, tf.shape(ids)[:-1])


def text_features(spec: TaskSpec, tokenizer: Tokenizer) -> dict[str, seqio.Feature]:
    """`inputs` and `targets`, or only `targets` of a language model, ended by the end token.

    Raises:
        DataError: the task is none of text to text, or the tokenizer has no end token.
    """
    names = ("targets",) if isinstance(spec.form, LanguageForm) else ("inputs", "targets")
    text_writer(spec)
    vocabulary = TokenizerVocabulary(tokenizer)
    return {name: seqio.Feature(vocabulary, add_eos=True, dtype=tf.int32) for name in names}


def text_preprocessors(spec: TaskSpec) -> list[Callable[..., Any]]:
    """From a task's fields to token ids: written as T5 has them, tokenised, cut to the length, ended."""
    write = text_writer(spec)
    return [
        lambda dataset: dataset.map(write, num_parallel_calls=tf.data.AUTOTUNE),
        functools.partial(seqio.preprocessors.tokenize, copy_pretokenized=False),
        seqio.preprocessors.append_eos_after_trim,
    ]


def text_writer(spec: TaskSpec) -> Callable[[Row], dict[str, tf.Tensor]]:
    """What writes a row as text: `sst2 sentence1: a film` and `positive`.

    Raises:
        DataError: the task is none of text to text.
    """
    form, name = spec.form, spec.name
    if isinstance(form, LanguageForm):
        return lambda row: {"targets": row["text"]}
    if isinstance(form, TranslationForm):
        return lambda row: {"inputs": row["source"], "targets": row["target"]}
    if isinstance(form, QuestionForm):
        return lambda row: {
            "inputs": tf.strings.join(["question: ", row["question"], " context: ", row["context"]]),
            "targets": row["answers"][0],
        }
    if isinstance(form, LabelledForm):
        return functools.partial(_labelled, name, form.classes, ("sentence1", "sentence2")[: 1 + form.pairs])
    raise DataError(f"{name}: not a task of text to text")


def _labelled(name: str, classes: Sequence[str], words: Sequence[str], row: Row) -> dict[str, tf.Tensor]:
    """A class by its name, a number rounded to one in five."""
    texts = [row["text"], row["second"]] if len(words) == 2 else [row["text"]]
    parts = [part for word, text in zip(words, texts, strict=True) for part in (f" {word}: ", text)]
    if classes:
        answer = tf.gather(tf.constant(list(classes)), row["label"])
    else:
        answer = tf.strings.as_string(tf.round(row["label"] * 5.0) / 5.0, precision=1)
    return {"inputs": tf.strings.join([name, *parts]), "targets": answer}
