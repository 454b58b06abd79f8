"""BLEU of a model's translations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headjax.core.progress import Update
from headjax.data.forms.translation import Translations
from headjax.data.stream import evaluation_batches
from headjax.evaluation.bleu import Bleu, corpus_bleu
from headjax.models.beam import beam_search
from headjax.models.compute import Compute
from headjax.models.config import Gates
from headjax.models.model import Model
from headjax.tokenizers.tokenizer import Tokenizer


class Translated(NamedTuple):
    """A model's translations.

    Attributes:
        texts: one per sentence.
        bleu: their BLEU.
    """

    texts: list[str]
    bleu: Bleu


def translate(
    model: Model,
    pairs: Translations,
    *,
    batch_size: int = 32,
    beams: int = 4,
    max_new_tokens: int = 0,
    tokenize: str = "13a",
    gates: Gates | None = None,
    compute: Compute = Compute(),
    progress: Update | None = None,
) -> Translated:
    """Translates every source by beam search and compares with the references.

    Args:
        model: an encoder-decoder with its tokenizer.
        pairs: what to translate.
        batch_size: sentences of one batch.
        beams: hypotheses kept.
        max_new_tokens: longest translation; 0 is the length that the pairs are padded to.
        tokenize: sacrebleu's tokenisation.
        gates: head gates.
        compute: how to compute.
        progress: called after every batch with the number of batches done.

    Raises:
        DataError: the model does not generate, or sacrebleu is not installed.
    """
    tokenizer: Tokenizer = model.tokenizer
    end = tokenizer.special_id("eos_token")
    texts: list[str] = []
    for number, batch in enumerate(evaluation_batches(pairs, batch_size), start=1):
        source = {name: batch[name] for name in ("input_ids", "attention_mask")}
        # A last batch is filled up with rows without any token; one makes their softmax well-defined.
        source["attention_mask"][:, 0] = 1
        found = beam_search(
            model,
            source,
            beams=beams,
            max_new_tokens=max_new_tokens or pairs.length,
            end_token=end,
            gates=gates,
            compute=compute,
        )
        texts += [_text(tokenizer, ids, end) for ids in np.asarray(found.tokens)[:, 0]]
        if progress is not None:
            progress(number, {})
    texts = texts[: len(pairs)]
    return Translated(texts, corpus_bleu(texts, pairs.references, tokenize=tokenize))


def _text(tokenizer: Tokenizer, ids: np.ndarray, end: int) -> str:
    ends = np.flatnonzero(ids == end)
    return tokenizer.decode(ids[: ends[0]] if ends.size else ids).strip()
