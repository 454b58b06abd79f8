"""Files, lines and unpacked data above a limit are refused before they fill the memory."""

import gzip
from pathlib import Path

import pytest

from headjax.core import limits
from headjax.core.errors import ConfigError, DataError, HeadjaxError
from headjax.data.files import read_lines
from headjax.data.prepared import read_manifest
from headjax.data.tables import table_rows
from headjax.hub.fields import Fields
from headjax.hub.safetensors_files import SafetensorsFiles
from headjax.models.model import load
from headjax.storage.files import read_bytes
from headjax.storage.integrity import read_record
from headjax.storage.lock import FolderLock
from headjax.tokenizers.files import read_tokenizer
from headjax.training.workdir import BestModel, check_workdir


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("500M", 500 * 2**20), ("8g", 8 * 2**30), ("2KiB", 2048), ("3 ", 3)]
)
def test_a_variable_sets_a_limit(monkeypatch, text, size):
    assert limits.LINE.bytes() == limits.LINE.usual
    monkeypatch.setenv(limits.LINE.variable, text)
    assert limits.LINE.bytes() == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5G", "8X", "9" * 5000, "nan"])
def test_a_variable_without_a_size_is_an_error(monkeypatch, text):
    monkeypatch.setenv(limits.LINE.variable, text)
    with pytest.raises(HeadjaxError, match=r"^HEADJAX_MAX_LINE: "):
        limits.LINE.bytes()


def test_a_packed_file_that_grows_without_measure(tmp_path, monkeypatch):
    """Its 64 MiB are never whole in memory."""
    bomb = tmp_path / "bomb.txt.gz"
    bomb.write_bytes(gzip.compress(bytes(2**26), mtime=0))
    monkeypatch.setenv("HEADJAX_MAX_UNPACKED", "4M")
    with pytest.raises(DataError, match=r"bomb.txt.gz: "):
        read_bytes(bomb)
    monkeypatch.setenv("HEADJAX_MAX_UNPACKED", "64M")
    assert len(read_bytes(bomb)) == 2**26


def test_a_large_file_and_a_device_without_end(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(bytes(1001))
    monkeypatch.setenv("HEADJAX_MAX_FILE", "1000")
    with pytest.raises(DataError, match=r"file: "):
        read_bytes(tmp_path / "file")
    monkeypatch.setenv("HEADJAX_MAX_UNPACKED", "3M")
    with pytest.raises(DataError, match=r"^/dev/zero: "):
        read_bytes(Path("/dev/zero"))


def test_a_large_description_of_a_model(tmp_path, monkeypatch):
    """The files that are parsed as a whole, each read by its own reader."""
    monkeypatch.setenv("HEADJAX_MAX_DOCUMENT", "1000")
    readers = {
        "tokenizer.json": read_tokenizer,
        "special_tokens_map.json": read_tokenizer,
        "config.json": Fields.load,
        "model.safetensors.index.json": SafetensorsFiles,
        "manifest.json": read_manifest,
        "lock.json": lambda folder: FolderLock(folder).acquire(),
        "checksums.json": read_record,
        "sizes.json": read_record,
        "best/history.json": BestModel,
        "train_config.json": lambda folder: check_workdir(folder, None),
    }
    (tmp_path / "best").mkdir()
    for name, read in readers.items():
        (tmp_path / name).write_bytes(bytes(1001))
        with pytest.raises(DataError, match=rf"{name}: more than 1,000 bytes; HEADJAX_MAX_DOCUMENT sets"):
            read(tmp_path)
        (tmp_path / name).unlink()
    (tmp_path / "config.json").write_bytes(bytes(1001))
    with pytest.raises(DataError, match=r"config.json: "):
        load(tmp_path)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_line_without_end(tmp_path, monkeypatch, suffix):
    file = tmp_path / f"lines.jsonl{suffix}"
    data = b'{"text": "a"}\n' + b"x" * 5000
    file.write_bytes(gzip.compress(data, mtime=0) if suffix else data)
    monkeypatch.setenv("HEADJAX_MAX_LINE", "4K")
    with pytest.raises(DataError, match=r": line 2: more than 4,096 bytes; HEADJAX_MAX_LINE sets"):
        list(read_lines(file))
    monkeypatch.setenv("HEADJAX_MAX_LINE", "5000")
    assert [len(line) for line in read_lines(file)] == [14, 5000]


def test_a_cell_that_nothing_closes(tmp_path, monkeypatch):
    file = tmp_path / "a.csv"
    file.write_text('text\n"' + "line\n" * 1000)
    monkeypatch.setenv("HEADJAX_MAX_LINE", "1K")
    with pytest.raises(DataError, match=r"a.csv: "):
        list(table_rows(file, {"text": "text"}))


def test_memory(monkeypatch):
    assert limits.host_memory() is None or limits.host_memory() > 2**28
    monkeypatch.setenv("HEADJAX_MEMORY", "1G")
    assert limits.host_memory() == 2**30
    limits.check_memory("config.batch_size", 2**30, 2**30, "8 examples")
    limits.check_memory("config.batch_size", 2**60, None, "8 examples")
    with pytest.raises(ConfigError, match=r"^config.batch_size: "):
        limits.check_memory("config.batch_size", 2**31, 2**30, "8 examples")
