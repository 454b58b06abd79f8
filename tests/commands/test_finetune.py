"""`headjax finetune`: the task of one's own files, a learning curve, no leftovers, and a run that goes on."""

import contextlib
import json
import os
import signal

import numpy as np
import pytest

from headjax.cli import main
from headjax.commands import finetune
from headjax.commands.own_data import OwnFiles, find_lesson
from headjax.core.errors import INTERRUPTED, DataError, HeadjaxError
from headjax.data.labelled_text import TextClassification, TextSimilarity
from headjax.models.encoder import Bert
from headjax.models.encoder_decoder import Translation
from headjax.models.model import Model, load
from headjax.models.recipe import with_task
from headjax.models.sublayers import Dense
from headjax.models.tasks import Classification, Regression, SentenceSimilarity
from headjax.storage.paths import path_of
from headjax.tokenizers.learned import byte_tokenizer
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests import tiny
from tests.commands.language_folder import write_language_folder
from tests.data.vocabulary import TEXT, WORDS, write_lines, write_vocabulary
from tests.test_cli import error_of

CONFIG = Bert(
    attention=tiny.multi_head(), feed_forward=Dense(32), vocab_size=257, max_length=64, width=16, num_layers=1
).build()


def bare_encoder(output=None):
    """An bare_encoder without parameters; they are not read here."""
    model = Model(CONFIG, {}, tokenizer=byte_tokenizer())
    return model if output is None else model.replace(config=with_task(model, output).config)


def lesson(path, model=None, **fields):
    return find_lesson(bare_encoder() if model is None else model, OwnFiles(train=str(path), **fields))


def test_labels_become_classes_in_order(tmp_path):
    found = lesson(write_lines(tmp_path / "a.tsv", "text\tclass", "x\tred", "y\tblue", "z\tred"))
    assert (found.task, found.output) == ("classification", Classification(classes=2, names=("blue", "red")))
    assert isinstance(found.data, TextClassification)
    assert (found.data.classes, found.data.max_length, found.data.buckets) == (("blue", "red"), 64, (32,))
    assert found.division == f"about 10% of {tmp_path / 'a.tsv'}: rows, by the hash of their first text"
    numbers = lesson(write_lines(tmp_path / "n.tsv", "text\tclass", "x\t10", "y\t9"))
    assert numbers.output == Classification(classes=2, names=("9", "10"))
    plain = lesson(write_lines(tmp_path / "p.tsv", "text\tclass", "x\t1", "y\t0"))
    assert plain.output == Classification(classes=2)
    by_number = lesson(write_lines(tmp_path / "h.tsv", "red\tx", "blue\ty"), columns=("1", "0"))
    assert by_number.output == found.output


def test_a_model_keeps_the_output_that_it_has_for_the_labels(tmp_path):
    path = write_lines(tmp_path / "a.tsv", "text\tlabel", "x\tred", "y\tblue")
    named = lesson(path, bare_encoder(Classification(classes=3, names=("red", "green", "blue"))))
    assert named.output is None
    assert named.data.classes == ("red", "green", "blue")
    other = lesson(path, bare_encoder(Classification(classes=2, names=("good", "bad"))))
    assert other.output == Classification(classes=2, names=("blue", "red"))
    assert lesson(path, bare_encoder(Classification(classes=2))).output == other.output
    plain = write_lines(tmp_path / "p.tsv", "text\tlabel", "x\t1", "y\t0")
    assert lesson(plain, bare_encoder(Classification(classes=2))).output is None
    assert lesson(plain, bare_encoder(Classification(classes=3))).output == Classification(classes=2)
    assert lesson(plain, bare_encoder(Regression())).task == "regression"


def test_scores_of_pairs_are_similarities_divided_by_the_largest(tmp_path):
    path = write_lines(tmp_path / "a.tsv", "text1\ttext2\tscore", "x\ty\t2", "x\tz\t5")
    found = lesson(path)
    assert (found.task, found.output) == ("similarity", SentenceSimilarity())
    assert isinstance(found.data, TextSimilarity)
    assert (found.data.scale, found.data.max_length) == (5.0, 32)
    assert lesson(path, bare_encoder(SentenceSimilarity())).output is None
    assert lesson(path, task="regression").output == Regression()
    assert lesson(path, task="pairs").task == "pairs"
    longer = write_lines(tmp_path / "b.tsv", "text1\ttext2\tscore", "x\ty\t8")
    assert lesson(path, validation=str(longer)).data.scale == 8.0
    assert lesson(path, validation=str(longer)).division == str(longer)


def test_unusable_requests_are_named(tmp_path):
    path = write_lines(tmp_path / "a.tsv", "text\tlabel", "x\tred", "y\tblue")
    with pytest.raises(
        HeadjaxError, match=r"^--task: this model can be fine-tuned for classification, .*, not for text$"
    ):
        lesson(path, task="text")
    with pytest.raises(HeadjaxError, match="no tokenizer"):
        lesson(path, bare_encoder().replace(tokenizer=None))
    with pytest.raises(DataError, match=r"^--columns: "):
        lesson(path, columns=("text",))
    with pytest.raises(DataError, match=r"similarity need a column of second texts"):
        lesson(path, task="similarity")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models without an output of their own, and files of every task."""
    folder = tmp_path_factory.mktemp("finetune")
    write_language_folder(folder, max_length=32)
    recipe = Bert(
        attention=tiny.multi_head(), feed_forward=Dense(32), vocab_size=len(WORDS), max_length=96, width=16,
        num_layers=1, dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    tokenizer = wordpiece_tokenizer(write_vocabulary(folder))
    tiny.model(recipe.build()).replace(tokenizer=tokenizer).save(folder / "encoder")
    recipe = Translation(
        vocab_size=257, width=tiny.WIDTH, num_layers=1, attention=tiny.multi_head(4), feed_forward=Dense(24)
    )
    tiny.model(recipe.build()).replace(tokenizer=byte_tokenizer()).save(folder / "translation")
    generator = np.random.default_rng(0)
    films = [" ".join(generator.choice(TEXT[:12], generator.integers(2, 12))) for _ in range(96)]
    said = ["good" if "good" in film.split() else "bad" for film in films]
    write_lines(folder / "films.tsv", "sentence\tlabel", *(f"{f}\t{s}" for f, s in zip(films, said, strict=True)))
    write_lines(folder / "good.tsv", "sentence\tlabel", "good film\tgood", "a good film\tgood")
    pairs = (f"{film}\t{film}\t{word}" for film, word in zip(films, said, strict=True))
    write_lines(folder / "pairs.tsv", "premise\thypothesis\tlabel", *pairs)
    write_lines(folder / "scored.tsv", "sentence1\tsentence2\tscore", *(f"{f}\tgood film\t{len(f) % 5}" for f in films))
    write_lines(folder / "numbers.tsv", "text\tlabel", *(f"{f}\t{len(f) / 10}" for f in films))
    write_lines(folder / "words.tsv", "en\tde", *(f"number {i}\tZahl {i}" for i in range(60)))
    questions = []
    for i, word in enumerate(generator.choice(["good", "bad", "dull"], 60)):
        answers = [{"text": word, "answer_start": len(f"the film {i} was ")}]
        asked = {"id": str(i), "question": "was it good ?", "answers": answers}
        questions.append({"context": f"the film {i} was {word} .", "qas": [asked]})
    (folder / "squad.json").write_text(json.dumps({"data": [{"paragraphs": questions}]}))
    return folder


def words(folder, model, out, train, *options):
    names = ["finetune", str(folder / model), str(out), "--train", str(folder / train), "--batch-size", "8"]
    return [*names, *options, "--json", "-"]


@pytest.mark.parametrize(
    "model, train, task, metric",
    [
        ("encoder", "pairs.tsv", "pairs", "accuracy"),
        ("encoder", "scored.tsv", "similarity", "spearman"),
        ("encoder", "numbers.tsv", "regression", "spearman"),
        ("encoder", "squad.json", "questions", "f1"),
        ("translation", "words.tsv", "translation", "perplexity"),
        ("model", "text.txt", "text", "perplexity"),
    ],
)
def test_tasks_are_found_by_the_file_and_the_model(model, train, task, metric, folder, tmp_path, capsys):
    assert main(words(folder, model, tmp_path / "out", train, "--steps", "2")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["task"] == task
    assert found["steps"] == 2
    assert metric in found["metrics"]
    assert found["examples"]["train"] > found["examples"]["validation"] > 0
    assert f"% of {folder / train}" in found["validation"]
    assert load(found["model"]).history[-1]["action"] == "train"


def test_a_classifier_learns_keeps_its_class_names_and_leaves_nothing_else(folder, tmp_path, capsys):
    out = tmp_path / "runs" / "out"
    arguments = words(folder, "encoder", out, "films.tsv", "--epochs", "10", "--learning-rate", "0.01")
    assert main(arguments) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["classes"] == ["bad", "good"]
    assert found["metrics"]["accuracy"] > 0.9
    assert len(found["learning_curve"]) == 5
    assert {"step", "epoch", "train_loss", "accuracy", "loss"} <= found["learning_curve"][0].keys()
    assert found["learning_curve"][-1]["step"] == found["steps"]
    assert found["best"]["value"] == max(point["accuracy"] for point in found["learning_curve"])
    kept = next(point for point in found["learning_curve"] if point["step"] == found["kept_step"])
    assert kept["accuracy"] == found["metrics"]["accuracy"] == found["best"]["value"]
    assert "Train loss" in printed.err
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    # A file without the class bad is still evaluated, and its one class keeps its number.
    assert main(["evaluate", str(out), "--task", str(folder / "good.tsv"), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["accuracy"] == 1.0
    # The classifier keeps its output for a file of its own classes, also one that lacks some.
    again = words(folder, str(out), tmp_path / "again", "good.tsv", "--validation", str(folder / "films.tsv"))
    assert main([*again, "--steps", "1"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["classes"], again["validation"]) == (["bad", "good"], str(folder / "films.tsv"))


def test_the_last_weights_are_kept_on_request(folder, tmp_path, capsys):
    # A learning rate that ruins the model after its first steps.
    arguments = words(folder, "encoder", tmp_path / "last", "films.tsv", "--steps", "12", "--learning-rate", "3")
    found = {}
    for keep in ("last", "best"):
        arguments[2] = str(tmp_path / keep)
        assert main([*arguments, "--evaluations", "6", "--keep", keep]) == 0
        found[keep] = json.loads(capsys.readouterr().out)
    assert found["last"]["learning_curve"] == found["best"]["learning_curve"]
    assert found["last"]["kept_step"] == 12
    assert found["last"]["metrics"]["accuracy"] == found["last"]["learning_curve"][-1]["accuracy"]
    assert found["best"]["kept_step"] == found["best"]["best"]["step"] < 12
    assert found["best"]["metrics"]["accuracy"] == found["best"]["best"]["value"]
    assert load(tmp_path / "best").history[-1]["steps"] == found["best"]["kept_step"]


def test_an_interrupted_run_goes_on(folder, tmp_path, capsys, monkeypatch):
    arguments = words(folder, "encoder", tmp_path / "out", "films.tsv", "--steps", "6")

    @contextlib.contextmanager
    def interrupting(title, total, unit):
        def update(done, values):
            if done == 2:
                os.kill(os.getpid(), signal.SIGTERM)

        yield update

    with monkeypatch.context() as patch:
        patch.setattr("headjax.core.progress.shown_on", lambda console: interrupting)
        assert main(arguments) == INTERRUPTED
    assert json.loads(capsys.readouterr().out)["model"] is None
    assert not (tmp_path / "out").exists()
    assert "config.optimizer.schedule.peak is 5e-05 there" in error_of(capsys, *arguments, "--learning-rate", "0.1")
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 6
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_learning_curve_has_the_mean_loss_between_evaluations():
    trained = [{"step": step, "train/loss": loss} for step, loss in ((1, 4.0), (2, 2.0))]
    held = [{"step": step, "validation/loss": loss} for step, loss in ((2, 3.0), (4, 2.5))]
    curve = finetune.learning_curve([*trained, *held], 0.5)
    first, second = {"step": 2, "epoch": 1.0, "train_loss": 3.0, "loss": 3.0}, {"step": 4, "epoch": 2.0, "loss": 2.5}
    assert curve == [first, second]
    assert finetune.best_point(curve, "loss", higher_is_better=False) == {"step": 4, "metric": "loss", "value": 2.5}


def test_a_model_in_a_bucket_and_nothing_beside_it(folder, bucket, capsys):
    assert main(words(folder, "encoder", f"{bucket}/mine", "films.tsv", "--steps", "2")) == 0
    assert json.loads(capsys.readouterr().out)["model"] == f"{bucket}/mine"
    assert {path.parent.name for path in path_of(bucket).rglob("history.json")} == {"mine"}
    assert not [path for path in path_of(bucket).rglob("*") if ".finetune" in str(path)]
