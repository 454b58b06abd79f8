"""A folder's files are as they were written, or the first that is not is named."""

import numpy as np
import pytest

import headjax
from headjax.core.errors import DamagedError
from headjax.storage.directories import RECORD, check_checksums, write_checksums
from tests import tiny

NAMES = ["a.json", "sub/b.bin", "empty"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in NAMES:
        (tmp_path / name).write_bytes(b"" if name == "empty" else np.random.default_rng(0).bytes(3_000_000))
    write_checksums(tmp_path)
    return tmp_path


def flip(file, position=-1):
    content = bytearray(file.read_bytes())
    content[position] ^= 16
    file.write_bytes(content)


def test_an_intact_folder_passes_and_one_without_a_record_is_not_compared(folder):
    check_checksums(folder)
    (folder / "notes.txt").write_text("a user's own")
    check_checksums(folder)
    (folder / RECORD).unlink()
    flip(folder / "a.json")
    check_checksums(folder)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "damage, said",
    [
        (lambda file: file.unlink(), "missing"),
        (lambda file: file.write_bytes(file.read_bytes() + b"0"), "bytes instead of"),
        (lambda file: flip(file, 2_000_000), "differ from their checksum"),
    ],
    ids=["gone", "longer", "flipped"],
)
def test_a_damaged_file_is_named(folder, name, damage, said):
    if name == "empty" and said == "differ from their checksum":
        pytest.skip("an empty file has no bit to flip")
    damage(folder / name)
    with pytest.raises(DamagedError, match=f"^{folder / name}: .*{said}"):
        check_checksums(folder)


@pytest.mark.parametrize("content", ["", "[]", '{"a": {"bytes": 1}}', "{"])
def test_a_damaged_record_is_named(folder, content):
    (folder / RECORD).write_text(content)
    with pytest.raises(DamagedError, match=f"^{folder / RECORD}: damaged"):
        check_checksums(folder)


def test_every_flipped_byte_of_a_model_directory_is_found(tmp_path):
    tiny.model(tiny.decoder_config()).save(tmp_path / "model")
    headjax.load(tmp_path / "model")
    for file in (file for file in sorted((tmp_path / "model").rglob("*")) if file.is_file()):
        content = file.read_bytes()
        flip(file) if content else file.write_bytes(b"0")
        with pytest.raises(DamagedError) as caught:
            headjax.load(tmp_path / "model")
        assert str(caught.value).startswith(f"{tmp_path / 'model'}")
        if file.name != RECORD:
            assert str(caught.value).startswith(f"{file}: ")
        file.write_bytes(content)
