"""Reading safetensors: single files and shards, and one line for each way in which they can be broken."""

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import headjax
from headjax.hub.safetensors_files import SafetensorsFiles, write_safetensors

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(4, dtype=np.float16),
    "c": np.arange(5).astype(ml_dtypes.bfloat16),
    "none": np.zeros((0, 3), np.float32),
}


@pytest.fixture
def folder(tmp_path):
    write_safetensors(tmp_path / "model.safetensors", ARRAYS, ARRAYS.items())
    return tmp_path


def test_reads_what_was_written(folder):
    files = SafetensorsFiles(folder)
    for name, array in ARRAYS.items():
        read = files.read(name)
        assert read.dtype == array.dtype
        assert read.tobytes() == array.tobytes()


def test_a_file_is_that_of_the_library_in_any_order(tmp_path):
    """Transposed matrices, whose numbers lie in another order, and names that JSON could escape among them."""
    arrays = ARRAYS | {"a.é": np.arange(6.0, dtype=np.float32).reshape(3, 2).T, "z": np.float32(3).reshape(())}
    save_file(
        {name: np.array(array, order="C") for name, array in arrays.items()}, tmp_path / "theirs", {"format": "pt"}
    )
    for names in (arrays, reversed(arrays)):
        write_safetensors(tmp_path / "ours", arrays, ((name, arrays[name]) for name in names))
        assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def shard(folder, weight_map, **files):
    for name, arrays in files.items():
        save_file(arrays, folder / f"{name}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards(tmp_path):
    shard(tmp_path, {name: f"{name}.safetensors" for name in "ab"}, **{name: {name: ARRAYS[name]} for name in "ab"})
    files = SafetensorsFiles(tmp_path)
    assert set(files.entries) == {"a", "b"}
    np.testing.assert_array_equal(files.read("b"), ARRAYS["b"])


def index(text):
    return lambda folder: (folder / "model.safetensors.index.json").write_text(text)


def shards(weight_map, **files):
    return lambda folder: shard(folder, weight_map, **files)


def cut(kept):
    def make(folder):
        write_safetensors(folder / "model.safetensors", ARRAYS, ARRAYS.items())
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:kept])

    return make


UNREADABLE = "not a readable safetensors file"
BROKEN = [
    (shards({"a": "one.safetensors"}), "one.safetensors: missing"),
    *((index(text), "weight_map") for text in ("", "[]", '{"weight_map": {}}', '{"weight_map": {"a": 1}}')),
    *((cut(kept), UNREADABLE) for kept in (0, 40, -1)),
    (lambda folder: (folder / "pytorch_model.bin").write_bytes(b"anything"), "pickle"),
    (lambda folder: None, "has neither"),
    (lambda folder: folder.rmdir(), "not a directory"),
]


@pytest.mark.parametrize(("make", "said"), BROKEN)
def test_a_broken_directory_is_one_line(tmp_path, make, said):
    folder = tmp_path / "inner"
    folder.mkdir()
    make(folder)
    with pytest.raises(headjax.CheckpointError, match=rf"^{folder}[^\n]*{said}"):
        SafetensorsFiles(folder)


def test_integers_are_no_weights(tmp_path):
    save_file({"a": np.arange(3)}, tmp_path / "model.safetensors")
    with pytest.raises(headjax.CheckpointError, match="a is of type I64; readable: F32, F16, BF16"):
        SafetensorsFiles(tmp_path).read("a")
