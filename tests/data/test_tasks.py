"""Tasks over local files of every format, without TensorFlow."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from headjax.core.errors import DataError
from headjax.core.serialize import from_data, to_data
from headjax.data.task_spec import split_files
from headjax.data.tasks import TASKS, find_task
from tests.data.vocabulary import write_lines


def read(name, *paths):
    """The values of a task's rows by split."""
    spec = find_task(name)
    return {split: [row.values for row in source.rows()] for split, source in spec.local(spec, paths).items()}


def counts(name, *paths):
    spec = find_task(name)
    return {split: sum(1 for _ in source.rows()) for split, source in spec.local(spec, paths).items()}


def test_every_task_has_a_form_that_a_manifest_keeps():
    for name, spec in TASKS.items():
        assert spec.name == name
        assert from_data(type(spec.form), to_data(spec.form)) == spec.form
        assert (spec.vocabulary == "none") is not spec.form.reads_text
        assert (spec.vocab_size > 0) is (spec.vocabulary == "bpe")


def test_the_documentation_lists_every_task():
    lines = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8").split("\n")
    listed = {line.split("`")[1]: line for line in lines if line.startswith("| `")}
    for name, spec in TASKS.items():
        splits = [f"`{one.name}` ({one.splits.get('train', '-')} / {one.splits['validation']})" for one in spec.sources]
        assert ("; ".join(splits) or "none") in listed[name]
        assert spec.files in listed[name]


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".json", ".jsonl", ".tsv.gz"])
def test_tables_of_every_format(suffix, tmp_path):
    rows = [{"text": f"a film {i}", "label": ("negative", 1)[i % 2]} for i in range(3)]
    for split, some in (("train", rows), ("valid", rows[:1])):
        file = tmp_path / f"{split}{suffix}"
        if suffix.startswith(".json"):
            entries = [json.dumps(row) for row in some]
            file.write_text("[" + ",".join(entries) + "]" if suffix == ".json" else "\n".join(entries))
            continue
        between = "," if suffix == ".csv" else "\t"
        lines = [between.join(("text", "label")), *(between.join(map(str, row.values())) for row in some)]
        data = ("\n".join(lines) + "\n").encode()
        file.write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
    assert read("sst2", tmp_path) == {"train": rows, "validation": rows[:1]}


def test_columns_may_have_the_names_of_the_data_set(tmp_path):
    pairs = write_lines(
        tmp_path / "pairs.tsv",
        "index\tpremise\thypothesis\tgold_label",
        *(f"{i}\tpremise {i}\tso\tneutral" for i in range(99)),
    )
    found = read("mnli", pairs)
    assert found["train"][0].keys() == {"text", "second", "label"}
    assert sum(map(len, found.values())) == 99
    assert {row["second"] for row in found["train"]} == {"so"}
    films = write_lines(tmp_path / "films.csv", "label,sentence,text", *(f"1,other,film {i}" for i in range(99)))
    assert read("sst2", films)["train"][0]["text"].startswith("film")  # the field's own name comes first
    table = write_lines(tmp_path / "pairs.csv", "de,en", "Hund,dog")
    assert read("newstest2014_ende", table) == {"validation": [{"source": "dog", "target": "Hund"}]}


def test_test_files_are_not_trained_on(tmp_path):
    for name in ("valid", "test"):
        write_lines(tmp_path / f"{name}.de", f"{name} eins")
        write_lines(tmp_path / f"{name}.en", f"{name} one")
    assert read("iwslt14_deen", tmp_path) == {"validation": [{"source": "valid eins", "target": "valid one"}]}
    assert len(read("newstest2014_ende", tmp_path / "test")["validation"]) == 1
    assert [file.name for file in split_files([tmp_path / "test.de"], (".de",))["train"]] == ["test.de"]


def test_one_file_is_split_by_its_text(tmp_path):
    file = write_lines(tmp_path / "dev.tsv", "text\tlabel", *(f"film {i}\t{i % 2}" for i in range(200)))
    found = read("sst2", file)
    assert 2 <= len(found["validation"]) <= 25
    assert len(found["train"]) + len(found["validation"]) == 200
    assert not {row["text"] for row in found["train"]} & {row["text"] for row in found["validation"]}
    few = write_lines(tmp_path / "few.tsv", "text\tlabel", "film\t1")
    with pytest.raises(DataError, match=r"few.tsv: 1 rows are too few to hold some out; name a file for validation"):
        read("sst2", few)


def test_files_by_the_words_of_their_names(tmp_path):
    names = ["train-00000.txt", "x.valid.txt", "other.txt", "dev/a.txt", "devil.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_lines(tmp_path / name, "text")
    found = split_files([tmp_path], (".txt",))
    assert [file.name for file in found["train"]] == ["train-00000.txt"]
    assert [file.name for file in found["validation"]] == ["a.txt", "x.valid.txt"]
    (tmp_path / "train-00000.txt").unlink()
    assert [file.name for file in split_files([tmp_path], (".txt",))["train"]] == ["devil.txt", "other.txt"]


def test_books_lose_their_licence_and_articles_are_documents(tmp_path):
    book = write_lines(
        tmp_path / "train_book.txt",
        "Legal words",
        "*** START OF THIS PROJECT GUTENBERG EBOOK A BOOK ***",
        "The story.",
        "*** END OF THIS PROJECT GUTENBERG EBOOK A BOOK ***",
        "More legal words",
    )
    articles = tmp_path / "wiki.valid.raw"
    articles.write_text(" \n = One = \n \n Text . \n \n = = Part = = \n \n More . \n \n = Two = \n \n Other . \n")
    found = read("text", tmp_path)
    assert [row["text"].strip() for row in found["train"]] == ["The story."]
    assert [row["text"].split()[1] for row in found["validation"]] == ["One", "Two"]
    assert "Part" in found["validation"][0]["text"]
    assert book.exists()


def test_lines_are_sentences(tmp_path):
    write_lines(tmp_path / "train.txt", "One .", "", " Two . ")
    write_lines(tmp_path / "dev.txt", "Three .")
    expected = {"train": [{"text": "One ."}, {"text": "Two ."}], "validation": [{"text": "Three ."}]}
    assert read("lm1b", tmp_path) == expected


def test_translations(tmp_path):
    write_lines(tmp_path / "train.en", "a dog", "", "a cat")
    write_lines(tmp_path / "train.de", "ein Hund", "leer", "eine Katze")
    write_lines(tmp_path / "val.en", "one")
    write_lines(tmp_path / "val.de", "eins")
    found = read("multi30k", tmp_path)
    assert found["train"] == [{"source": "a dog", "target": "ein Hund"}, {"source": "a cat", "target": "eine Katze"}]
    assert read("newstest2013_ende", tmp_path / "val") == {"validation": found["validation"]}
    table = write_lines(tmp_path / "pairs.tsv", "source\ttarget", "x\ty")
    assert read("newstest2014_ende", table) == {"validation": [{"source": "x", "target": "y"}]}
    write_lines(tmp_path / "val.de", "eins", "zwei")
    with pytest.raises(DataError, match=r"val.de: 2 lines, but val.en has 1"):
        read("multi30k", tmp_path)


def test_questions_by_the_words_of_their_names(tmp_path):
    for name in ("more", "dev-v1.1", "train-v1.1"):
        asked = {"id": name, "question": "q", "answers": [{"text": "a", "answer_start": 0}]}
        (tmp_path / f"{name}.json").write_text(
            json.dumps({"data": [{"paragraphs": [{"context": "a b", "qas": [asked]}]}]})
        )

    def ids(*names):
        found = read("squad", *(tmp_path / f"{name}.json" for name in names))
        return {split: [row["id"] for row in rows] for split, rows in found.items()}

    assert ids("more", "dev-v1.1") == {"train": ["more"], "validation": ["dev-v1.1"]}
    assert ids("train-v1.1", "more", "dev-v1.1") == {"train": ["train-v1.1"], "validation": ["dev-v1.1"]}
    assert ids("dev-v1.1") == {"validation": ["dev-v1.1"]}
    with pytest.raises(DataError, match=r"train-v1.1.json: no file to evaluate on"):
        ids("train-v1.1")


def test_real_files(data_dir):
    """Whole published files: counts as their manifest has them."""
    glue = data_dir / "glue"
    assert counts("sst2", glue / "SST-2") == {"train": 60_614, "validation": 872}
    assert counts("cola", glue / "CoLA") == {"train": 8551, "validation": 527 + 516}
    assert counts("stsb", glue / "STS-B") == {"train": 5749, "validation": 1500}
    assert counts("rte", glue / "RTE") == {"train": 2490, "validation": 277}
    assert counts("iwslt14_deen", data_dir / "mt" / "iwslt14" / "valid")["train"] > 6_500
    assert counts("newstest2013_ende", data_dir / "mt" / "newstest") == {"validation": 3000}
    assert counts("squad", data_dir / "squad" / "dev-v1.1.from-explorer.json") == {"validation": 10_570}
    found = counts("lm1b", data_dir / "lm" / "lm1b_heldout.dev.tokens")
    assert sum(found.values()) == 12_216


def test_no_such_task():
    with pytest.raises(DataError, match="unknown task 'lm1'; did you mean 'lm1b'"):
        find_task("lm1")
