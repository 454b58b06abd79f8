"""Every form of data gives the arrays that it has always given."""

import hashlib

import numpy as np
import pytest
from PIL import Image

import headjax
from headjax.data.stream import train_iterator
from tests.data.images import write_mnist
from tests.data.squad import SHORT, long_paragraph, write_squad
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
    for name in ("text", "mnist", "glue/CoLA", "glue/STS-B", "images"):
        (root / name).mkdir(parents=True)
    texts = [". ".join(phrases(40, seed=i)).capitalize() + "." for i in range(12)]
    for number, text in enumerate(texts):
        (root / "text" / f"{number:02}.txt").write_text(text.replace(". ", ".\n\n", 7) + "\n")
    for split, seed in (("train", 1), ("val", 2)):
        write_lines(root / f"{split}.en", *phrases(9, 1, 4, seed))
        write_lines(root / f"{split}.de", *(text.upper() for text in phrases(9, 1, 4, seed + 9)))
    write_squad(root / "squad.json", SHORT, long_paragraph())
    write_mnist(root / "mnist")
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


BERT = {"tokenizer": "vocab.txt"}
LABELLED = BERT | {"length": 12, "columns": {"text": "sentence", "label": "label"}}
PAIRS = LABELLED | {"columns": {"text": "sentence", "second": "other", "label": "label"}}
TRANSLATION = {"task": "translation:train:en-de", "validation": "val", "length": 24, "tokenizer": "bytes"}
PRETRAINING = BERT | {"task": "bert_pretraining:text", "length": 32, "validation_fraction": 0.4}
IMAGES = {"mean": (0.5, 0.4, 0.3), "deviation": (0.2, 0.25, 0.3)}
TASKS = {
    "text": {"task": "text:text", "length": 16, "tokenizer": "bytes", "validation_fraction": 0.2},
    "translation": TRANSLATION,
    "translation, buckets": TRANSLATION | {"buckets": (8, 16)},
    "questions": BERT
    | {"task": "questions:squad.json", "validation": "squad.json", "length": 100, "form": {"stride": 16}},
    "pretraining": PRETRAINING,
    "mnist": {"task": "mnist:mnist"},
    "images": {"task": "images:images", "form": {"size": 14, **IMAGES}},
    "classification": LABELLED | {"task": "classification:pairs.tsv"},
    "pairs": PAIRS | {"task": "pairs:pairs.tsv", "buckets": (8,), "validation_fraction": 0.3},
    "regression": LABELLED
    | {"task": "regression:pairs.tsv", "columns": {"text": "sentence", "label": "score"}, "form": {"scale": 2.0}},
    "similarity": PAIRS
    | {
        "task": "similarity:pairs.tsv",
        "columns": {"text": "sentence", "second": "other", "label": "score"},
        "form": {"scale": 5.0},
    },
    "cola": BERT | {"task": "cola:glue/CoLA"},
    "sentence_similarity": BERT | {"task": "sentence_similarity:glue/STS-B", "length": 8},
}


def digest(batches):
    """Hash of batches of arrays: names, types, shapes and values."""
    found = hashlib.sha256()
    for batch in batches:
        for name in sorted(batch):
            array = np.ascontiguousarray(batch[name])
            found.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()[:16]


def digest_of(data, batch_size=3, steps=4):
    """Hash of the first training batches, and of what is evaluated on."""
    iterator = train_iterator(data.train, batch_size, 1)
    # A window's number is of use where answers are read off, which is on the examples to evaluate on.
    train = [{name: array for name, array in next(iterator).items() if name != "window"} for _ in range(steps)]
    parts = digest(train), digest(headjax.evaluation_batches(data.validation, batch_size))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def read(name, root, monkeypatch):
    monkeypatch.chdir(root)
    return headjax.data.DataConfig(**TASKS[name]).load()


GOLDEN = {
    "text": "3c3864c85fd7219e",
    "translation": "b2d455d9f1117026",
    "translation, buckets": "7153991f5271682d",
    "questions": "8bf7a748b7898463",
    "pretraining": "00349b95b1081f98",
    "mnist": "bbcdf7c585d4864d",
    "images": "63eff7b7ab0221bd",
    "classification": "242d4595a0103cf3",
    "pairs": "daab04a36e4a61bb",
    "regression": "213a8a3ed425f101",
    "similarity": "08314bc27e7e49cc",
    "cola": "e8291aadaa1e269d",
    "sentence_similarity": "39dace2c5690a23e",
}


@pytest.mark.parametrize("name", TASKS)
def test_tasks(root, name, monkeypatch):
    assert digest_of(read(name, root, monkeypatch)) == GOLDEN[name]
