"""`headjax finetune` and `train`: the user's own files, curves, no leftovers, and runs that go on as they began."""

import contextlib
import dataclasses
import json
import os
import signal

import numpy as np
import pytest

import headjax
from headjax.commands import finetune
from headjax.commands.own_data import infer_task
from headjax.core.errors import INTERRUPTED
from headjax.evaluation.predictions import Inputs, predict
from headjax.training.step import Trainer
from tests import tiny
from tests.command_line import main
from tests.commands.language_folder import write_classifier
from tests.data.images import write_folders
from tests.data.vocabulary import TEXT as VOCABULARY
from tests.data.vocabulary import write_lines
from tests.test_cli import error_of

CONFIG = headjax.EncoderConfig(
    attention=tiny.multi_head(), hidden=32, vocab_size=257, max_length=64, width=16, num_layers=1
)


def bare_encoder(output=None):
    """An encoder without parameters; they are not read here."""
    model = headjax.Model(CONFIG, {}, tokenizer=headjax.byte_tokenizer())
    return model if output is None else model.replace(config=headjax.with_task(model, output).config)


def inferred(path, model=None, **fields):
    return infer_task(bare_encoder() if model is None else model, str(path), **fields)


def test_labels_become_classes_in_order(tmp_path):
    found = inferred(write_lines(tmp_path / "a.tsv", "text\tclass", "x\tred", "y\tblue", "z\tred"))
    assert (found.task, found.output) == (
        "classification",
        headjax.tasks.Classification(classes=2, names=("blue", "red")),
    )
    assert (found.data.classes, found.data.length, found.data.buckets) == (("blue", "red"), 64, (32,))
    assert found.division == f"about 10% of {tmp_path / 'a.tsv'}, by the hash of their text"
    numbers = inferred(write_lines(tmp_path / "n.tsv", "text\tclass", "x\t10", "y\t9"))
    assert numbers.output == headjax.tasks.Classification(classes=2, names=("9", "10"))
    plain = inferred(write_lines(tmp_path / "p.tsv", "text\tclass", "x\t1", "y\t0"))
    assert plain.output == headjax.tasks.Classification(classes=2)
    by_number = inferred(write_lines(tmp_path / "h.tsv", "red\tx", "blue\ty"), columns=("1", "0"))
    assert by_number.output == found.output


def test_a_model_keeps_the_output_that_it_has_for_the_labels(tmp_path):
    path = write_lines(tmp_path / "a.tsv", "text\tlabel", "x\tred", "y\tblue")
    named = inferred(path, bare_encoder(headjax.tasks.Classification(classes=3, names=("red", "green", "blue"))))
    assert named.output is None
    assert named.data.classes == ("red", "green", "blue")
    other = inferred(path, bare_encoder(headjax.tasks.Classification(classes=2, names=("good", "bad"))))
    assert other.output == headjax.tasks.Classification(classes=2, names=("blue", "red"))
    assert inferred(path, bare_encoder(headjax.tasks.Classification(classes=2))).output == other.output
    plain = write_lines(tmp_path / "p.tsv", "text\tlabel", "x\t1", "y\t0")
    assert inferred(plain, bare_encoder(headjax.tasks.Classification(classes=2))).output is None
    assert inferred(
        plain, bare_encoder(headjax.tasks.Classification(classes=3))
    ).output == headjax.tasks.Classification(classes=2)
    assert inferred(plain, bare_encoder(headjax.tasks.Regression())).task == "regression"


def test_a_decoder_reads_text_unless_it_is_told_of_labels(tmp_path):
    path = write_lines(tmp_path / "a.tsv", "text\tlabel", "x\tred", "y\tblue")
    decoder = headjax.Model(tiny.decoder_config(vocab_size=257), {}, tokenizer=headjax.byte_tokenizer())
    assert inferred(path, decoder).task == "text"
    output = headjax.tasks.Classification(classes=2, names=("blue", "red"))
    assert inferred(path, decoder, task="classification").output == output
    assert inferred(path, decoder, columns=("text", "label")).output == output
    classifier = decoder.replace(config=headjax.with_task(decoder, output).config)
    assert inferred(path, classifier).output is None
    with pytest.raises(headjax.HeadjaxError, match=r"--task: this model can be .* classification, .*, not for text"):
        inferred(path, classifier, task="text")


def test_missing_labels_are_no_class(tmp_path):
    path = write_lines(tmp_path / "a.tsv", "text\tlabel", "x\t-1", "y\t0", "z\t1", "w\t")
    found = inferred(path)
    assert (found.task, found.output) == ("classification", headjax.tasks.Classification(classes=2))
    write_lines(path, "text\tlabel", "x\t-1", "y\t1")
    with pytest.raises(headjax.DataError, match=r"a\.tsv: .*'1'"):
        inferred(path)
    write_lines(path, "text\tlabel", "x\t-1", "y\t")
    with pytest.raises(headjax.DataError, match=r"a\.tsv: no row has a label"):
        inferred(path)


def test_whole_numbers_with_a_point_are_numbers_unless_they_are_called_classes(tmp_path):
    path = write_lines(tmp_path / "a.tsv", "text\tlabel", "x\t0.0", "y\t5.0", "z\t1.0")
    assert inferred(path).task == "regression"
    assert inferred(path, task="classification").output == headjax.tasks.Classification(
        classes=3, names=("0", "1", "5")
    )


def test_scores_of_pairs_are_similarities_divided_by_the_largest(tmp_path):
    path = write_lines(tmp_path / "a.tsv", "text1\ttext2\tscore", "x\ty\t2", "x\tz\t5")
    found = inferred(path)
    assert (found.task, found.output) == ("similarity", headjax.tasks.SentenceSimilarity())
    assert (dataclasses.replace(found.data, whole=True).open().form.scale, found.data.length) == (5.0, 64)
    assert inferred(path, bare_encoder(headjax.tasks.SentenceSimilarity())).output is None
    assert inferred(path, task="regression").output == headjax.tasks.Regression()
    assert inferred(path, task="pairs").task == "pairs"
    longer = write_lines(tmp_path / "b.tsv", "text1\ttext2\tscore", "x\ty\t8")
    assert inferred(path, validation=str(longer)).data.open().form.scale == 8.0
    assert inferred(path, validation=str(longer)).division == str(longer)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Files of every task."""
    tables = tmp_path_factory.mktemp("tables")
    films = write_classifier(tables)
    said = ["good" if "good" in film.split() else "bad" for film in films]
    write_lines(tables / "scored.tsv", "sentence1\tsentence2\tscore", *(f"{f}\tgood film\t{len(f) % 5}" for f in films))
    several = ({"text": film, "labels": [word, "film"]} for film, word in zip(films, said, strict=True))
    write_lines(tables / "several.jsonl", *map(json.dumps, several))
    write_lines(
        tables / "tags.conll",
        *("\n".join(f"{word} {'B-X' if word == 'good' else 'O'}" for word in film.split()) + "\n" for film in films),
    )
    ranked = (f"{film}\t{other}\t{int(film == other)}" for film in films for other in (film, films[0]))
    write_lines(tables / "ranked.tsv", "query\ttext\trelevance", *ranked)
    questions = []
    for i, word in enumerate(np.random.default_rng(0).choice(["good", "bad", "dull"], 60)):
        answers = [{"text": word, "answer_start": len(f"the film {i} was ")}]
        asked = {"id": str(i), "question": "was it good ?", "answers": answers}
        questions.append({"context": f"the film {i} was {word} .", "qas": [asked]})
    (tables / "squad.json").write_text(json.dumps({"data": [{"paragraphs": questions}]}))
    return tables


@pytest.mark.parametrize(
    "model, train, task, metric",
    [
        ("encoder", "scored.tsv", "similarity", "spearman"),
        ("encoder", "squad.json", "questions", "f1"),
        ("encoder", "several.jsonl", "multi_label", "micro_f1"),
        ("encoder", "tags.conll", "tokens", "entity_f1"),
        ("encoder", "ranked.tsv", "retrieval", "ndcg_at_10"),
        ("model", "text.txt", "text", "perplexity"),
    ],
)
def test_tasks_are_found_by_the_file_and_the_model(model, train, task, metric, run, folder, tables):
    file = folder / train if train == "text.txt" else tables / train
    found = run(f"finetune {model} OUT/out --train {file} --batch-size 8 --steps 2").data
    assert (found["task"], found["steps"]) == (task, 2)
    assert metric in found["metrics"]
    assert found["examples"]["train"] > found["examples"]["validation"] > 0
    assert f"% of {file}" in found["validation"]
    assert headjax.load(found["model"]).history[-1]["action"] == "train"


def test_texts_without_labels_bring_a_smaller_model_back_to_its_teachers_vectors(run, folder, tmp_path):
    texts = [" ".join(VOCABULARY[1 + (i * step) % 7] for step in range(1, 3 + i % 4)) for i in range(60)]
    write_lines(tmp_path / "lines.txt", *texts)
    run("finetune encoder OUT/teacher --train scored.tsv --batch-size 8 --steps 1")
    run("prune OUT/teacher OUT/small --remove 50% --by random --task scored.tsv")
    words = "finetune OUT/small OUT/tuned --overwrite --train OUT/lines.txt --teacher OUT/teacher --batch-size 8"
    found = run(f"{words} --steps 60 --learning-rate 1e-2").data
    assert (found["task"], found["examples"]) == ("similarity", {"train": 27, "validation": 3})
    assert found["validation"] == f"3 pairs of texts of {tmp_path}/lines.txt, labelled by the teacher"
    inputs = Inputs(texts)
    teacher, small, tuned = (
        np.array([each["embedding"] for each in predict(headjax.load(tmp_path / name), inputs)])
        for name in ("teacher", "small", "tuned")
    )
    assert np.square(tuned - teacher).sum() < 0.5 * np.square(small - teacher).sum()
    judged = run(f"{words} --steps 1 --validation scored.tsv").data
    assert judged["examples"]["train"] == 30
    assert judged["validation"] == "scored.tsv"
    write_lines(tmp_path / "few.txt", *texts[:6])
    told = run(f"{words} --steps 1".replace("lines", "few"), code=2).told
    assert f"{tmp_path}/few.txt: 6 texts are too few to hold some out; --validation names other pairs" in told


def test_a_vision_model_learns_the_classes_of_folders(run, tmp_path):
    config = headjax.VisionConfig(
        attention=tiny.multi_head(), hidden=16, width=16, num_layers=1, image_size=8, patch_size=4,
        task=headjax.tasks.Classification(classes=3),
    )  # fmt: skip
    tiny.model(config).save(tmp_path / "vision")
    write_folders(tmp_path / "images")
    found = run("finetune OUT/vision OUT/out --train OUT/images --batch-size 8 --steps 2").data
    assert (found["task"], found["classes"]) == ("images", ["bad", "good"])
    assert found["examples"] == {"train": 8, "validation": 8}
    again = run("evaluate OUT/out --task OUT/images").data["metrics"]
    assert again["accuracy"] == found["metrics"]["accuracy"]


FILMS = "--train films.tsv --batch-size 8"


def test_a_classifier_learns_keeps_its_class_names_and_leaves_nothing_else(run, tmp_path):
    found, told = run(f"finetune encoder OUT/runs/out {FILMS} --epochs 10 --learning-rate 0.01")
    assert found["classes"] == ["bad", "good"]
    assert found["metrics"]["accuracy"] > 0.9
    assert len(found["learning_curve"]) == 5
    assert {"step", "epoch", "train_loss", "accuracy", "loss"} <= found["learning_curve"][0].keys()
    assert found["learning_curve"][-1]["step"] == found["steps"]
    kept = next(point for point in found["learning_curve"] if point["step"] == found["kept_step"])
    assert kept["accuracy"] == found["metrics"]["accuracy"] == max(one["accuracy"] for one in found["learning_curve"])
    assert "Train loss" in told
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["out"]
    # A file without the class bad is still evaluated, and its one class keeps its number.
    assert run("evaluate OUT/runs/out --task good.tsv").data["metrics"]["accuracy"] == 1.0
    # The classifier keeps its output for a file of its own classes, also one that lacks some.
    again = run("finetune OUT/runs/out OUT/again --train good.tsv --validation films.tsv --batch-size 8 --steps 1").data
    assert (again["classes"], again["validation"]) == (["bad", "good"], "films.tsv")


def test_a_language_model_becomes_a_classifier_that_is_scored_and_pruned(run):
    found = run("finetune model OUT/out --train films.tsv --task classification --batch-size 8 --steps 2").data
    assert (found["task"], found["classes"]) == ("classification", ["bad", "good"])
    assert "accuracy" in run("evaluate OUT/out --task films.tsv").data["metrics"]
    assert run("score OUT/out --task films.tsv").data["scores"]["importance"].keys() >= {"decoder/0/0"}
    pruned = run("prune OUT/out OUT/small --remove 25% --task films.tsv").data
    assert (len(pruned["removed"]), pruned["metrics"].keys()) == (1, found["metrics"].keys())
    (said,) = run("predict OUT/small --text good").data["predictions"]
    assert said["label"] in ("bad", "good")


def test_an_interrupted_run_goes_on(run, folder, tmp_path, capsys, monkeypatch):
    words = f"finetune encoder OUT/out {FILMS} --steps 6"

    @contextlib.contextmanager
    def interrupting(title, total, unit):
        def update(done, values):
            if done == 2:
                os.kill(os.getpid(), signal.SIGTERM)

        yield update

    with monkeypatch.context() as patch:
        patch.setattr("headjax.core.progress.shown_on", lambda console: interrupting)
        assert run(words, code=INTERRUPTED).data["model"] is None
    assert not (tmp_path / "out").exists()
    other = [*words.replace("OUT", str(tmp_path)).split(), "--learning-rate", "0.1"]
    assert "config.optimizer.schedule.peak is 5e-05 there" in error_of(capsys, *other)
    assert run(words).data["steps"] == 6
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_learning_curve_has_the_mean_loss_between_evaluations():
    trained = [{"step": step, "train/loss": loss} for step, loss in ((1, 4.0), (2, 2.0))]
    held = [{"step": step, "validation/loss": loss} for step, loss in ((2, 3.0), (4, 2.5))]
    curve = finetune.learning_curve([*trained, *held], 0.5)
    first, second = {"step": 2, "epoch": 1.0, "train_loss": 3.0, "loss": 3.0}, {"step": 4, "epoch": 2.0, "loss": 2.5}
    assert curve == [first, second]


@pytest.fixture
def words(tmp_path):
    """A training run of two steps."""
    (tmp_path / "config.py").write_text(tiny.config_file())
    text = "\n\n".join(f"Paragraph {i} says that {i * i} is the square of {i}." for i in range(400))
    (tmp_path / "text.txt").write_text(text)
    words = ["train", "--config", str(tmp_path / "config.py"), "--workdir", str(tmp_path / "run")]
    return [*words, f"--config.data.task={tmp_path / 'text.txt'}"]


def test_train_writes_a_model_that_inspect_reads(words, capsys):
    assert main([*words, "--json", "-"]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert (trained["steps"], trained["finished"]) == (2, True)
    assert trained["metrics"]["perplexity"] > 1
    assert trained["tokens_per_second"] > 0
    assert main(["inspect", trained["model"], "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == trained["parameters"]
    assert "config.batch_size is 8 there" in error_of(capsys, *words, "--config.batch_size=16")
    assert "2 steps" in error_of(capsys, *words, "--config.steps=1")
    assert main([*words, "--config.steps=3", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 3


def test_an_interrupted_run_has_its_own_exit_code(words, capsys, monkeypatch):
    """So that `headjax train ... && headjax evaluate ...` stops; the same command goes on and ends with 0."""
    step = Trainer.__call__

    def interrupted(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return step(*arguments)

    words = [*words, "--config.steps=4", "--json", "-"]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "__call__", interrupted)
        assert main(words) == INTERRUPTED == 130
    printed = capsys.readouterr()
    assert "interrupted after step 1; the same command continues from there" in printed.err
    assert json.loads(printed.out)["finished"] is False
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 4
