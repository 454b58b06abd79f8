"""BLEU of a model's translations, by sacrebleu, an optional dependency."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from headjax.core.errors import DataError
from headjax.core.progress import Update
from headjax.data.forms.language import Translations
from headjax.data.stream import evaluation_batches
from headjax.models.config import Batch
from headjax.models.generation import beam_search, texts_of, tokenizer_of
from headjax.models.model import Model


class Bleu(NamedTuple):
    """A BLEU score."""

    score: float
    signature: str


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "13a") -> Bleu:
    """Return the BLEU of a corpus with one reference per sentence (Papineni et al. 2002; Post 2018)."""
    try:
        from sacrebleu.metrics import BLEU
    except ImportError:
        raise DataError("bleu: needs sacrebleu: pip install '.[translation]' from a checkout") from None
    metric = BLEU(tokenize=tokenize)
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Bleu(float(score), str(metric.get_signature()))


class Translated(NamedTuple):
    """A model's translations."""

    texts: list[str]
    bleu: Bleu


def translate(
    model: Model,
    pairs: Translations,
    *,
    batch_size: int = 32,
    beams: int = 4,
    max_new_tokens: int = 0,
    progress: Update | None = None,
) -> Translated:
    """Translate every source by beam search and compare with the references.

        >>> from headjax.tokenizers.vocabularies import byte_tokenizer
        >>> run = headjax.train_config(headjax.load_config("configs/small/multi30k.py:width=16,num_layers=1"))
        >>> model = headjax.Model(run.model, tokenizer=byte_tokenizer(), rngs=nnx.Rngs(0))
        >>> (folder / "en-de.en").write_text("a cat"), (folder / "en-de.de").write_text("eine Katze")
        (5, 10)
        >>> pairs = headjax.load_task(f"translation:{folder}/en-de:en-de", model).data.validation
        >>> result = headjax.translate(model, pairs, beams=2, max_new_tokens=4)
        >>> len(result.texts), round(result.bleu.score)
        (1, 0)

    Args:
        model: an encoder-decoder with its tokenizer.
        pairs: sentences with their reference translations.
        batch_size: number of sentences of a batch.
        beams: number of hypotheses kept.
        max_new_tokens: number of tokens of the longest translation; 0 is the length to which the pairs are padded.
        progress: called after every batch with the number of batches done.

    Raises:
        DataError: the model does not generate, or sacrebleu is not installed.
    """

    def sources() -> Iterator[Batch]:
        for batch in evaluation_batches(pairs, batch_size):
            # A last batch is filled up with rows without any token; one makes their softmax well-defined.
            batch["attention_mask"][:, 0] = 1
            yield {name: batch[name] for name in ("input_ids", "attention_mask")}

    translations = best_translations(model, sources(), beams, max_new_tokens or pairs.length, progress)
    texts = translations[: len(pairs)]
    return Translated(texts, corpus_bleu(texts, pairs.references))


def best_translations(
    model: Model, batches: Iterable[Batch], beams: int, max_new_tokens: int, progress: Update | None
) -> list[str]:
    """Return the best translation of every row of batches, by beam search; see `translate`."""
    end = tokenizer_of(model).special_id("eos_token")
    texts: list[str] = []
    for number, batch in enumerate(batches, start=1):
        hypotheses = beam_search(model, batch, beams=beams, max_new_tokens=max_new_tokens, end_token=end)
        tokens, lengths = (np.asarray(array)[:, 0] for array in (hypotheses.tokens, hypotheses.lengths))
        texts += texts_of(model, batch, tokens, lengths, end)
        if progress is not None:
            progress(number, {})
    return texts
