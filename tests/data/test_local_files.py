from __future__ import annotations

import gzip
import json

import pytest

from headjax.core.errors import DataError
from headjax.data.local_files import split_files
from headjax.data.tasks import find_task
from tests.data.vocabulary import write_lines


def read(name, *paths):
    """The values of a task's rows by split."""
    spec = find_task(name)
    return {split: [row.values for row in source.rows()] for split, source in spec.local(spec, paths).items()}


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
    with pytest.raises(DataError, match=r"few.tsv: too few rows to hold some out"):
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
