"""Predictions of a model, example by example: classes, numbers, answers, embeddings, translations with their BLEU."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import ColumnsError, DataError, HeadjaxError
from headjax.core.progress import Update
from headjax.data.config import DataConfig
from headjax.data.examples import encode_prompted, encode_sequences, sequences
from headjax.data.files import find_files, text_lines
from headjax.data.forms import ImageForm, QuestionForm, RetrievalForm, TagForm
from headjax.data.forms.form import load_rows
from headjax.data.forms.language import Translations
from headjax.data.forms.questions import usual_stride
from headjax.data.registry import PAIR_COLUMNS
from headjax.data.rows import Row
from headjax.data.source import classes_of, known_columns, resolve
from headjax.data.stream import evaluation_batches
from headjax.data.tables import has_lists, header, is_table, names_of_columns, table_rows
from headjax.evaluation.specs import SQUAD_LENGTH, example_length, load_task
from headjax.evaluation.structured import Spans
from headjax.evaluation.task import Task, measure_of, measure_task
from headjax.models import generation
from headjax.models.config import Batch
from headjax.models.decoder import DecoderConfig
from headjax.models.encoder import EncoderConfig
from headjax.models.encoder_decoder import EncoderDecoderConfig
from headjax.models.generation import tokenizer_of
from headjax.models.model import Model
from headjax.models.new_task import with_task
from headjax.models.tasks import MultiLabel, Regression, SentenceSimilarity, Span, TokenClassification
from headjax.models.tasks.classification import Classification, DistilledClassification
from headjax.models.tasks.similarity import similarity
from headjax.storage.paths import source_of

Prediction = dict[str, Any]

SHOWN_ROWS = 10  # greatest number of examples without text that a warning lists


class Inputs(NamedTuple):
    """Texts to predict for, and further columns of their table by row."""

    texts: Sequence[str]
    second: Sequence[str] = ()
    given: Sequence[str] = ()
    others: Sequence[Mapping[str, str]] = ()
    retrieval: bool = False  # texts are queries, second ones documents
    column: str = ""  # that of the texts in a table

    def first(self, limit: int) -> Inputs:
        columns: Any = {name: getattr(self, name)[: limit or None] for name in ("texts", "second", "given", "others")}
        return self._replace(**columns)


COLUMNS: Mapping[str, tuple[str, ...]] = {
    "text": (*PAIR_COLUMNS["text"], "source", "question", "query"),
    "second": (*PAIR_COLUMNS["second"], "context"),
    "label": (*PAIR_COLUMNS["label"], "target", "answer", "relevance"),
}
"""Names of a table's columns by field: those that tables to evaluate on have, and those of other outputs."""


def read_inputs(spec: str, columns: Mapping[str, str] | None = None) -> Inputs | None:
    """Return texts to predict for, of a table those of the `columns` by field; labels may miss. None for images."""
    source = resolve(spec, labels=False)
    form, path = source.form, source.path
    if isinstance(form, ImageForm):
        return None
    if path == spec and is_table(path) and not isinstance(form, TagForm | QuestionForm):
        inputs = _of_table(path, columns or {})
    elif source.spec.name == "text" and path:
        inputs = Inputs([row.values["text"] for file in find_files(path) for row in text_lines(file)])
    else:
        opened = DataConfig(task=spec, whole=bool(path) and source_of(path).is_file()).open()
        known = [name for name in opened.form.fields if name not in ("id", "start")]
        names = (known[0], known[1] if len(known) > 2 else "", known[-1] if len(known) > 1 else "")
        values = [row.values for row in opened.rows["validation"].rows()]
        texts, second, labels = ([_plain(row[name], name) for row in values if name in row] for name in names)
        inputs = Inputs(texts, second, labels, retrieval=isinstance(opened.form, RetrievalForm))
    if not inputs.texts:
        raise DataError(f"{spec}: there are no texts in it")
    where = f" in the column {inputs.column}" if inputs.column else ""
    blank = [str(number) for number, text in enumerate(inputs.texts, start=1) if not text.strip()]
    if blank:
        rows = ", ".join(blank[:SHOWN_ROWS]) + (f" and {len(blank) - SHOWN_ROWS} more" if blank[SHOWN_ROWS:] else "")
        warnings.warn(f"{spec}: no text{where} in example {rows}, counted from 1", UserWarning, stacklevel=2)
    return inputs


def _of_table(path: str, columns: Mapping[str, str]) -> Inputs:
    names = header(path)
    named = {field: columns[field] for field in COLUMNS if field in columns} or known_columns(names, COLUMNS)
    if "text" not in named:
        message = f"expected a column of texts ({', '.join(COLUMNS['text'])}); it has {', '.join(names[:8])}"
        raise ColumnsError(f"{path}: {message}", names_of_columns(path))
    others = [name for name in names if name not in named.values()]
    lists = ["label"] if "label" in named and has_lists(path, named["label"]) else []
    rows = [row.values for row in table_rows(path, named | {f"column {name}": name for name in others}, lists=lists)]
    texts, second, labels = ([_plain(row[field], field) for row in rows] if field in named else [] for field in COLUMNS)
    kept = [{name: row[f"column {name}"] for name in others} for row in rows] if others else []
    return Inputs(texts, second, labels, kept, named["text"] == "query", named["text"])


def _plain(value: Any, name: str) -> str:
    """Return a value as text: words with spaces between them, of several answers the first."""
    if isinstance(value, tuple):
        return " ".join(value[:1] if name == "answers" else value)
    return str(value)


def predict(
    model: Model,
    inputs: Inputs,
    *,
    length: int = 0,
    batch_size: int = 16,
    beams: int = 4,
    prompt: str | None = None,
    progress: Update | None = None,
) -> list[Prediction]:
    """Return a model's predictions for texts, in their order.

    Every prediction has `text` (and `second`, `given` and the other columns of a table where the inputs have them, as
    `table.NAME` where the name is taken), and by the model's output

    * of a classifier `label`, its `probability`, and the `probabilities` of all classes by name;
    * of a regression `number`;
    * of a multi-label classifier `labels`, those with a probability above a half, and the `probabilities` of all;
    * of a classifier of tokens `tokens`, pairs of a token and its label;
    * of a span the `answer` to the question `text` in the context `second`, and its `score`, the sum of two logits;
    * of an encoder-decoder the `translation`, by beam search with `beams`;
    * of any other model the `embedding`, pooled as the model's task says (`SentenceSimilarity`), else the mean of the
      last layer's hidden states over the text's tokens (special tokens included); for pairs the `similarity` of both.

    `prompt` is the name of the prompt before sentences that are embedded, empty for none; None is the model's usual
    one, or in retrieval those of queries and documents.
    """
    config, output = model.config, getattr(model.config, "task", None)
    if isinstance(config, EncoderDecoderConfig):
        predictions = _translated(model, inputs.texts, example_length(model, length), beams, batch_size, progress)
    elif not isinstance(config, EncoderConfig | DecoderConfig) or output is None:
        raise HeadjaxError("predict: it needs an encoder or a model with a task; headjax generate continues texts")
    elif isinstance(output, Span):
        predictions = _answered(model, inputs, example_length(model, length, SQUAD_LENGTH), batch_size)
    elif isinstance(output, Classification | MultiLabel | Regression | TokenClassification):
        predictions = _headed(model, inputs, example_length(model, length), batch_size, progress)
    else:
        task = output if isinstance(output, SentenceSimilarity) else SentenceSimilarity()
        model = model if task is output else with_task(model, task)
        prompts = task.pair_prompts(retrieval=inputs.retrieval) if prompt is None else [task.prompt(prompt)] * 2
        reading: dict[str, Any] = {"max_length": example_length(model, length), "pooled": task.include_prompt}
        sides = zip((inputs.texts, inputs.second), prompts, strict=True)
        first, second = (_embedded(model, texts, side, batch_size, **reading) for texts, side in sides)
        if len(second):
            predictions = [{"similarity": value} for value in similarity(task.similarity, first, second).tolist()]
        else:
            predictions = [{"embedding": vector} for vector in first.tolist()]
    shown = {"text": inputs.texts, "second": inputs.second, "given": inputs.given}
    known = {name: column for name, column in shown.items() if column}
    others = inputs.others or [{}] * len(predictions)

    def joined(i: int, prediction: Prediction) -> Prediction:
        row = {**{name: column[i] for name, column in known.items()}, **prediction}
        beside = {f"table.{name}" if name in row else name: cell for name, cell in others[i].items()}
        return {name: row[name] for name in known} | beside | prediction

    return [joined(i, prediction) for i, prediction in enumerate(predictions)]


def predict_images(
    model: Model, spec: str, *, length: int = 0, limit: int = 0, batch_size: int = 16
) -> list[Prediction]:
    """Return the classes of a task's images: the fields of `predict`, with the image's number as `example`."""
    task = load_task(spec, model, length, split="all")
    if not isinstance(getattr(model.config, "task", None), Classification | DistilledClassification):
        raise HeadjaxError(f"predict: {spec} is neither texts, images nor questions")
    names = classes_of(model)
    predictions: list[Prediction] = []
    for batch in task.batches(batch_size, limit=limit):
        labels = [names[label] if 0 <= label < len(names) else "" for label in batch["labels"]]
        chances = np.asarray(jax.nn.softmax(model(batch).require_logits()))
        predictions += [
            {"example": number, "given": label, **_class(row, names)}
            for number, (label, row) in enumerate(zip(labels, chances, strict=True), start=len(predictions))
        ]
    return predictions[: task.count(limit)]


def _batches(
    model: Model, columns: Mapping[str, Sequence[np.ndarray]], max_length: int, batch_size: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yield batches of encoded texts without labels; a last batch is filled up with empty rows."""
    source = sequences(columns, {}, tokenizer_of(model).padding_id, max_length)
    for batch in evaluation_batches(source, min(batch_size, len(source))) if len(source) else ():
        yield {name: array for name, array in batch.items() if name != "labels"}


def _headed(model: Model, inputs: Inputs, length: int, batch_size: int, progress: Update | None) -> list[Prediction]:
    output, names, tokenizer = getattr(model.config, "task", None), classes_of(model), tokenizer_of(model)
    predictions: list[Prediction] = []
    columns = encode_sequences(tokenizer, inputs.texts, inputs.second or None, max_length=length)
    for number, batch in enumerate(_batches(model, columns, length, batch_size), start=1):
        logits = model(batch).require_logits().astype(jnp.float32)
        if isinstance(output, Regression):
            predictions += [{"number": row[0] if len(row) == 1 else row} for row in np.asarray(logits).tolist()]
        elif isinstance(output, TokenClassification):
            best, backend = np.asarray(jnp.argmax(logits, axis=-1)), tokenizer.backend
            for ids, present, classes in zip(batch["input_ids"], batch["attention_mask"], best, strict=True):
                some = np.flatnonzero(present)
                predictions.append({"tokens": [[backend.id_to_token(int(ids[t])), names[classes[t]]] for t in some]})
        elif isinstance(output, MultiLabel):
            for row in np.asarray(jax.nn.sigmoid(logits)).tolist():
                chances = dict(zip(names, row, strict=True))
                likely = [name for name in names if chances[name] > 0.5]
                predictions.append({"labels": likely, "probabilities": chances})
        else:
            predictions += [_class(row, names) for row in np.asarray(jax.nn.softmax(logits))]
        if progress is not None:
            progress(number, {})
    return predictions[: len(inputs.texts)]


def _class(probabilities: np.ndarray, names: Sequence[str]) -> Prediction:
    best = int(np.argmax(probabilities))
    by_name = {name: float(probability) for name, probability in zip(names, probabilities, strict=True)}
    return {"label": names[best], "probability": float(probabilities[best]), "probabilities": by_name}


def _embedded(
    model: Model, texts: Sequence[str], prompt: str, batch_size: int, *, max_length: int, pooled: bool
) -> jax.Array:
    """Return the sentence vector of every text behind a prompt, `[texts, size]`."""
    columns = encode_prompted(tokenizer_of(model), texts, prompt, max_length=max_length, pooled=pooled)
    batches = _batches(model, columns, max_length, batch_size)
    vectors = [np.asarray(model(batch).require_embeddings()[:, 0]) for batch in batches]
    return jnp.asarray(np.concatenate(vectors or [np.zeros((0, 0))])[: len(texts)])


def _translated(
    model: Model, texts: Sequence[str], max_length: int, beams: int, batch_size: int, progress: Update | None
) -> list[Prediction]:
    size = min(batch_size, len(texts))
    encoded = generation.prompt_batch(model, texts, max_length=max_length)
    config, first = generation.check_generative(model.config, 1), {name: array[:1] for name, array in encoded.items()}
    model = model.unstacked()
    beams, most = max(beams, 1), generation.new_tokens(config, first)
    generation.check_room("beams", model, first, size * beams, most)
    chosen = [[min(row, len(texts) - 1) for row in range(start, start + size)] for start in range(0, len(texts), size)]
    batches = ({name: array[rows] for name, array in encoded.items()} for rows in chosen)
    translations = best_translations(model, batches, beams, most, progress)[: len(texts)]
    return [{"translation": text} for text in translations]


def _answered(model: Model, inputs: Inputs, length: int, batch_size: int) -> list[Prediction]:
    """Return the best spans of the contexts; the questions need no right answers."""
    if not inputs.second:
        raise DataError("predict: the model answers questions; give a table with the columns question and context")
    usual = {"answers": ("",), "start": 0}
    rows = [
        Row(f"question {number}", {"id": str(number), "question": question, "context": context, **usual})
        for number, (question, context) in enumerate(zip(inputs.texts, inputs.second, strict=True))
    ]
    form = QuestionForm(length=length, stride=usual_stride(length))
    data = load_rows(form, {"validation": rows}, tokenizer_of(model), {})
    measure = cast(Spans, measure_of(data))
    size = min(batch_size, len(data.validation))
    outcomes = measure_task(model, Task("predict", data, measure), batch_size=size).outcomes
    return [{"answer": answer.text, "score": answer.score} for answer in measure.answers(outcomes).values()]


class Bleu(NamedTuple):
    """A BLEU score."""

    score: float
    signature: str


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Bleu:
    """Return the BLEU of a corpus with one reference per sentence (Papineni et al. 2002; Post 2018)."""
    try:
        from sacrebleu.metrics import BLEU
    except ImportError:
        raise DataError("bleu: needs sacrebleu: pip install 'headjax[translation]'") from None
    metric = BLEU(tokenize="13a")
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

    texts = best_translations(model, sources(), beams, max_new_tokens or pairs.length, progress)[: len(pairs)]
    return Translated(texts, corpus_bleu(texts, pairs.references))


def best_translations(
    model: Model, batches: Iterable[Batch], beams: int, max_new_tokens: int, progress: Update | None
) -> list[str]:
    """Return the best translation of every row of batches, by beam search; see `translate`."""
    end = tokenizer_of(model).special_id("eos_token")
    texts: list[str] = []
    for number, batch in enumerate(batches, start=1):
        hypotheses = generation.beam_search(model, batch, beams=beams, max_new_tokens=max_new_tokens, end_token=end)
        tokens, lengths = (np.asarray(array)[:, 0] for array in (hypotheses.tokens, hypotheses.lengths))
        texts += generation.texts_of(model, batch, tokens, lengths, end)
        if progress is not None:
            progress(number, {})
    return texts
