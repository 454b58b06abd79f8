"""Tasks by name and by file: a model's class names are the contract for labels, and any file can be evaluated on."""

import json

import numpy as np
import pytest

import headjax
from tests import tiny
from tests.closeness import close_to
from tests.command_line import main
from tests.data.making import labels
from tests.data.vocabulary import TEXT, WORDS, film_tokenizer, write_lines, write_vocabulary
from tests.hub.directories import BERT, model_of, rewrite
from tests.tiny import MAX_LENGTH, decoder_config
from tests.training.runs import one_device


def imported(folder, names=None, labels=2):
    """An imported classifier whose `config.json` names its classes so."""
    model = model_of({**BERT, "vocab_size": len(WORDS), "max_position_embeddings": 32, "num_labels": labels})
    headjax.to_huggingface(model.replace(tokenizer=film_tokenizer(folder)), folder / "hf")
    if names is not None:
        id2label = {str(number): name for number, name in enumerate(names)}
        rewrite(folder / "hf", id2label=id2label, label2id={name: int(number) for number, name in id2label.items()})
    model = headjax.from_huggingface(folder / "hf")
    return model.replace(tokenizer=film_tokenizer(folder))


def sentences(count):
    generator = np.random.default_rng(0)
    return [" ".join(generator.choice(TEXT, generator.integers(2, 9))) for _ in range(count)]


def balanced(model, texts, folder):
    """The model with a bias such that it gives half of the texts to either class, and the class number of each."""
    rows = [f"{text}\t{i % 2}" for i, text in enumerate(texts)]
    path = write_lines(folder / "plain.tsv", "sentence\tlabel", *rows)
    source = headjax.data.DataConfig(task=f"classification:{path}", whole=True).load(model.tokenizer).validation
    batch = {name: np.stack([row[name] for row in source]) for name in source[0]}
    logits = np.asarray(model(batch).logits)
    margin = logits[:, 1] - logits[:, 0]
    output = model.params["output"]
    bias = np.asarray(output["bias"]) - np.float32([0, np.median(margin)])
    model = model.replace(params={**model.params, "output": {**output, "bias": bias}})
    return model, (margin > np.median(margin)).astype(int)


@pytest.mark.parametrize("names", [("positive", "negative"), ("negative", "positive"), ("NEGATIVE", "POSITIVE")])
def test_words_are_the_models_classes(tmp_path, names):
    """A file that gives the model's own answers in words has an accuracy of 1, whatever number a word has."""
    texts = sentences(12)
    model, numbers = balanced(imported(tmp_path, names), texts, tmp_path)
    said = [names[number].lower() for number in numbers]
    assert len(set(said)) == 2
    path = write_lines(tmp_path / "a.tsv", "sentence\tlabel", *(f"{t}\t{s}" for t, s in zip(texts, said, strict=True)))
    task = headjax.load_task(str(path), model)
    assert headjax.evaluate_task(model, task)["accuracy"] == 1.0
    assert task.measure.names == names
    # A class that the file does not hold keeps its number.
    some = [f"{text}\tpositive" for text, word in zip(texts, said, strict=True) if word == "positive"]
    path = write_lines(tmp_path / "b.tsv", "sentence\tlabel", *some)
    assert headjax.evaluate_task(model, headjax.load_task(str(path), model))["accuracy"] == 1.0


@pytest.mark.parametrize(
    "names, labels",
    [
        (("positive", "negative"), ("neutral", "1", "positiv")),
        (None, ("5", "good", "-2")),
        (("LABEL_0", "LABEL_1"), ("2",)),
    ],
)
def test_other_labels_are_refused(tmp_path, names, labels):
    model, good = imported(tmp_path, names), names[0] if names else "1"
    for label in labels:
        path = write_lines(tmp_path / "a.tsv", "sentence\tlabel", f"good\t{good}", f"bad\t{label}")
        with pytest.raises(headjax.DataError, match=rf"a\.tsv: row 3: .*'{label}'"):
            headjax.load_task(str(path), model)
    rows = [json.dumps({"sentence": "fun", "label": label}) for label in (good, None, -1)]
    with pytest.warns(UserWarning, match=r"a\.jsonl: .* 2 of 3 "):
        assert headjax.load_task(str(write_lines(tmp_path / "a.jsonl", *rows)), model).count() == 1
    rows = ("sentence1\tsentence2\tgold_label", "good\tbad\tneutral", "good\tbad\t-")
    (tmp_path / "MNLI").mkdir(exist_ok=True)
    for name in ("train", "dev_matched"):
        write_lines(tmp_path / "MNLI" / f"{name}.tsv", *rows)
    with pytest.warns(UserWarning, match=r"label.* 1 of 2 in train, 1 of 2 in validation"):
        assert headjax.load_task(f"mnli:{tmp_path}/MNLI", imported(tmp_path, labels=3)).count() == 1


def glue(folder, name, *rows):
    (folder / name).mkdir()
    for split in ("train", "dev"):
        write_lines(folder / name / f"{split}.tsv", *rows)
    return f"{folder}/{name}"


def test_glue_is_numbered_as_the_model_is(tmp_path):
    """MNLI and others are published with their classes in several orders."""
    path = glue(tmp_path, "RTE", "sentence1\tsentence2\tlabel", "good\tbad\tentailment", "good\tbad\tnot_entailment")
    task = headjax.load_task(f"rte:{path}", imported(tmp_path, ("NOT_ENTAILMENT", "ENTAILMENT")))
    assert labels(task.data.validation) == [1, 0]
    assert labels(headjax.load_task(f"rte:{path}", imported(tmp_path)).data.validation) == [0, 1]
    with pytest.raises(headjax.DataError, match=r"^rte: .*yes, no"):
        headjax.load_task(f"rte:{path}", imported(tmp_path, ("yes", "no")))


def test_f1_is_that_of_the_positive_class(tmp_path):
    rows = ("index\tid\tid\t#1 String\t#2 String\tQuality", "0\t1\t2\tgood\tbad\t1", "0\t1\t2\tfun\tdull\t0")
    path = glue(tmp_path, "MRPC", rows[0].replace("\tid\tid", ""), *(row.replace("\t1\t2", "") for row in rows[1:]))
    plain = imported(tmp_path)
    expected = headjax.evaluate_task(plain, headjax.load_task(f"mrpc:{path}", plain))
    # The same model with its classes exchanged.
    output = {name: array[..., ::-1] for name, array in plain.params["output"].items()}
    config = imported(tmp_path, ("equivalent", "not_equivalent")).config
    exchanged = plain.replace(config=config, params={**plain.params, "output": output})
    assert headjax.evaluate_task(exchanged, headjax.load_task(f"mrpc:{path}", exchanged)) == close_to(
        expected, sums=tiny.SUMS
    )


def run_config(folder, train_file, held, steps=60, **model):
    data = headjax.data.DataConfig(
        task=f"classification:{folder / train_file}", validation=str(folder / held), length=16,
        tokenizer=str(write_vocabulary(folder)),
    )  # fmt: skip
    return headjax.TrainConfig(
        data=data, batch_size=16, steps=steps, tensorboard=False,
        optimizer=headjax.AdamW(schedule=headjax.ConstantRate(peak=0.01)), **model,
    )  # fmt: skip


def train(config, folder):
    """Trains on one device, for which a step compiles faster."""
    with one_device():
        return headjax.train(config, folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A classifier of words, fine-tuned on two files that name their classes in different orders."""
    folder = tmp_path_factory.mktemp("trained")
    texts = sentences(80)
    rows = [f"{text}\t{'sunny' if 'good' in text.split() else 'cloudy'}" for text in texts]
    write_lines(folder / "train.tsv", "sentence\tlabel", *rows)
    write_lines(folder / "dev.tsv", "sentence\tlabel", *sorted(rows[:30], key=lambda row: "cloudy" in row))
    config = headjax.EncoderConfig(
        attention=tiny.multi_head(), hidden=32, vocab_size=len(WORDS), max_length=16, width=16,
        num_layers=1, dropout=0.0, attention_dropout=0.0, task=headjax.tasks.Classification(classes=2),
    )  # fmt: skip
    result = train(run_config(folder, "train.tsv", "dev.tsv", model=config), folder / "run")
    return folder, result, rows


@pytest.mark.whole
def test_a_fine_tuned_model_keeps_its_classes(trained, tmp_path):
    folder, result, rows = trained
    assert result.metrics["accuracy"] > 0.9
    stored = json.loads((folder / "run" / "model" / "config.json").read_text())["model"]["task"]
    assert stored["names"] == ["cloudy", "sunny"]
    # A file of one class, and one that begins with the other class, give the same accuracies.
    model = headjax.load(folder / "run" / "model")
    sunny = [row for row in rows if row.endswith("sunny")]
    path = write_lines(tmp_path / "sunny.tsv", "sentence\tlabel", *sunny)
    assert headjax.evaluate_task(model, headjax.load_task(str(path), model))["accuracy"] > 0.9
    headjax.to_huggingface(model, tmp_path / "hf")
    fields = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert fields["id2label"] == {"0": "cloudy", "1": "sunny"}
    assert fields["label2id"] == {"cloudy": 0, "sunny": 1}
    back = headjax.from_huggingface(tmp_path / "hf").replace(tokenizer=model.tokenizer)
    assert headjax.evaluate_task(back, headjax.load_task(str(path), back))["accuracy"] > 0.9


def test_a_second_task_is_matched_with_the_first(trained, tmp_path):
    folder, _, _ = trained
    write_lines(folder / "wet.tsv", "sentence\tlabel", "good\tsunny", "bad\trainy")
    start = str(folder / "run" / "model")
    with pytest.raises(headjax.DataError, match=r"wet\.tsv: row 3: .*'rainy'"):
        train(run_config(folder, "wet.tsv", "wet.tsv", start=start), tmp_path / "wet")
    fresh = {"start": start, "task": headjax.tasks.Classification(classes=2)}
    assert not (tmp_path / "wet").exists()
    config = run_config(folder, "wet.tsv", "wet.tsv", steps=1, **fresh)
    assert train(config, tmp_path / "fresh").model.config.task.names == ("rainy", "sunny")
    with pytest.raises(headjax.DataError, match=r"wet\.tsv: row 3: .*'rainy'"):  # which training never saw
        run_config(folder, "train.tsv", "wet.tsv", **fresh).data.load()


def test_a_model_that_always_predicts_one_class_says_so(tmp_path, capsys):
    """In `evaluate`, after training and in the history; nothing is said where both classes are predicted."""
    model, texts = imported(tmp_path, ("good", "bad")), sentences(12)
    fair, _ = balanced(model, texts, tmp_path)
    path = write_lines(
        tmp_path / "a.tsv", "sentence\tlabel", *(f"{text}\t{('good', 'bad')[i % 2]}" for i, text in enumerate(texts))
    )
    output = fair.params["output"]
    stuck = fair.replace(params={**fair.params, "output": {**output, "bias": np.float32([0.0, 1e3])}})
    note = "The model always predicts one class, bad, on 12 examples."
    for given, notes in ((fair, False), (stuck, True)):
        given.save(tmp_path / "model")
        assert main(["evaluate", str(tmp_path / "model"), "--task", str(path)]) == 0
        assert (note in capsys.readouterr().out) is notes
    result = train(run_config(tmp_path, "a.tsv", "a.tsv", steps=1, start=str(tmp_path / "model")), tmp_path / "run")
    assert result.notes == tuple(result.model.history[-1]["notes"]) == (note,)


def test_names_of_another_output_do_not_come_back(tmp_path):
    """An imported model with a fresh output of as many classes has lost the names of the old one."""
    model = imported(tmp_path, ("positive", "negative"))
    headjax.to_huggingface(headjax.with_task(model, headjax.tasks.Classification(classes=2)), tmp_path / "out")
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert fields["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}


def test_a_text_is_whole_where_no_heads_are_chosen_on_it(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(f"paragraph {i}: " + "some words of it " * (3 + i % 5) for i in range(60)))
    decoder = tiny.model(decoder_config(vocab_size=257)).replace(tokenizer=headjax.byte_tokenizer())
    whole = headjax.load_task(str(path), decoder, split="all")
    assert (whole.split, len(whole.data.train)) == ("all", 0)
    assert whole.count() == (path.stat().st_size + 1) // MAX_LENGTH
    assert headjax.load_task(f"all:{path}", decoder).count() == whole.count()
    held, task = headjax.load_task(f"heldout:{path}", decoder, split="all"), headjax.load_task(str(path), decoder)
    assert held.split == "validation"
    assert held.count() == task.count() < whole.count() / 4
    with pytest.raises(headjax.HeadjaxError, match=r"^split: .*'most'"):
        headjax.load_task(str(path), decoder, split="most")
    assert task.data.validation[0]["input_ids"].shape == (MAX_LENGTH,)
    metrics = headjax.evaluate_task(decoder, task, limit=8)
    assert metrics["perplexity"] == pytest.approx(np.exp(metrics["loss"]))
    assert metrics["bits_per_byte"] == pytest.approx(metrics["loss"] / np.log(2), rel=0.05)  # a token is a byte
    assert metrics["word_perplexity"] > metrics["perplexity"]
    assert (task.primary_metric, task.higher_is_better) == ("perplexity", False)


@pytest.mark.parametrize("columns", ["sentence1\tsentence2\tscore", "sentence\tsentence2\tlabel"])
def test_any_table_of_pairs_with_a_score_has_similarities(tmp_path, tokenizer, columns):
    path = write_lines(tmp_path / "pairs.tsv", columns, "good film\tfun film\t4", "bad\tgood\t0", "dull\tnot fun\t3.5")
    plain = tiny.text_encoder(headjax.tasks.NoTask(), tokenizer)
    for spec in (str(path), f"sentence_similarity:{path}"):
        task = headjax.load_task(spec, plain)
        np.testing.assert_array_equal(labels(task.data.validation), np.float32([1.0, 0.0, 0.875]))
        assert -1.0 <= headjax.evaluate_task(plain, task)["spearman"] <= 1.0
    numbers = headjax.load_task(str(path), tiny.text_encoder(headjax.tasks.Regression(), tokenizer))
    np.testing.assert_array_equal(labels(numbers.data.validation), np.float32([4.0, 0.0, 3.5]))


def test_length_is_that_of_each_sentence_of_a_pair(tmp_path, tokenizer):
    """Of a table and of STS-B's folder; a pair may be longer than the model's positions, which begin again."""
    text = " ".join(TEXT[:6])
    path = write_lines(tmp_path / "pairs.tsv", "sentence1\tsentence2\tscore", f"{text}\t{text}\t4", f"{text}\tgood\t1")
    folder = glue(tmp_path, "STS-B", "sentence1\tsentence2\tscore", f"{text}\t{text}\t4", f"{text}\tgood\t1")
    model = tiny.text_encoder(headjax.tasks.NoTask(), tokenizer, max_length=6)
    for spec in (str(path), f"sentence_similarity:{path}", f"sentence_similarity:{folder}"):
        for length in (0, 5):
            task = headjax.load_task(spec, model, length)
            held = task.data.validation[0]
            assert [(held["segment_ids"] == number).sum() for number in (1, 2)] == [length or 6] * 2
            assert headjax.evaluate_task(model, task)["pearson"] <= 1.0


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("sentence1\tsentence2\tscore", "good\tbad\tfar", "fun\tfun\t1"), r"table\.tsv: row 2: .*'far'"),
        (("sentence\tscore", "good\t1"), r"table\.tsv: "),
    ],
)
def test_scores_are_numbers_and_pairs_are_pairs(lines, said, tokenizer, tmp_path):
    path = write_lines(tmp_path / "table.tsv", *lines)
    with pytest.raises(headjax.DataError, match=said):
        headjax.load_task(f"sentence_similarity:{path}", tiny.text_encoder(headjax.tasks.NoTask(), tokenizer))


@pytest.mark.parametrize("names", [(), ("bad", "dull", "good")])
def test_a_class_that_does_not_occur_is_no_obstacle(tmp_path, tokenizer, names):
    """Numbers are class numbers where there are no names, also by the names that Hugging Face invents."""
    given = ("good", "bad") if names else ("2", "LABEL_0")
    rows = [f"{word} film\t{label}" for word in ("a", "the") for label in given]
    path = write_lines(tmp_path / "two.tsv", "sentence\tlabel", *rows)
    classifier = tiny.text_encoder(headjax.tasks.Classification(classes=3, names=names), tokenizer)
    task = headjax.load_task(str(path), classifier)
    assert labels(task.data.validation) == [2, 0, 2, 0]
    assert set(headjax.evaluate_task(classifier, task)) == {"loss", "accuracy", "macro_f1", "matthews"}


def test_wikitext2_takes_its_protocol_from_the_name(tmp_path):
    (tmp_path / "wiki.valid.raw").write_text(" = Heads = \n" * 20)
    (tmp_path / "wiki.train.raw").write_text(" = Heads = \n \n Words . \n" * 20)
    model = tiny.model(decoder_config(vocab_size=257)).replace(tokenizer=headjax.byte_tokenizer())
    task = headjax.load_task(f"wikitext2:{tmp_path},context=10,stride=4", model)
    assert (task.data.validation.context, task.data.validation.stride, task.split) == (10, 4, "validation")
    assert headjax.load_task(f"wikitext2:{tmp_path}", model).data.validation.context == MAX_LENGTH
    assert headjax.load_task(f"wikitext2:{tmp_path},context=8", model, split="train").split == "train"
    (tmp_path / "wiki.train.raw").unlink()
    assert headjax.load_task(f"wikitext2:{tmp_path},context=8", model, split="all").split == "validation"
    for words, message in {
        "context=99": "context: 99",
        "context=x": "wikitext2 argument context: .*'x'",
        "contxt=8": "'contxt'; did you mean 'context'",
        "context=8": "wiki.train.raw",
    }.items():
        with pytest.raises(headjax.HeadjaxError, match=message):
            headjax.load_task(f"wikitext2:{tmp_path},{words}", model)
