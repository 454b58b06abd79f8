"""Data sets and models on the Hub, whose client is replaced by one that has a few files."""

import fnmatch
import gzip
import re

import pytest

import headjax
from headjax.data.files import find_files
from headjax.hub.either import read_model
from headjax.hub.importing import DEMO
from headjax.storage.paths import source_of

FILES = {
    "README.md": b"A data set of films.\n",
    "data/train-00000.jsonl": b"".join(b'{"text": "film %d", "label": %d}\n' % (i, i % 2) for i in range(8)),
    "data/train-00001.jsonl.gz": gzip.compress(b'{"text": "the last film", "label": 1}\n'),
    "data/validation.tsv": b"text\tlabel\na dull film\t0\n",
    "deep/er/notes.txt": b"A line.\nAnother line.\n",
}
MODEL = {file.name: file.read_bytes() for file in DEMO.iterdir() if file.is_file()} | {"pytorch_model.bin": b"pickle"}


@pytest.fixture
def films(tmp_path, monkeypatch):
    """The address of a data set, by a user's name that no other test has: places of addresses are remembered."""
    user = tmp_path.name

    def download(name, *, repo_type, revision, allow_patterns, endpoint):
        stored = {(f"{user}/films", "dataset"): FILES, (f"{user}/heads", "model"): MODEL}
        if (name, repo_type) not in stored or revision not in (None, "refs/convert/parquet"):
            raise RuntimeError("no such repository or revision")
        folder = tmp_path / (revision or "main").replace("/", "-")
        for file, data in stored[name, repo_type].items():
            if allow_patterns is None or any(fnmatch.fnmatchcase(file, pattern) for pattern in allow_patterns):
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                (folder / file).write_bytes(data)
        folder.mkdir(exist_ok=True)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return f"hf://datasets/{user}/films"


def test_files_are_found_and_those_alone_are_downloaded(films, tmp_path):
    def inside(path):
        return [str(file.relative_to(tmp_path / "main")) for file in find_files(path)]

    assert inside(f"{films}/deep") == ["deep/er/notes.txt"]
    assert [path.name for path in (tmp_path / "main").iterdir()] == ["deep"]
    assert inside(f"{films}/deep/**/*.txt") == ["deep/er/notes.txt"]
    assert inside(f"{films}/data/train-*") == ["data/train-00000.jsonl", "data/train-00001.jsonl.gz"]
    assert inside(f"{films}/data/train-0000[!0].*") == ["data/train-00001.jsonl.gz"]
    assert inside(films) == ["README.md", "deep/er/notes.txt"]
    prefix = source_of(f"{films}/data/validation")  # as line-aligned files are named, without their suffix
    assert prefix.with_name("validation.tsv").is_file()
    assert source_of(f"{films}@refs%2Fconvert%2Fparquet/data").is_dir()


def test_tables_and_tasks(films):
    rows = headjax.data.DataConfig(task=f"sst2:{films}").open().rows
    assert {split: len([*some.rows()]) for split, some in rows.items()} == {"train": 9, "validation": 1}


@pytest.mark.parametrize(
    "path, refusal",
    [
        ("hf://datasets/me/film/x", "cannot be downloaded"),
        ("FILMS@v2/data", "cannot be downloaded"),
        *((path, "not a repository") for path in ("hf://films/", "hf://datasets/me")),
        *((path, "no ") for path in ("FILMS/x.txt", "FILMS/*.xml")),
    ],
)
def test_what_is_not_there(films, path, refusal):
    path = path.replace("FILMS", films)
    with pytest.raises(headjax.DataError, match=f"^{re.escape(path)}: {refusal}"):
        find_files(path)


def test_a_model_is_read_without_its_pickle_and_a_task_names_its_files(films, tmp_path):
    model = headjax.from_huggingface(films.replace("datasets/", "").replace("films", "heads"))
    assert model.num_parameters == headjax.demo_model().num_parameters
    assert not [*tmp_path.rglob("*.bin")]
    assert headjax.load_task(f"text:{films}/deep", model, length=8, split="all").count() == 1
    for read in (headjax.from_huggingface, read_model):
        with pytest.raises(headjax.DataError, match=r"^hf://me/none: cannot be downloaded"):
            read("hf://me/none")
