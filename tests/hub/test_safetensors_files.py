"""Reading safetensors: single files and shards, and one line for each way in which they can be broken."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from headjax.core.errors import CheckpointError, ParameterError
from headjax.hub.safetensors_files import SafetensorsFiles, copy_into, shorten, write_safetensors

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


def refused(folder):
    with pytest.raises(CheckpointError) as caught:
        SafetensorsFiles(folder)
    message = str(caught.value)
    assert message.startswith(str(folder))
    assert "\n" not in message
    return message


def test_reads_what_was_written(folder):
    files = SafetensorsFiles(folder)
    for name, array in ARRAYS.items():
        read = files.read(name)
        assert read.dtype == array.dtype
        assert read.tobytes() == array.tobytes()
        assert not array.size or read.ctypes.data % 64 == 0


def test_a_file_is_that_of_the_library_in_any_order(tmp_path):
    """Transposed matrices, whose numbers lie in another order, and names that JSON could escape among them."""
    arrays = ARRAYS | {"a.é": np.arange(6.0, dtype=np.float32).reshape(3, 2).T, "z": np.float32(3).reshape(())}
    save_file(
        {name: np.array(array, order="C") for name, array in arrays.items()}, tmp_path / "theirs", {"format": "pt"}
    )
    for names in (arrays, reversed(arrays)):
        write_safetensors(tmp_path / "ours", arrays, ((name, arrays[name]) for name in names))
        assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_file_needs_every_tensor(tmp_path):
    with pytest.raises(ParameterError, match=r"ours: no data of c, b$"):
        write_safetensors(tmp_path / "ours", ARRAYS, [(name, ARRAYS[name]) for name in ("a", "none")])


@pytest.mark.parametrize("shape", [(130, 70), (4, 33, 70), (130, 4, 9), (3, 4, 5, 6)])
def test_transposed_matrices_are_copied_block_by_block(shape):
    values = np.arange(np.prod(shape)).astype(np.int16)
    for split in range(1, len(shape)):
        order = (*range(split, len(shape)), *range(split))
        source = values.reshape([shape[axis] for axis in order]).transpose(np.argsort(order))
        target = np.empty(shape, np.int16)
        copy_into(target, source)
        np.testing.assert_array_equal(target, source)
    copy_into(target := np.empty(shape, np.float32), values.reshape(shape))
    np.testing.assert_array_equal(target, values.reshape(shape))


def shard(folder, weight_map, **files):
    for name, arrays in files.items():
        save_file(arrays, folder / f"{name}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards(tmp_path):
    shard(
        tmp_path,
        {"a": "one.safetensors", "b": "two.safetensors"},
        one={"a": ARRAYS["a"]},
        two={"b": ARRAYS["b"]},
    )
    files = SafetensorsFiles(tmp_path)
    assert set(files.entries) == {"a", "b"}
    np.testing.assert_array_equal(files.read("b"), ARRAYS["b"])


@pytest.mark.parametrize("name", ["../one.safetensors", "/etc/one.safetensors", "sub/../../x.safetensors", "one.bin"])
def test_an_index_names_no_other_files(tmp_path, name):
    folder = tmp_path / "inner"
    folder.mkdir()
    save_file({"a": ARRAYS["a"]}, tmp_path / "one.safetensors")
    shard(folder, {"a": name})
    assert "not a safetensors file inside the directory" in refused(folder)


def test_an_index_and_its_shards_must_agree(tmp_path):
    shard(tmp_path, {"a": "one.safetensors", "b": "one.safetensors"}, one={"a": ARRAYS["a"], "c": ARRAYS["b"]})
    assert refused(tmp_path).endswith("it and one.safetensors disagree about b, c")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', "\ufeff{"])
def test_a_broken_index(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    assert "weight_map" in refused(tmp_path)


def test_a_missing_shard(tmp_path):
    shard(tmp_path, {"a": "one.safetensors"})
    assert refused(tmp_path).endswith("one.safetensors: missing")


@pytest.mark.parametrize("kept", [0, 5, 40, -1])
def test_a_truncated_file(folder, kept):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    assert "not a readable safetensors file" in refused(folder)


def test_a_malformed_header(folder):
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[8] = ord("[")
    file.write_bytes(bytes(data))
    assert "not a readable safetensors file" in refused(folder)


@pytest.mark.parametrize("twice", ["tensor", "field"])
def test_a_key_that_is_there_twice_is_refused(tmp_path, twice):
    """The format forbids it, and readers differ in the one that they take."""
    entry = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    other = '{"dtype":"F32","shape":[1],"data_offsets":[4,8]}'
    header = {
        "tensor": f'{{"a":{entry},"b":{entry},"a":{other}}}',
        "field": f'{{"a":{entry},"b":{other[:-1]},"shape":[1]}}}}',
    }[twice].encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    message = refused(tmp_path)
    assert "not a readable safetensors file" in message
    assert twice == "field" or "'a' is there twice" in message


def test_a_pickle_is_not_read(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    message = refused(tmp_path)
    assert "pickle" in message
    assert "save_pretrained" in message


def test_nothing_to_read(tmp_path):
    assert "has neither" in refused(tmp_path)
    assert refused(tmp_path / "absent").endswith("not a directory")


def test_integers_are_no_weights(tmp_path):
    save_file({"a": np.arange(3)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="a is of type I64; readable: F32, F16, BF16"):
        SafetensorsFiles(tmp_path).read("a")


def test_lists_are_shortened():
    assert shorten("abc") == "a, b, c"
    assert shorten("abcdefgh") == "a, b, c, d, e, f and 2 more"
