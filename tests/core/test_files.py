"""Files appear whole or not at all."""

import pytest

from headjax.core.errors import HeadjaxError
from headjax.core.files import write_file


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = write_file(tmp_path / "a" / "b.txt", b"one")
    write_file(str(path), b"two")
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in path.parent.iterdir()] == ["b.txt"]


def test_a_folder_in_its_place_is_an_error_and_leaves_nothing(tmp_path):
    (tmp_path / "taken" / "inner").mkdir(parents=True)
    with pytest.raises(HeadjaxError, match=r"taken: cannot be written \("):
        write_file(tmp_path / "taken", b"data")
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]
