"""Examples in batches: every one once an epoch, resumed exactly, padded where it does not matter."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headjax
from headjax.core.programs import Share
from headjax.data import stream
from headjax.data.examples import Drawn, sequences, token_blocks
from headjax.data.forms import ImageForm, PretrainingForm
from headjax.data.rows import Row
from headjax.data.stream import train_iterator
from tests.data.making import train
from tests.selected import first


class Numbers:
    """A source that counts: example i is i."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"input_ids": np.asarray([index], np.int32)}


def take(iterator, count):
    return [next(iterator)["input_ids"][:, 0].tolist() for _ in range(count)]


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


@pytest.fixture(scope="module")
def buckets():
    generator = np.random.default_rng(0)
    ids = [np.full(generator.integers(1, 33), number + 1, np.int32) for number in range(60)]
    rows = sequences({"input_ids": ids}, {"labels": np.arange(60)})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stream, "WINDOW", 3)
        yield dataclasses.replace(rows, bounds=(8, 16))


@pytest.fixture(scope="module")
def sources(buckets, prepared_films, wordpiece):
    """Sources of examples; the last two draw an example anew each time."""
    text = "It was not very dull. The film was good. It was fun. "
    rows = [Row(f"text {i}", {"text": text * (2 + i)}) for i in range(6)]
    names = tuple(map(str, range(4)))
    form = ImageForm(size=16, stored=20, mean=(0.5,) * 3, deviation=(0.25,) * 3, classes=names, flip=True)
    pixels = np.random.default_rng(0).integers(0, 256, (6, 20, 20, 3)).astype(np.uint8)
    images = [{"image": image, "labels": np.asarray([i % 4], np.int32)} for i, image in enumerate(pixels)]
    return {
        "numbers": Numbers(22),
        "buckets": buckets,
        "shards": headjax.data.DataConfig(task=str(prepared_films)).load().train,
        "masks": train(PretrainingForm(length=32, max_predictions=5), wordpiece, rows),
        "images": Drawn(images, form.cropped),
    }


@pytest.mark.parametrize("name", first(2, ["shards", "buckets", "numbers", "masks", "images"]))
def test_the_position_alone_decides(sources, name):
    """Exactly the same batches, within and across epochs, of threads and processes, and of an iterator set back."""
    source = sources[name]

    def started(**options):
        return train_iterator(source, 4, 3, **options)

    def batches(iterator, count):
        return [next(iterator) for _ in range(count)]

    whole = batches(started(), 20)
    assert not same(whole, batches(train_iterator(source, 4, 4), 20))
    for stop, threads in ((0, 2), (2, 0), (5, 2), (6, 0), (11, 2), (17, 0)):
        first, again = started(threads=threads), started(threads=threads)
        assert same(batches(first, stop), whole[:stop])
        state = json.loads(json.dumps(first.get_state()))
        next(again)  # a used iterator may be set back too
        again.set_state(state)
        halves = [started(share=Share(index, 2)) for index in (0, 1)]
        for half in halves:
            half.set_state(state)
        parts = zip(*(batches(half, 20 - stop) for half in halves), strict=True)
        joined = [{key: np.concatenate([part[key] for part in both]) for key in both[0]} for both in parts]
        for found in (batches(again, 20 - stop), batches(first, 20 - stop), joined):
            assert same(found, whole[stop:])


def same(batches, others):
    """Whether batches are equal in every array."""
    pairs = zip(batches, others, strict=True)
    return all(one.keys() == two.keys() and all(np.array_equal(one[k], two[k]) for k in one) for one, two in pairs)


@pytest.mark.parametrize("counts", [(1,), (2,), (4,), (1, 2, 4), (4, 1), (2, 4, 1)])
def test_an_epoch_over_processes_whose_number_changes(counts):
    """50 examples in batches of 8, four epochs; the number of processes changes in the middle of epochs."""
    state, read = None, []
    for stage in range(5):
        count = counts[stage % len(counts)]
        iterators = [train_iterator(Numbers(50), 8, 1, share=Share(i, count)) for i in range(count)]
        for iterator in iterators:
            if state is not None:
                iterator.set_state(state)
        for _ in range(5):
            read += flat(flat(take(iterator, 1)) for iterator in iterators)
        states = [json.loads(json.dumps(iterator.get_state())) for iterator in iterators]
        assert all(each == states[0] for each in states)
        state = states[0]
    assert read == flat(take(train_iterator(Numbers(50), 8, 1), 25))
    epochs = [read[start : start + 50] for start in range(0, 200, 50)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(50))
    assert len({tuple(epoch) for epoch in epochs}) == 4


@settings(max_examples=20)
@given(count=st.integers(1, 20), batch_size=st.integers(1, 9))
def test_evaluation_reads_every_example_once_in_one_shape(count, batch_size):
    batches = list(headjax.evaluation_batches(token_blocks(np.arange(2 * count) + 7, 2), batch_size))
    assert len(batches) == -(-count // batch_size)
    assert {(name, array.shape, array.dtype) for batch in batches for name, array in batch.items()} == {
        (name, (batch_size, 2), np.dtype(np.int32)) for name in ("input_ids", "attention_mask", "labels")
    }
    joined = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    np.testing.assert_array_equal(joined["input_ids"][:count].ravel(), np.arange(2 * count) + 7)
    np.testing.assert_array_equal(joined["labels"][:count], joined["input_ids"][:count])
    assert joined["attention_mask"][:count].all()
    assert not joined["attention_mask"][count:].any()
    assert (joined["labels"][count:] == -100).all()


def test_evaluation_keeps_what_the_source_says():
    row = {"input_ids": np.asarray([5, 6, 0]), "attention_mask": np.asarray([1, 1, 0]), "start_positions": np.int32(1)}
    rows = [row | {"labels": np.int32(i)} for i in range(3)]
    first, last = headjax.evaluation_batches(rows, 2)
    assert first["labels"].tolist() == [0, 1]
    assert last["labels"].tolist() == [2, -100]
    assert last["start_positions"].tolist() == [1, -100]
    assert last["attention_mask"].tolist() == [[1, 1, 0], [0, 0, 0]]
    (images,) = headjax.evaluation_batches([{"pixel_values": np.ones((2, 2)), "labels": np.int32(4)}], 2)
    assert set(images) == {"pixel_values", "labels"}
    assert images["pixel_values"].shape == (2, 2, 2)


def test_batches_of_one_length_bucket_have_little_padding(buckets):
    def epoch(source, start):
        iterator = train_iterator(source, 4, 5)
        return [next(iterator) for _ in range(start + 15)][start:]

    first, again = epoch(buckets, 0), epoch(buckets, 15)
    labels, later = (np.concatenate([batch["labels"] for batch in batches]) for batches in (first, again))
    assert sorted(labels) == sorted(later) == list(range(60))
    assert (later != labels).any()
    for batch in first:
        np.testing.assert_array_equal(batch["input_ids"][:, 0], batch["labels"] + 1)
        length, longest = batch["input_ids"].shape[1], batch["attention_mask"].sum(axis=1).max()
        assert length == min(end for end in (8, 16, 32) if end >= longest)
    unsorted = epoch(dataclasses.replace(buckets, bounds=()), 0)
    padded, plain = (sum(batch["input_ids"].size for batch in batches) for batches in (first, unsorted))
    assert padded < 0.8 * plain
    with pytest.raises(headjax.ConfigError, match=r"^buckets: "):
        train_iterator(dataclasses.replace(buckets, bounds=(0, 8)), 4, 5)
