from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from headjax.core.errors import ConfigError, DataError
from headjax.core.serialize import from_data, to_data
from headjax.data.stream import evaluation_batches, train_iterator
from headjax.data.task import DataConfig
from headjax.data.text_data import ParallelText
from headjax.data.text_rows import translation_pairs
from headjax.tokenizers.learned import byte_tokenizer

ENGLISH = ["one", "two dogs", "", "three cats sleep", "four"]
GERMAN = ["eins", "zwei Hunde", "leer", "drei Katzen schlafen", "vier"]
END = 256


@pytest.fixture
def prefix(tmp_path):
    for name in ("train", "val"):
        (tmp_path / f"{name}.en").write_text("\n".join(ENGLISH) + "\n")
        (tmp_path / f"{name}.de.gz").write_bytes(gzip.compress(("\n".join(GERMAN) + "\n").encode()))
    return str(tmp_path)


def config(prefix, **fields):
    return ParallelText(
        **{"train": f"{prefix}/train", "validation": f"{prefix}/val", "source": "en", "target": "de"} | fields
    )


def test_pairs_become_examples(prefix):
    data = config(prefix, max_length=24).load(byte_tokenizer())
    assert data.info["train"]["pairs"] == 4
    row = data.train[1]
    assert bytes(row["input_ids"][:8].astype(np.uint8)) == b"two dogs"
    assert row["input_ids"][8] == END
    assert row["attention_mask"].sum() == 9
    labels = row["labels"][row["labels"] != -100]
    assert bytes(labels[:-1].astype(np.uint8)) == b"zwei Hunde"
    assert labels[-1] == END
    assert row["labels"].shape == row["input_ids"].shape == (24,)
    assert data.validation.references == ("eins", "zwei Hunde", "drei Katzen schlafen", "vier")
    last = list(evaluation_batches(data.validation, 3))[-1]
    assert (last["labels"][1:] == -100).all()
    json.dumps(data.info)


def test_long_training_pairs_are_left_out_and_validation_is_cut(prefix):
    data = config(prefix, max_length=12).load(byte_tokenizer())
    assert data.info["train"] == data.info["train"] | {"pairs": 3, "left_out": 1}
    targets = [(data.validation[index]["labels"] != -100).sum() for index in range(4)]
    assert targets == [5, 11, 12, 5]
    with pytest.raises(DataError, match=r"train: no pair has at most 4 tokens on both sides$"):
        config(prefix, max_length=4).load(byte_tokenizer())


def test_a_pair_that_fits_exactly_is_kept(prefix):
    """`zwei Hunde` and the end are 11 tokens."""
    data = config(prefix, max_length=11).load(byte_tokenizer())
    assert data.info["train"] == data.info["train"] | {"pairs": 3, "left_out": 1}
    assert config(prefix, max_length=10).load(byte_tokenizer()).info["train"]["pairs"] == 2


def test_buckets_pad_both_sides_alike(prefix):
    data = config(prefix, max_length=24, buckets=(8, 16)).load(byte_tokenizer())
    iterator = train_iterator(data.train, 2, 0)
    batches = [next(iterator) for _ in range(8)]
    shapes = {tuple(batch[name].shape for name in ("input_ids", "labels")) for batch in batches}
    assert all(source == target for source, target in shapes)
    assert ((2, 8), (2, 8)) in shapes


def test_a_shared_vocabulary_is_learned(prefix):
    data = config(prefix, vocab_size=260).load()
    assert data.tokenizer.vocab_size == 260
    assert data.tokenizer.decode(data.train[0]["input_ids"]).startswith("one")
    with pytest.raises(ConfigError, match=r"^train: there is no text to learn a vocabulary from$"):
        config(prefix, train="").load()
    assert len(config(prefix, train="").load(byte_tokenizer()).train) == 0
    assert from_data(DataConfig, to_data(config(prefix))) == config(prefix)


def test_tables_hold_pairs_too(tmp_path):
    """With a header, and without one as MTNT has it: number, source, target."""
    rows = [f"{i}\t{pair[0]}\t{pair[1]}" for i, pair in enumerate(zip(ENGLISH, GERMAN, strict=True))]
    (tmp_path / "plain.tsv").write_text("\n".join(rows) + "\n")
    (tmp_path / "named.csv").write_text('de,en\neins,one\n"zwei, drei",two\n')
    plain = ParallelText(validation=f"{tmp_path}/plain.tsv", source="1", target="2").load(byte_tokenizer())
    assert plain.validation.references == ("eins", "zwei Hunde", "drei Katzen schlafen", "vier")
    named = ParallelText(validation=f"{tmp_path}/named.csv", source="en", target="de").load(byte_tokenizer())
    assert named.validation.references == ("eins", "zwei, drei")
    with pytest.raises(DataError, match=r"named\.csv: unknown column 'fr'"):
        ParallelText(validation=f"{tmp_path}/named.csv", source="en", target="fr").load(byte_tokenizer())


def test_files_must_belong_together(prefix, tmp_path):
    (tmp_path / "val.en").write_text("one\n")
    with pytest.raises(DataError, match=r"val.de.gz: 5 lines, but val.en has 1$"):
        config(prefix).load(byte_tokenizer())
    with pytest.raises(DataError, match=r"train.fr: no such file, packed or not$"):
        config(prefix, target="fr").load(byte_tokenizer())
    (tmp_path / "val.en").write_text("one\n\n\n\n\n")
    (tmp_path / "val.de.gz").write_bytes(gzip.compress(b"\nzwei\ndrei\n\n\n"))
    with pytest.raises(DataError, match=r"val: no line has text on both sides$"):
        list(translation_pairs(f"{prefix}/val", "en", "de"))
    with pytest.raises(ConfigError, match=r"^target: is the source's language too: en$"):
        config(prefix, target="en")


def test_real_pairs(data_dir):
    data = ParallelText(
        train=str(data_dir / "mt" / "multi30k" / "val"),
        validation=str(data_dir / "mt" / "multi30k" / "test_2016_flickr"),
        source="en",
        target="de",
        vocab_size=2000,
    ).load()
    assert data.info["validation"]["pairs"] == 1000
    assert data.info["train"]["pairs"] + data.info["train"]["left_out"] == 1014
    assert 0.2 < data.info["validation"]["words_per_token"] < 0.8
