"""Every kind of data gives the arrays that it has always given, and the fingerprint that checkpoints hold."""

import hashlib

import numpy as np
import pytest
from PIL import Image

from headjax.core.serialize import from_data
from headjax.data.stream import evaluation_batches, train_iterator
from headjax.data.task import DataConfig
from headjax.tokenizers.learned import byte_tokenizer
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests.data.test_image_data import write_cifar, write_mnist
from tests.data.test_text_data import SHORT, long_paragraph, write_squad
from tests.data.vocabulary import write_lines, write_vocabulary

WORDS = ("a", "good", "bad", "film", "the", "was", "it", "not", "very", "dull", "fun")


def phrases(count, least=2, most=9, seed=0):
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, generator.integers(least, most + 1))) for _ in range(count)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Files of every kind, the same on every computer."""
    root = tmp_path_factory.mktemp("files")
    write_vocabulary(root)
    for name in ("text", "mnist", "cifar", "glue/CoLA", "glue/STS-B", "images"):
        (root / name).mkdir(parents=True)
    texts = [". ".join(phrases(40, seed=i)).capitalize() + "." for i in range(12)]
    for number, text in enumerate(texts):
        (root / "text" / f"{number:02}.txt").write_text(text.replace(". ", ".\n\n", 7) + "\n")
    for split, seed in (("train", 1), ("val", 2)):
        write_lines(root / f"{split}.en", *phrases(9, 1, 4, seed))
        write_lines(root / f"{split}.de", *(text.upper() for text in phrases(9, 1, 4, seed + 9)))
    write_squad(root / "squad.json", SHORT, long_paragraph())
    write_mnist(root / "mnist")
    write_cifar(root / "cifar", "cifar10", count=3)
    for split in ("train", "val"):
        for number, name in enumerate(("cat", "dog", "eel")):
            (root / "images" / split / name).mkdir(parents=True)
            pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), np.uint8)
            Image.fromarray(pixels).save(root / "images" / split / name / "one.bmp")
    first, second = phrases(24, seed=3), phrases(24, seed=4)
    rows = [f"{one}\t{two}\t{i % 2}\t{i / 5}" for i, (one, two) in enumerate(zip(first, second, strict=True))]
    write_lines(root / "pairs.tsv", "sentence\tother\tlabel\tscore", *rows)
    for split in ("train", "dev"):
        lines = [f"x\t{i % 2}\t*\t{text}" for i, text in enumerate(phrases(8, seed=5))]
        write_lines(root / "glue" / "CoLA" / f"{split}.tsv", *lines)
        head = "sentence1\tsentence2\tscore"
        lines = [f"{one}\t{two}\t{i / 2}" for i, (one, two) in enumerate(zip(first[:8], second[:8], strict=True))]
        write_lines(root / "glue" / "STS-B" / f"{split}.tsv", head, *lines)
    return root


LABELLED = {"path": "pairs.tsv", "max_length": 12}
TRANSLATION = {"train": "train", "validation": "val", "source": "en", "target": "de", "max_length": 24}
PRETRAINING = {"path": "text", "length": 32, "validation_fraction": 0.4}
IMAGES = {"mean": (0.5, 0.4, 0.3), "deviation": (0.2, 0.25, 0.3)}
KINDS = {
    "language": {"path": "text", "length": 16, "tokenizer": "bytes", "validation_fraction": 0.2},
    "parallel_text": TRANSLATION,
    "parallel_text, buckets": TRANSLATION | {"buckets": (8, 16)},
    "question_answering": {"train": "squad.json", "validation": "squad.json", "max_length": 100, "stride": 16},
    "pretraining_text": PRETRAINING,
    "pretraining_text, static": PRETRAINING | {"masking": "static", "copies": 2, "seed": 3},
    "mnist": {"path": "mnist"},
    "image_files": {"path": "cifar"},
    "image_files, folders": {"path": "images", "size": 14, **IMAGES},
    "text_classification": LABELLED,
    "text_classification, pairs": LABELLED | {"second": "other", "buckets": (8,), "validation_fraction": 0.3},
    "text_regression": LABELLED | {"label": "score", "scale": 2.0},
    "text_similarity": LABELLED | {"label": "score", "second": "other", "scale": 5.0},
    "glue": {"name": "cola", "path": "glue/CoLA"},
    "glue, similarity": {"name": "stsb", "path": "glue/STS-B", "similarity": True, "max_length": 8},
}
FILES = ("path", "train", "validation")


def digest(batches):
    """Hash of batches of arrays: names, types, shapes and values."""
    found = hashlib.sha256()
    for batch in batches:
        for name in sorted(batch):
            array = np.ascontiguousarray(batch[name])
            found.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()[:16]


def digest_of(data, batch_size=3, steps=4):
    """Hash of the first training batches, of what is evaluated on, and of the data's own fingerprint."""
    iterator = train_iterator(data.train, batch_size, 1)
    # A window's number is of use where answers are read off, which is on the examples to evaluate on.
    train = [{name: array for name, array in next(iterator).items() if name != "window"} for _ in range(steps)]
    parts = digest(train), digest(evaluation_batches(data.validation, batch_size)), data.info["data"]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def tokenizer(kind, root):
    byte_kinds = ("language", "parallel_text")
    return byte_tokenizer() if kind in byte_kinds else wordpiece_tokenizer(root / "vocab.txt")


def read(name, root):
    fields = {key: str(root / value) if key in FILES else value for key, value in KINDS[name].items()}
    kind = name.partition(",")[0]
    return from_data(DataConfig, {"kind": kind, **fields}).load(tokenizer(kind, root))


GOLDEN = {
    "language": "49f19f1064390f9a",
    "parallel_text": "b343050297d62523",
    "parallel_text, buckets": "c0537cc4061d306c",
    "question_answering": "f64a69732c4e2557",
    "pretraining_text": "2e17f0eaf50cdafd",
    "pretraining_text, static": "e8ff14c998593a85",
    "mnist": "d92cde0986732a06",
    "image_files": "b742cae36ee3dad4",
    "image_files, folders": "b7cd66fdce0dddd3",
    "text_classification": "1fb0355d24fae7a1",
    "text_classification, pairs": "73917a67464fea7b",
    "text_regression": "054367247778a49c",
    "text_similarity": "244483dbc94978a2",
    "glue": "667293879f0cf35f",
    "glue, similarity": "c8e446c703d9da72",
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_data(root, name):
    assert digest_of(read(name, root)) == GOLDEN[name]
