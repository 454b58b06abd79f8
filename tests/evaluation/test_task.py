"""Tasks: every example is counted once, measured as by hand, drawn by seed, and padded no more than it must."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from headjax.data.examples import sequences, token_blocks
from headjax.evaluation import task as task_module
from headjax.evaluation.measures import Classes, Numbers, Similarities
from headjax.evaluation.paired import compare
from headjax.evaluation.task import measure_batch, reduce_batches
from headjax.heads import agreement
from tests import tiny
from tests.closeness import assert_close, close_to
from tests.data.vocabulary import TEXT, write_lines
from tests.tiny import text_encoder


@pytest.fixture(scope="module")
def sentences():
    generator = np.random.default_rng(0)
    return [" ".join(generator.choice(TEXT, generator.integers(1, 14))) for _ in range(22)]


@pytest.fixture(scope="module")
def table(folder, sentences):
    rows = [f"{sentence}\t{sentences[-i - 1]}\t{i % 3}" for i, sentence in enumerate(sentences[:11])]
    return str(write_lines(folder / "classes.tsv", "sentence\tsentence2\tlabel", *rows))


@pytest.fixture(scope="module")
def similarities(folder, sentences, tokenizer):
    """Pairs with similarities under STS-B's names."""
    (folder / "sts").mkdir()
    rows = [f"{sentence}\t{sentences[-i - 1]}\t{i % 6}" for i, sentence in enumerate(sentences[:11])]
    for name in ("train", "dev"):
        write_lines(folder / "sts" / f"{name}.tsv", "sentence1\tsentence2\tscore", *rows)
    return f"{folder}/sts"


@pytest.fixture(scope="module")
def plain(tokenizer):
    return text_encoder(headjax.tasks.NoTask(), tokenizer)


@pytest.fixture(scope="module")
def classifier(tokenizer):
    return text_encoder(headjax.tasks.Classification(classes=3), tokenizer)


def test_classification_counts_every_example_once_and_no_padding(classifier, table):
    task = headjax.load_task(table, classifier)
    found = headjax.measure_task(classifier, task, batch_size=4)
    source = task.data.validation
    logits = np.concatenate([classifier(batch).logits for batch in task.batches(4)])[:11]
    row = source[2]
    size = int(row["attention_mask"].sum())
    alone = {name: array[None, :size] for name, array in row.items() if name != "labels"}
    assert_close(classifier(alone).logits[0], logits[2], sums=tiny.SUMS)
    labels = np.arange(11) % 3
    right = logits.argmax(axis=1) == labels
    losses = -np.asarray(jax.nn.log_softmax(logits))[np.arange(11), labels]
    assert found.examples == 11  # and not the 12 rows of three batches
    assert found.metrics["accuracy"] == np.mean(right)
    assert found.metrics["loss"] == close_to(np.mean(losses), sums=tiny.SUMS)
    assert 0 < np.mean(right) < 1
    np.testing.assert_array_equal(task.measure.values(found.outcomes), np.float64(right))
    ranks = [list(np.argsort(-row)).index(label) for row, label in zip(logits, labels, strict=True)]
    assert found.outcomes["rank"].tolist() == ranks  # of which the top-5 accuracy is made
    assert set(found.metrics) == {"loss", "accuracy", "macro_f1", "matthews"}
    assert (task.primary_metric, task.higher_is_better) == ("accuracy", True)


def test_buckets_and_limits(classifier, table):
    task = headjax.load_task(table, classifier)
    plain = headjax.evaluate_task(classifier, task, batch_size=4)
    bucketed = headjax.evaluate_task(classifier, task, batch_size=4, buckets=(8, 16))
    assert bucketed == close_to(plain, sums=tiny.SUMS)
    lengths = [batch["input_ids"].shape[1] for batch in task.batches(4, buckets=(8, 16))]
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 1
    some = headjax.measure_task(classifier, task, limit=5, batch_size=4)
    whole = headjax.measure_task(classifier, task, batch_size=4)
    assert some.examples == 5
    assert_close(some.outcomes["loss"], whole.outcomes["loss"][:5], sums=tiny.SUMS)
    with pytest.raises(headjax.ConfigError, match=r"^limit: must not be negative, got -1$"):
        task.batches(4, limit=-1)
    assert (task.count_batches(4), task.count_batches(4, limit=5)) == (3, 2)
    assert task.count_batches(4, buckets=(8, 16)) == len(lengths) > 3
    assert task.count_batches(4, limit=5, buckets=(8, 16)) == len(list(task.batches(4, limit=5, buckets=(8, 16))))


def test_logits_of_a_large_vocabulary_are_read_in_parts(monkeypatch):
    """16 texts of 512 tokens have 8.6 GB of logits over Gemma 3's vocabulary."""
    config = tiny.decoder_config(vocab_size=300, window=(2, None), scale_embeddings=True)
    model = tiny.model(config).replace(tokenizer=headjax.byte_tokenizer())
    other = headjax.gated(model, {"decoder/0/0": 0.0})
    text = headjax.load_task("LICENSE", model, length=8)
    sizes, results = list[int](), []

    def measured(model, measure, compute, batch, output=None):
        sizes.append(len(batch["input_ids"]))
        return measure_batch(model, measure, compute, batch, output)

    monkeypatch.setattr(task_module, "measure_batch", measured)
    for rows in (8, 2):
        monkeypatch.setattr(agreement, "LOGITS", rows * 8 * 300 // agreement.LOSSES)
        found = compare((model, other), (text, text), limit=11, batch_size=8)
        ablated = headjax.ablate(model, text.batches(8, limit=11), heads=["decoder/0/0"]).ablated["loss"]
        results.append((found.first.outcomes["loss"], found.second.outcomes["loss"], found.agreement, ablated))
    assert sizes == [8] * 4 + [2] * 16
    for whole, parts in zip(*results, strict=True):
        assert_close(parts, whole, sums=tiny.SUMS)


def test_outcomes_serve_ablation(classifier, table):
    """Any metric after removing any head follows from per-example outcomes of one sweep."""
    task = headjax.load_task(table, classifier)
    found = headjax.ablate(classifier, task.batches(4), metrics=task.measure.of_model())
    for number in (1, 2):
        head = found.heads[number]
        metrics = task.measure.metrics({name: found.ablated[name][number] for name in task.measure.columns})
        masked = headjax.evaluate_task(headjax.gated(classifier, {head: 0.0}), task, batch_size=4)
        assert metrics == close_to({name: masked[name] for name in metrics}, sums=tiny.SUMS)


@pytest.mark.parametrize(
    ("spec", "output", "changed", "said"),
    [
        ("TABLE", headjax.tasks.Classification(classes=2), {}, r"classes\.tsv: row 4: .*'2'"),
        ("TABLE", headjax.tasks.NoTask(), {}, "^task: .*no_task; headjax finetune"),
        (
            "stsb:STS",
            headjax.tasks.Classification(classes=3),
            {},
            "^task: .*regression; .* classification of 3 classes",
        ),
        ("sentence_similarity:STS", headjax.tasks.Classification(classes=3), {}, "^task: .*sentence_similarity"),
        (
            "all:TABLE",
            headjax.tasks.Classification(classes=3),
            {"tokenizer": headjax.byte_tokenizer()},
            "^task: .*language model",
        ),
        ("TABLE", headjax.tasks.Classification(classes=3), {"tokenizer": None}, "^model: .*tokenizer"),
        ("sst", headjax.tasks.Classification(classes=3), {}, "^task: .*'sst'; did you mean 'sst2'"),
        ("missing.tsv", headjax.tasks.Classification(classes=3), {}, r"^missing\.tsv: "),
        ("ODD", headjax.tasks.Classification(classes=3), {}, r"odd\.csv: .* remark"),
    ],
)
def test_models_that_do_not_fit_and_unknown_specs(
    spec, output, changed, said, tokenizer, table, similarities, folder, monkeypatch
):
    monkeypatch.chdir(folder)
    odd = write_lines(folder / "odd.csv", "remark,label", "a,b")
    with pytest.raises(headjax.HeadjaxError, match=said):
        headjax.load_task(
            spec.replace("TABLE", table).replace("STS", similarities).replace("ODD", str(odd)),
            text_encoder(output, tokenizer).replace(**changed),
        )


def test_examples_without_targets_are_named():
    """By the task's name or file, also where there is no example at all."""
    for batches in ([], [(headjax.models.Loss(np.zeros(2), np.zeros(2)), {})]):
        with pytest.raises(headjax.DataError, match=r"^reviews\.tsv: "):
            reduce_batches(Numbers(), batches, "reviews.tsv")


def test_regression(tokenizer, similarities):
    regression = text_encoder(headjax.tasks.Regression(), tokenizer)
    task = headjax.load_task(f"stsb:{similarities}", regression)
    found = headjax.measure_task(regression, task, batch_size=4)
    logits = np.concatenate([regression(batch).logits[:, 0] for batch in task.batches(4)])[:11]
    labels = np.arange(11) % 6
    spread = np.abs(logits).max() / logits.std()
    assert_close(found.metrics["pearson"], np.corrcoef(logits, labels)[0, 1], sums=tiny.SUMS, scale=spread)
    assert found.metrics["loss"] == close_to(np.square(logits - labels).mean(), sums=tiny.SUMS)
    assert isinstance(task.measure, Numbers)
    batch = next(task.train_batches(4, seed=1))
    assert batch["labels"].dtype == np.float32
    assert batch["input_ids"].shape == (4, task.data.train.length)


def test_similarity_is_that_of_sentences_read_alone(plain, tokenizer, similarities, sentences):
    task = headjax.load_task(f"sentence_similarity:{similarities}", plain)
    assert isinstance(task.measure, Similarities)
    found = headjax.measure_task(plain, task, batch_size=4)

    def embedding(text):
        (ids,) = tokenizer.encode([text])
        ids = np.concatenate([[tokenizer.special_id("cls_token")], ids, [tokenizer.special_id("sep_token")]])
        mean = np.asarray(plain({"input_ids": ids[None].astype(np.int32)}).hidden[0]).mean(axis=0)
        return mean / np.linalg.norm(mean)

    cosine = embedding(sentences[5]) @ embedding(sentences[-6])
    assert_close(found.outcomes["prediction"][5], cosine, sums=tiny.SUMS, scale=1.0)
    labels = np.arange(11) % 6 / 5
    assert_close(found.outcomes["label"], labels, sums=1)
    assert found.metrics["loss"] == close_to(np.square(found.outcomes["prediction"] - labels).mean(), sums=tiny.SUMS)


def test_similarity_scores_heads_and_has_finite_gradients_at_padding(plain, similarities):
    task = headjax.load_task(f"sentence_similarity:{similarities}", plain)
    fitted = task.fit(plain)
    assert fitted.num_parameters == plain.num_parameters
    scores = headjax.score_heads(fitted, task.batches(4), statistics=())
    assert scores.examples == 11
    assert min(scores.values["importance"].values()) > 0
    last = list(task.batches(4))[-1]
    assert np.isnan(last["labels"]).any()
    assert np.isfinite(task.measure.outcomes(fitted(last), last)["label"]).all()  # or `ablate` refuses the batch

    def loss(params):
        return fitted.losses(fitted.replace(params=params).forward(last), last).mean()

    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(jax.jit(jax.grad(loss))(fitted.params)))


LENGTHS = (3, 9, 5, 12, 2, 7)


@pytest.fixture(scope="module")
def task():
    """Example i consists of the token i alone, and has it as its label."""
    ids = [np.full(length, i, np.int32) for i, length in enumerate(LENGTHS)]
    rows = sequences({"input_ids": ids}, {"labels": np.arange(len(LENGTHS))}, padding_id=99)
    return headjax.Task("some", headjax.data.TaskData(None, rows, rows, {}), Classes())


def drawn(batches):
    return [int(label) for batch in batches for label in batch["labels"] if label != -100]


def test_a_sample_is_seeded_and_without_replacement(task):
    first = drawn(task.sample(4, 3))
    assert len(set(first)) == len(first) == 4
    assert first == drawn(task.sample(4, 3))
    assert sorted(drawn(task.sample(100, 3))) == list(range(6))
    assert len({tuple(drawn(task.sample(3, 3, seed=seed))) for seed in range(5)}) > 1
    blocks = dataclasses.replace(task, data=task.data._replace(train=token_blocks(np.arange(40), 4)))
    starts = [row[0] for batch in blocks.sample(5, 2) for row in batch["input_ids"] if row.any()]
    assert len(set(starts)) == len(starts)
    assert all(start % 4 == 0 for start in starts)
    with pytest.raises(headjax.ConfigError, match=r"^count: "):
        task.sample(0)
    empty = dataclasses.replace(task, data=task.data._replace(train=task.data.train.select(np.arange(0))))
    for draw in (lambda: empty.sample(3), empty.train_batches):
        with pytest.raises(headjax.DataError, match=r"^some: "):
            draw()


def test_buckets_pad_less_and_lose_nothing(task):
    batches = task.sample(6, 2, buckets=(5,))
    assert {batch["input_ids"].shape for batch in batches} == {(2, 5), (2, 16)}
    assert sorted(drawn(batches)) == list(range(6))
    for batch in batches:
        own = batch["attention_mask"] == 1
        assert (batch["input_ids"] == batch["labels"][:, None])[own].all()
    iterator = task.train_batches(2, buckets=(8,))
    assert {next(iterator)["input_ids"].shape[1] for _ in range(12)} == {8, 16}
