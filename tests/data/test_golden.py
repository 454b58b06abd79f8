"""Every kind of data gives the arrays that it has always given, and the fingerprint that checkpoints hold."""

import hashlib

import numpy as np
import pytest
from PIL import Image

from headjax.core.serialize import from_data
from headjax.data.forms import Form
from headjax.data.prepare import prepare
from headjax.data.rows import Row, RowSource
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


def digests(data, batch_size=3, steps=4):
    """Hashes of the first training batches and of what is evaluated on, and the data's own fingerprint."""
    iterator = train_iterator(data.train, batch_size, 1)
    # A window's number is of use where answers are read off, which is on the examples to evaluate on.
    train = [{name: array for name, array in next(iterator).items() if name != "window"} for _ in range(steps)]
    return [digest(train), digest(evaluation_batches(data.validation, batch_size)), data.info["data"]]


def tokenizer(kind, root):
    byte_kinds = ("language", "parallel_text", "language_model_rows", "translations")
    return byte_tokenizer() if kind in byte_kinds else wordpiece_tokenizer(root / "vocab.txt")


def read(name, root):
    fields = {key: str(root / value) if key in FILES else value for key, value in KINDS[name].items()}
    kind = name.partition(",")[0]
    return from_data(DataConfig, {"kind": kind, **fields}).load(tokenizer(kind, root))


GOLDEN = {
    "language": ["47b296e3a8113f83", "5608b0e0902691b2", "74e22731cb433e5b"],
    "parallel_text": ["daf28354928a62d0", "64a61c713246b885", "881ca9e50526e59a"],
    "parallel_text, buckets": ["8f5dc101e0a82905", "64a61c713246b885", "881ca9e50526e59a"],
    "question_answering": ["8ac67a5ea4ebeaa8", "2e5aad0c12acc2ff", "903c25c974fe8cd2"],
    "pretraining_text": ["383c1d06c7a1a3b3", "2abb6655887b3c74", "d1dc988608b3bbf3"],
    "pretraining_text, static": ["d00bbb7359579084", "2cd351e5b18769d9", "d1dc988608b3bbf3"],
    "mnist": ["ad4dffedc83e7843", "89503f66a4667a3a", "5c0aa68c6fc057b4"],
    "image_files": ["6e5d6b52a74833d6", "56ddf8ba99c729c6", "822374a9f67b47f5"],
    "image_files, folders": ["93459237483adc00", "0a7a2947dbf47cff", "bd3780ac611a4d96"],
    "text_classification": ["aaabe3061987d4a3", "7510942a3687b4e3", "ef2cf335b39a31c0"],
    "text_classification, pairs": ["9e95655e6098fb85", "2302ed03da4bbe83", "ec8de5103dc66d2a"],
    "text_regression": ["46478dd5334f694d", "56c62768d34cb748", "1eb4f4751a97468f"],
    "text_similarity": ["30bac36ba4272b04", "0df036c947f9c9b6", "065aa4294e49d85c"],
    "glue": ["f71f8a159cfd78b6", "954562ed0be30a2e", "f4ade9fba601a390"],
    "glue, similarity": ["9d4b80c58cf37786", "eaf28a39c13a6ffc", "9a0f3fd09fa8984c"],
}
"""Of each kind: the training batches, the batches to evaluate on, and `info["data"]`."""


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_data(root, name):
    assert digests(read(name, root)) == GOLDEN[name]


FORMS = {
    "labelled": {"length": 12, "classes": ("bad", "good")},
    "labelled, pairs": {"length": 12, "pairs": True},
    "language_model_rows": {"length": 16},
    "language_model_rows, packed": {"length": 48, "packed": True},
    "translations": {"length": 48},
    "translations, pairs": {"length": 24, "packed": False},
    "questions": {"length": 100, "stride": 16},
    "pretraining_pairs": {"length": 32},
    "pretraining_pairs, static": {"length": 32, "masking": "static"},
    "image_rows": {"size": 8, "stored": 10, "margin": 2, "flip": True, "classes": ("cat", "dog"), **IMAGES},
}


def values(name, index):
    """The values of a row."""
    one, two = phrases(1, seed=index)[0], phrases(1, seed=index + 50)[0]
    pixels = np.random.default_rng(index).integers(0, 256, (10, 10, 3), np.uint8)
    answer = {"answers": ("un",), "start": len(one) + 1}
    return {
        "labelled": {"text": one, "label": ("bad", "good")[index % 2]},
        "labelled, pairs": {"text": one, "second": two, "label": index / 4},
        "translations": {"source": one[:20], "target": two[:20]},
        "questions": {"id": str(index), "question": two, "context": f"{one} un", **answer},
        "image_rows": {"image": pixels, "label": index % 2},
    }.get(name.removesuffix(", pairs") if name.startswith("tr") else name, {"text": f"{one}. {two.capitalize()}. " * 9})


PREPARED = {
    "labelled": ["46bfd5d0e72fc21c", "70b9e7ccbbdc801d", "9e167971f261bf03"],
    "labelled, pairs": ["344c3b6f6a32b9f8", "f178445809ae11ea", "38797e5c731eb0b0"],
    "language_model_rows": ["020bb53ff70f593e", "1f183cb239a0af57", "c9ab1c63d549b0f3"],
    "language_model_rows, packed": ["3e5832eb36bbcd7c", "dfac28cd7ac1a2b4", "55f90ed43fa5765e"],
    "translations": ["63881808f06790f0", "fc938a7f049c7777", "0461d89597153585"],
    "translations, pairs": ["ce337cdf0bab1827", "fc938a7f049c7777", "feaeb0a1ff04451d"],
    "questions": ["f2f3ac3f7ee5b883", "615a815c7d7029ed", "17b50d709526e305"],
    "pretraining_pairs": ["90f1ac2f74a4cde4", "488b9e2d6bb9b51e", "79c9f023a30c9538"],
    "pretraining_pairs, static": ["59c240209983a96c", "488b9e2d6bb9b51e", "611ffb82dc013308"],
    "image_rows": ["4415ee1bf95d16b8", "831853ce71aac881", "a0178d1910d2fbc8"],
}
"""The same of prepared shards."""


@pytest.mark.parametrize("name", FORMS)
def test_prepared_shards(root, tmp_path, name):
    kind = name.partition(",")[0]
    form = from_data(Form, {"kind": kind, **FORMS[name]})
    rows = [Row(f"row {index}", values(name, index)) for index in range(30)]
    splits = {"train": RowSource.of(rows[:20]), "validation": RowSource.of(rows[20:])}
    prepare("some", form, splits, tokenizer(kind, root) if form.reads_text else None, tmp_path, shard_bytes=500)
    data = from_data(DataConfig, {"kind": "task", "path": str(tmp_path)}).load()
    assert digests(data) == PREPARED[name]
