"""Every file that one command takes, all take: evaluate, score and shrink, predict, finetune, and prepare."""

import json

import pyarrow
import pytest
from pyarrow import parquet

import headjax
from headjax.commands.own_data import infer_task
from headjax.evaluation.predictions import read_inputs
from tests import tiny
from tests.data.images import write_folders
from tests.data.squad import SHORT, write_squad
from tests.data.vocabulary import write_lines

COUNT = 40
FILMS = [{"text": f"good film {i}", "label": ("bad", "good")[i % 2]} for i in range(COUNT)]
TAGGED = [{"tokens": ["good", str(i)], "tags": ["O", "B-X"]} for i in range(COUNT)]
RANKED = [{"query": f"film {i // 2}", "text": f"text {i}", "relevance": i % 2} for i in range(COUNT)]
PAIRS = [{"sentence1": f"good {i}", "sentence2": f"bad {i}"} for i in range(COUNT)]
LABELS = {
    "pairs": [one | {"label": ("no", "yes")[i % 2]} for i, one in enumerate(PAIRS)],
    "similarity": [one | {"score": i / 10} for i, one in enumerate(PAIRS)],
    "regression": [{"text": one["text"], "label": i + 0.5} for i, one in enumerate(FILMS)],
    "multi_label": [{"text": one["text"], "labels": ["a", "b"][: i % 3]} for i, one in enumerate(FILMS)],
    "translation": [{"source": f"one {i}", "target": f"eins {i}"} for i in range(COUNT)],
}
YES, FILM = (
    headjax.tasks.Classification(classes=2, names=("no", "yes")),
    headjax.tasks.Classification(classes=2, names=("bad", "good")),
)
OUTPUTS = {
    "classification": FILM,
    "pairs": YES,
    "regression": headjax.tasks.Regression(),
    "multi_label": headjax.tasks.MultiLabel(classes=2, names=("a", "b")),
    "tokens": headjax.tasks.TokenClassification(classes=2, names=("B-X", "O")),
    "questions": headjax.tasks.Span(),
}
"""Outputs of encoders by form."""


def model_of(form, wordpiece):
    """A model for a form, without parameters, which are not read here."""
    sizes = {"attention": tiny.multi_head(), "hidden": 16, "width": 16, "num_layers": 1}
    if form == "images":
        return headjax.Model(headjax.VisionConfig(image_size=8, patch_size=4, task=FILM, **sizes), {})
    if form == "translation":
        return headjax.Model(
            headjax.EncoderDecoderConfig(vocab_size=257, **sizes), {}, tokenizer=headjax.byte_tokenizer()
        )
    if form == "text":
        return headjax.Model(
            headjax.DecoderConfig(vocab_size=257, max_length=64, **sizes), {}, tokenizer=headjax.byte_tokenizer()
        )
    config = headjax.EncoderConfig(
        vocab_size=wordpiece.vocab_size, max_length=256, task=headjax.tasks.NoTask(), **sizes
    )
    bare = headjax.Model(config, {}, tokenizer=wordpiece)
    return bare.replace(config=headjax.with_task(bare, OUTPUTS[form]).config) if form in OUTPUTS else bare


def write(folder, form, kind):
    """A file or folder of a form."""
    path = folder / f"rows.{kind}"
    rows = {"classification": FILMS, "tokens": TAGGED, "retrieval": RANKED, **LABELS}.get(form, [])
    if kind in ("csv", "tsv"):
        mark = "," if kind == "csv" else "\t"
        write_lines(path, *(mark.join(map(str, cells)) for cells in (rows[0], *(row.values() for row in rows))))
    elif kind == "jsonl":
        write_lines(path, *map(json.dumps, rows))
    elif kind == "json" and rows:
        path.write_text(json.dumps(rows))
    elif kind == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif kind == "datasets":
        (path / "train").mkdir(parents=True)
        table = pyarrow.Table.from_pylist(rows)
        with pyarrow.ipc.new_stream(str(path / "train" / "data-00000-of-00001.arrow"), table.schema) as stream:
            stream.write_table(table)
    elif kind == "conll":
        write_lines(path, *(f"good{i} B-X\nfilm O\n" for i in range(COUNT)))
    elif kind == "txt":
        write_lines(path, *(f"A line of {i}.\n" for i in range(20 * COUNT)))
    elif kind == "json":
        write_squad(path, *(SHORT | {"context": f"{SHORT['context']} {i}"} for i in range(COUNT)))
    else:
        write_folders(path)
    return str(path)


CASES = [
    *(("classification", kind) for kind in ("csv", "tsv", "json", "jsonl", "parquet", "datasets")),
    *((form, "tsv") for form in ("pairs", "similarity", "regression", "retrieval", "translation")),
    *(("multi_label", "jsonl"), ("tokens", "conll"), ("tokens", "parquet")),
    *(("questions", "json"), ("text", "txt"), ("images", "folder")),
]


@pytest.mark.parametrize(("form", "kind"), CASES)
def test_every_command_takes_every_file(form, kind, tmp_path, wordpiece):
    path, model = write(tmp_path, form, kind), model_of(form, wordpiece)
    assert headjax.load_task(path, model).data.info["form"] == form
    tuned = infer_task(model, path)
    data = tuned.data.load(model.tokenizer)
    assert (tuned.task, min(len(data.train), len(data.validation)) > 0) == (form, True)
    prepared = headjax.data.DataConfig(task=path).open()
    assert (prepared.spec.name, {*prepared.rows}) == (form, {"train", "validation"})
    inputs = read_inputs(path)  # none for images, which are read by `load_task`
    assert form == "images" if inputs is None else inputs.texts


def test_neither_case_nor_blanks_of_the_names_of_columns_count(tmp_path, wordpiece):
    rows = (f"{row['text']}\t{row['label']}" for row in FILMS)
    path, model = str(write_lines(tmp_path / "rows.tsv", "Text\t Label ", *rows)), model_of("classification", wordpiece)
    assert headjax.load_task(path, model).count() == COUNT
    assert headjax.data.DataConfig(task=path).open().form.label_names == ("bad", "good")
    assert infer_task(model, path).data.load(wordpiece).info["labels"] == ["bad", "good"]
    assert read_inputs(path).given[:2] == ["bad", "good"]


WRONG = [
    *(("questions", "classification", "tsv"), ("squad", "classification", "tsv"), ("mnli", "classification", "tsv")),
    *(("similarity", "classification", "tsv"), ("retrieval", "similarity", "tsv"), ("tokens", "pairs", "tsv")),
    *(("classification", "multi_label", "jsonl"), ("classification", "images", "folder")),
    *(("classification", "questions", "json"), ("pairs", "tokens", "conll"), ("sst2", "pairs", "tsv")),
    *(("pairs", "classification", "csv"), ("multi_label", "tokens", "conll"), ("bert_pretraining", "images", "folder")),
]


@pytest.mark.parametrize(("form", "fits", "kind"), WRONG)
def test_a_file_of_another_form_is_named_with_the_form_that_fits(form, fits, kind, tmp_path, wordpiece):
    path, model = write(tmp_path, fits, kind), model_of("retrieval", wordpiece)
    for read in (
        lambda task: headjax.load_task(task, model),
        lambda task: infer_task(model, task).data.load(wordpiece),
        lambda task: headjax.data.DataConfig(task=task).open(),
        read_inputs,
    ):
        with pytest.raises(headjax.HeadjaxError, match=rf"it looks like {fits}:{path}$"):
            read(f"{form}:{path}")
