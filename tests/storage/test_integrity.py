"""Records of folders: every changed byte is found and named, earlier versions are read and later ones refused."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from headjax.core import history
from headjax.core.errors import CheckpointError, DamagedError, DataError
from headjax.storage import integrity
from headjax.storage.formats import check_format, stated
from headjax.storage.paths import path_of
from headjax.version import __version__

CONTENTS = {"config.json": b'{"width": 4}\n', "params/d/data": bytes(range(256)), "params/empty": b""}


@pytest.fixture
def folder(tmp_path):
    for name, content in CONTENTS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    integrity.write_record(tmp_path)
    return tmp_path


def read(folder):
    """A folder's record; None where it is refused."""
    try:
        return integrity.read_record(folder)
    except CheckpointError:
        return None


@pytest.mark.whole
def test_every_flipped_bit_of_a_file_is_named(folder):
    rng = np.random.default_rng(0)
    for name, content in CONTENTS.items():
        for bit in rng.permutation(8 * len(content))[:100]:
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            (folder / name).write_bytes(flipped)
            with pytest.raises(DamagedError, match=rf"{name}: damaged: bytes 0 to {len(content)} differ from"):
                integrity.check(folder)
        (folder / name).write_bytes(content)
    (folder / "notes.txt").write_text("mine")  # a file of the user's
    integrity.check(folder)
    assert list(integrity.damages(folder)) == []
    assert integrity.read_record(folder).keys() == CONTENTS.keys()


def test_missing_cut_and_longer_files_are_named(folder):
    data, content = folder / "params/d/data", CONTENTS["params/d/data"]
    for changed, problem in ((content[:-1], "has 255 bytes instead of 256"), (content + b"0", "has 257 bytes")):
        data.write_bytes(changed)
        with pytest.raises(DamagedError, match=f"params/d/data: {problem}"):
            integrity.check(folder)
    data.unlink()
    with pytest.raises(DamagedError, match=r"params/d/data: "):
        integrity.check(folder)
    assert [damage.file for damage in integrity.damages(folder)] == [data]


def test_every_flipped_bit_of_the_record_is_found_or_harmless(folder):
    """A changed record never lets a changed file pass, and is not taken for damage of another file."""
    record, content = folder / integrity.RECORD, (folder / integrity.RECORD).read_bytes()
    expected, refused = integrity.read_record(folder), 0
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        record.write_bytes(flipped)
        found = read(folder)
        assert found in (expected, None)
        refused += found is None
    assert refused > 4 * len(content)


def test_a_later_format_says_what_to_install(folder):
    file = Path("folder/config.json")
    for data in ({}, {"format": 1}, {"format": 2}, stated(2)):
        check_format(data, 2, file)
    for data, writer, install in (
        ({"format": 3}, None, "a later headjax"),
        ({"format": 3, "headjax": "9.1.0"}, None, "headjax 9.1.0 or later"),
        ({"format": 3, "headjax": 7}, None, "a later headjax"),
        ({"format": 3}, "9.2.0", "headjax 9.2.0 or later"),
    ):
        with pytest.raises(DataError) as caught:
            check_format(data, 2, file, writer, DataError)
        assert str(caught.value) == f"{file}: format 3 is newer than headjax {__version__} reads (2); install {install}"
    with pytest.raises(CheckpointError, match=r"config\.json: "):
        check_format({"format": "two"}, 2, file)
    record = folder / integrity.RECORD
    record.write_text(json.dumps(json.loads(record.read_text()) | {"format": 2}))
    with pytest.raises(CheckpointError, match=r"checksums\.json: "):
        integrity.check(folder)


def test_an_entry_of_a_history_names_the_versions():
    versions = {"headjax": __version__, "jax": jax.__version__}
    assert history.entry("prune", heads=3) == {"action": "prune", "heads": 3, "versions": versions}


def test_large_files_are_compared_block_by_block_while_the_body_reads(folder, monkeypatch):
    monkeypatch.setattr(integrity, "BLOCK", 50)
    monkeypatch.setattr(integrity, "AT_ONCE", 20)
    integrity.write_record(folder)
    data = bytearray(CONTENTS["params/d/data"])
    assert len(integrity.read_record(folder)["params/d/data"].sums) == 6
    integrity.check(folder)
    data[120] ^= 1
    (folder / "params/d/data").write_bytes(data)
    with pytest.raises(DamagedError, match=r"params/d/data: "), integrity.checking(folder):
        pass
    # Damage explains whatever else goes wrong on reading it.
    with pytest.raises(DamagedError, match="params/d/data"), integrity.checking(folder):
        raise KeyError("of the reader")
    data[120] ^= 1
    (folder / "params/d/data").write_bytes(data)
    with pytest.raises(KeyError, match="of the reader"), integrity.checking(folder):
        raise KeyError("of the reader")


def test_sizes_of_an_earlier_headjax_are_compared(folder):
    sizes = {name: len(content) for name, content in CONTENTS.items()}
    (folder / integrity.RECORD).rename(folder / "aside")
    integrity.check(folder)
    (folder / integrity.SIZES).write_text(json.dumps(sizes))
    integrity.check(folder)
    (folder / "params/d/data").write_bytes(b"short")
    with pytest.raises(DamagedError, match=r"params/d/data: "):
        integrity.check(folder)
    (folder / integrity.SIZES).write_text('{"config.json": "x"}')
    with pytest.raises(DamagedError, match=r"sizes\.json: "):
        integrity.check(folder)


def test_a_folder_of_a_bucket_has_the_record_of_one_on_disk(folder, bucket, monkeypatch):
    copy = path_of(bucket) / "model"
    for name, content in CONTENTS.items():
        (copy / name).write_bytes(content)
    integrity.write_record(copy)
    assert (copy / integrity.RECORD).read_bytes() == (folder / integrity.RECORD).read_bytes()
    monkeypatch.setattr(integrity, "SMALL", 100)  # so that a file counts as large
    integrity.check(copy)
    (copy / "params/d/data").write_bytes(bytes(255) + b"1")
    with pytest.raises(DamagedError, match=r"^gs://.*params/d/data: damaged: bytes 0 to 256 differ"):
        integrity.check(copy)
    (copy / "params/empty").unlink()
    assert [(damage.file.name, damage.problem[:7]) for damage in integrity.damages(copy)] == [
        ("data", "damaged"),
        ("empty", "missing"),
    ]
