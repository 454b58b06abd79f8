"""Data sets and models on the Hub, from a server of this machine that answers as the Hub does."""

import gzip
import json
import re
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import headjax
from headjax.core.errors import DataError
from headjax.data import DataConfig
from headjax.data.files import find_files
from headjax.data.tables import header, table_rows
from headjax.hub.importing import DEMO
from headjax.storage import hub
from headjax.storage.files import read_lines
from headjax.storage.hub import source_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "README.md": b"A data set of films.\n",
    "data/train-00000.jsonl": b"".join(b'{"text": "film %d", "label": %d}\n' % (i, i % 2) for i in range(8)),
    "data/train-00001.jsonl.gz": gzip.compress(b'{"text": "the last film", "label": 1}\n'),
    "data/validation.tsv": b"text\tlabel\na dull film\t0\n",
    "deep/er/notes.txt": b"A line.\nAnother line.\n",
}
MODEL = {file.name: file.read_bytes() for file in DEMO.iterdir() if file.is_file()} | {"pytorch_model.bin": b"pickle"}
STORED = {"datasets/me/films": FILES, "models/me/heads": MODEL}


class Hub(BaseHTTPRequestHandler):
    """The answers of the Hub that reading takes: the description of a data set, its files, and a file at a commit."""

    asked: list[str] = []

    def do_GET(self) -> None:
        place = urllib.parse.unquote(self.path.partition("?")[0])
        if any(f"/{name.removeprefix('models/')}/" in place for name in STORED):  # the client asks for other things
            self.asked.append(f"{self.command} {place}")
        for name, files in STORED.items():
            api, resolve = f"/api/{name}/", f"/{name.removeprefix('models/')}/resolve/{COMMIT}/"
            if place.removeprefix(f"{api}revision/") in ("main", "refs/convert/parquet"):
                described = {"id": name, "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]}
                return self.answer(200, json.dumps(described).encode(), {"Content-Type": "application/json"})
            if place == f"{api}tree/{COMMIT}":
                listed = [{"type": "file", "path": file, "size": len(files[file]), "oid": file} for file in files]
                return self.answer(200, json.dumps(listed).encode(), {"Content-Type": "application/json"})
            if place.startswith(f"{api}revision/"):
                return self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
            if place.startswith(resolve):
                file = place.removeprefix(resolve)
                known = {"ETag": f'"{file.replace("/", "-")}"', "X-Repo-Commit": COMMIT}
                return self.answer(200, files[file], known)
        code = "GatedRepo" if place.startswith("/api/datasets/me/terms") else "RepoNotFound"
        return self.answer(403 if code == "GatedRepo" else 404, b"", {"X-Error-Code": code})

    do_HEAD = do_GET

    def answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


@pytest.fixture
def films(server, tmp_path, monkeypatch):
    """The address of a data set; nothing of the Hub is in the cache."""
    monkeypatch.setenv("HF_ENDPOINT", server)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    hub._downloaded.cache_clear()
    Hub.asked.clear()
    return "hf://datasets/me/films"


def inside(paths):
    """Paths within the data set."""
    return [str(path).partition(f"/{COMMIT}/")[2] for path in paths]


def test_files_are_found_and_read_once(films):
    assert inside(find_files(f"{films}/data/train-*")) == ["data/train-00000.jsonl", "data/train-00001.jsonl.gz"]
    assert inside(find_files(f"{films}/data/train-0000[!0].*")) == ["data/train-00001.jsonl.gz"]
    assert inside(find_files(f"{films}/deep/**/*.txt")) == ["deep/er/notes.txt"]
    Hub.asked.clear()
    for _ in range(2):
        (file,) = find_files(f"{films}/deep")
        assert [*read_lines(file)] == ["A line.\n", "Another line.\n"]
    assert not [place for place in Hub.asked if "README" in place or "GET /datasets" in place]  # only what is named
    assert inside(find_files(films)) == ["README.md", "deep/er/notes.txt"]
    prefix = source_of(f"{films}/data/validation")  # as line-aligned files are named, without their suffix
    assert prefix.with_name("validation.tsv").is_file()


def test_tables_and_tasks(films):
    table = f"{films}/data/train-00001.jsonl.gz"
    assert header(table) == ("text", "label")
    (row,) = table_rows(table, {"text": "text", "label": "label"})
    assert row.values == {"text": "the last film", "label": "1"}
    assert row.place.endswith("data/train-00001.jsonl.gz: row 1")
    rows = DataConfig(task=f"sst2:{films}").open().rows
    numbers = [("negative", "positive").index(row.values["label"]) for row in rows["train"].rows()]
    assert numbers == [0, 1, 0, 1, 0, 1, 0, 1, 1]
    assert [row.values["text"] for row in rows["validation"].rows()] == ["a dull film"]
    config = DataConfig(task=f"classification:{films}/data/train-*", validation=f"{films}/data/validation.tsv")
    read = config.open().rows
    assert {split: len([*some.rows()]) for split, some in read.items()} == {"train": 9, "validation": 1}
    text = f"{films}/deep/er/notes.txt"
    data = DataConfig(task=text, validation=text, length=4, tokenizer="bytes").load()
    assert len(data.train) == 5


NO_FILES = ("hf://datasets/me/films/x.txt", "hf://datasets/me/films/*.xml")


@pytest.mark.parametrize(
    "path, place",
    [
        *(
            (path, f"{path}: cannot be downloaded")
            for path in ("hf://datasets/me/film/x", "hf://datasets/me/films@v2/data")
        ),
        *((path, f"{path}: not a repository") for path in ("hf://films/", "hf://datasets/me")),
        *((path, f"{re.escape(path)}: no ") for path in NO_FILES),
    ],
)
def test_what_is_not_there(films, path, place):
    assert source_of(f"{films}@refs%2Fconvert%2Fparquet/data").is_dir()  # a revision that is
    with pytest.raises(DataError, match=f"^{place}"):
        find_files(path)


def test_a_model_is_read_without_its_pickle_and_a_task_names_its_files(films):
    model = headjax.from_huggingface("hf://me/heads")
    assert model.num_parameters == headjax.demo_model().num_parameters
    assert not any("pytorch_model" in place for place in Hub.asked)
    assert headjax.load_task(f"text:{films}/deep", model, length=8, split="all").count() == 1
    with pytest.raises(DataError, match=r"^hf://me/none: cannot be downloaded"):
        headjax.from_huggingface("hf://me/none")


def test_without_network(films, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataError, match=r"^hf://datasets/me/films: "):
        find_files(films)
