"""All that imports TensorFlow, once: tasks over TFDS's mocked data sets."""

import contextlib
import dataclasses
import importlib.util
import json
import pathlib

import numpy as np
import pytest

import headjax
from headjax.core.programs import Share
from headjax.data.registry import GLUE
from tests.command_line import main
from tests.data.vocabulary import write_vocabulary

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(importlib.util.find_spec("seqio") is None, reason="needs the data extra"),
]

GLUE_SPLITS = ("train", "validation", "test")
CATALOG = {
    "lm1b:1.1.0": ("train", "test"),
    "wikipedia/20230601.en:1.0.0": ("train",),
    "pg19:0.1.1": ("train", "validation", "test"),
    "c4/en:3.1.0": ("train", "validation"),
    **{f"glue/{name}:2.0.0": GLUE_SPLITS for name in GLUE if name != "mnli"},
    "glue/mnli:2.0.0": ("train", *(f"{name}_{kind}" for name in GLUE_SPLITS[1:] for kind in ("matched", "mismatched"))),
    "squad/v1.1:3.0.0": ("train", "validation"),
    "wmt14_translate/de-en:1.0.0": ("train", "validation", "test"),
    "wmt14_translate/fr-en:1.0.0": ("train", "validation", "test"),
    "wmt16_translate/de-en:1.0.0": ("train", "validation", "test"),
    "mtnt/en-fr:1.0.0": ("train", "valid", "test"),
    "mtnt/fr-en:1.0.0": ("train", "valid", "test"),
    "mnist:3.0.1": ("train", "test"),
    "cifar10:3.0.2": ("train", "test"),
    "cifar100:3.0.2": ("train", "test"),
    "imagenet2012:5.1.0": ("train", "validation", "test"),
}
"""TFDS's data sets and their splits, as its catalog has them."""


@pytest.fixture(scope="module")
def tfds():
    import tensorflow_datasets

    return tensorflow_datasets


@pytest.fixture(scope="module")
def mocked(tfds, tmp_path_factory):
    """TFDS with the catalog's data sets, so many examples in each split, made up; nothing is downloaded."""
    import seqio

    folder = tmp_path_factory.mktemp("tfds")
    for name, splits in CATALOG.items():
        builder = tfds.builder(name, data_dir=folder)
        template = {"dataset_name": builder.name, "data_dir": builder.data_path, "filetype_suffix": "tfrecord"}
        files = {split: tfds.core.ShardedFileTemplate(split=split, **template) for split in splits}
        rest = {"shard_lengths": [10_000], "num_bytes": 1}
        infos = [tfds.core.SplitInfo(name=name, filename_template=file, **rest) for name, file in files.items()]
        builder.info.set_splits(tfds.core.splits.SplitDict(infos))
        pathlib.Path(builder.data_dir).mkdir(parents=True)
        builder.info.write_to_directory(builder.data_dir)

    @contextlib.contextmanager
    def mocked(examples):
        seqio.set_tfds_data_dir_override(str(folder))
        with tfds.testing.mock_data(num_examples=examples, data_dir=str(folder)):
            yield
        seqio.set_tfds_data_dir_override(None)

    return mocked


@pytest.fixture
def vocabulary(tmp_path):
    return str(write_vocabulary(tmp_path))


FITS = {
    "text": lambda value, spec: isinstance(value, str),
    "texts": lambda value, spec: isinstance(value, tuple) and all(isinstance(one, str) for one in value),
    "integer": lambda value, spec: isinstance(value, int),
    "label": lambda value, spec: isinstance(value, int if spec.form.label_names else float),
    "image": lambda value, spec: value.dtype == np.uint8 and value.shape[2:] == (len(spec.form.mean),),
}
"""Whether a field holds what it should."""


@pytest.mark.whole
def test_every_task_reads_its_data_sets(mocked):
    """Names, versions, splits and features exist, and give rows of the form's fields, whose number is known."""
    from headjax.data.seqio_tasks import tfds_rows

    read = set()
    for spec in headjax.data.TASKS.values():
        for source in spec.sources:
            for split, theirs in source.splits.items():
                if (source.name, theirs) in read:
                    continue
                read.add((source.name, theirs))
                with mocked(2):
                    found = tfds_rows(dataclasses.replace(spec, sources=(source,)))[split]
                    rows = list(found.rows())
                assert found.count == (5000 if "5000" in theirs else 10_000)
                assert len(rows) == 2
                assert rows[1].place.endswith("example 1")
                assert rows[0].values.keys() == spec.form.wanted.keys()
                for field, what in spec.form.wanted.items():
                    assert FITS[what](rows[0].values[field], spec), (spec.name, field)
    assert {name for name, _ in read} == {*CATALOG}


def test_what_tfds_has_not_is_an_error(mocked):
    from headjax.data.seqio_tasks import tfds_rows

    source = dataclasses.replace(headjax.data.TASKS["mrpc"].sources[0], splits={"validation": "nowhere"})
    with mocked(2), pytest.raises(headjax.DataError, match=r"^glue/mrpc:2.0.0: nowhere: cannot be read from TFDS"):
        tfds_rows(dataclasses.replace(headjax.data.TASKS["mrpc"], sources=(source,)))


def test_hosts_read_shares_of_tfds(mocked):
    from headjax.data.seqio_tasks import tfds_rows

    with mocked(5):
        source = tfds_rows(headjax.data.TASKS["mrpc"])["validation"]
        whole, *shares = ([row.values["text"] for row in source.rows(Share(*one))] for one in ((0, 1), (0, 2), (1, 2)))
    assert sorted(shares[0] + shares[1]) == sorted(whole)
    assert min(map(len, shares)) == 2


def test_no_data_set_and_no_network(tfds, tmp_path, monkeypatch):
    import socket

    import seqio

    from headjax.data.seqio_tasks import tfds_rows

    def unreachable(*arguments):
        raise OSError("Name or service not known")

    seqio.set_tfds_data_dir_override(str(tmp_path))
    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    try:
        with pytest.raises(
            headjax.DataError, match=r"^glue/rte:2.0.0: train: not in .*/rte/2.0.0, and no network; --source"
        ):
            tfds_rows(headjax.data.TASKS["rte"])
    finally:
        seqio.set_tfds_data_dir_override(None)


def test_class_numbers_and_subsets_are_those_of_tfds(tfds):
    """WMT14 validates on newstest2013 and tests on newstest2014, which the tasks of these names rely on."""
    for name, task in GLUE.items():
        label = tfds.builder(f"glue/{name}").info.features["label"]
        assert getattr(label, "names", []) == [*task.form.label_names]
    for name in ("mnist:3.0.1", "cifar10:3.0.2", "cifar100:3.0.2", "imagenet2012:5.1.0"):
        (spec,) = (spec for spec in headjax.data.TASKS.values() if any(source.name == name for source in spec.sources))
        assert tfds.builder(name).info.features["label"].num_classes == len(spec.form.classes)
    subsets = tfds.builder(headjax.data.TASKS["wmt14_ende"].sources[0].name).subsets
    assert "newstest2013" in subsets[tfds.Split.VALIDATION]
    assert [*subsets[tfds.Split.TEST]] == ["newstest2014"]
    for year, split in (("2013", "validation"), ("2014", "test")):
        assert headjax.data.TASKS[f"newstest{year}_ende"].sources[0].splits == {"validation": split}


def test_prepare_from_tfds(mocked, vocabulary, tmp_path, capsys):
    out = str(tmp_path / "cola")
    with mocked(5):
        assert main(["prepare", "cola", "--tokenizer", vocabulary, "--out", out, "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["examples"] == 10
    assert data["shards"] == 2
    prepared = headjax.data.DataConfig(task=f"cola:{out}").load()
    assert len(prepared.train) == len(prepared.validation) == 5
    assert set(prepared.train[0]) == {"input_ids", "token_type_ids", "attention_mask", "labels"}
    with mocked(5):
        assert main(["prepare", "cifar10", "--out", str(tmp_path / "cifar")]) == 0
    images = headjax.data.DataConfig(task=str(tmp_path / "cifar"), form={"size": 32}).load()
    assert images.train[0]["pixel_values"].shape == (3, 32, 32)


def test_tasks_are_in_the_registry_of_seqio_as_text(mocked):
    import seqio

    from headjax.data import seqio_tasks

    seqio_tasks.register()
    for name, begins in (("mnli", "mnli text: "), ("wmt14_ende", "wmt14_ende source: "), ("squad", "squad question: ")):
        task = seqio.get_mixture_or_task(f"headjax_{name}")
        with mocked(2):
            dataset = task.get_dataset({"inputs": 999, "targets": 99}, split="validation", shuffle=False)
            rows = list(dataset.as_numpy_iterator())
        assert len(rows) == 2
        vocabulary = task.output_features["inputs"].vocabulary
        assert vocabulary.decode(rows[0]["inputs"].tolist()).startswith(begins)
        assert rows[0]["targets"][-1] == vocabulary.eos_id
        if name == "mnli":
            assert {vocabulary.decode(row["targets"].tolist()) for row in rows} <= {
                *headjax.data.TASKS["mnli"].form.label_names
            }
