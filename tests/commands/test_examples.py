"""Every command says on which examples it chose and which it judged by; every family of models takes them."""

import numpy as np
import pytest

import headjax
from tests import tiny
from tests.closeness import close_to
from tests.command_line import main
from tests.data.images import write_mnist
from tests.data.vocabulary import TEXT as VOCABULARY
from tests.data.vocabulary import WORDS, write_lines
from tests.hub.directories import BERT, CONFIGS, model_of

LIMIT = "--limit 8 --batch-size 4"


def importance(folder, batches):
    values = headjax.score_heads(headjax.load(folder / "model"), batches).score("importance")
    return {str(head): close_to(value, sums=2 * tiny.SUMS) for head, value in values.items()}


def test_scores_are_those_of_the_training_examples(run, folder):
    model = headjax.load(folder / "model")
    data, told = run(f"score model --task text.txt {LIMIT}")
    train = headjax.load_task(str(folder / "text.txt"), model, split="train")
    assert data["scores"]["importance"] == importance(folder, train.batches(4, limit=8))
    assert data["selection"] == {"task": "text.txt", "form": "text", "split": "train", "examples": 8}
    assert data["evaluation"] is None
    assert "Selection: 8 examples of text.txt (read as text), train." in told
    data = run(f"score model --task text.txt {LIMIT} --calibration validation").data
    held_out = headjax.load_task(str(folder / "text.txt"), model)
    assert data["scores"]["importance"] == importance(folder, held_out.batches(4, limit=8))


def test_columns_of_other_names_are_told(run, folder, tmp_path):
    films = [line.split("\t") for line in (folder / "films.tsv").read_text().splitlines()[1:]]
    path = write_lines(tmp_path / "a.csv", "no;Review;Verdict", *(f"{i};{a};{b}" for i, (a, b) in enumerate(films)))
    named = f"--task {path} --columns Review,Verdict"
    for words in ("evaluate classifier", "evaluate classifier classifier", "score classifier", "predict classifier"):
        usual, told = (run(f"{words} {task}").data for task in ("--task films.tsv", named))
        for key in ("metrics", "metrics_other", "scores"):
            assert told.get(key) == usual.get(key)
    rows = [(one["text"], one["given"], one["label"], one["no"]) for one in told["predictions"]]
    assert rows == [(one["text"], one["given"], one["label"], str(i)) for i, one in enumerate(usual["predictions"])]


@pytest.mark.parametrize(
    "words",
    [
        "prune model OUT/out --remove 2",
        "prune model OUT/out --remove decoder/0/1 --reconstruct",
        "convert model OUT/out --to collaborative:shared_dim=8 --calibrate 4",
        "report model --orders importance --seeds 1 --percentages 50 --out OUT/heads.html",
    ],
)
def test_a_task_with_one_split_is_divided_and_every_command_says_so(run, folder, words):
    data, told = run(f"{words} --task all:one.txt --batch-size 4")
    selection, evaluation = headjax.split_task(
        headjax.load_task(f"all:{folder / 'one.txt'}", headjax.load(folder / "model"))
    )
    judged = dict(data["evaluation"])
    assert "sorted by a hash" in judged.pop("rule")
    assert judged == {"task": "one.txt", "split": "evaluation half", "examples": evaluation.count()}
    assert f"Evaluation: {evaluation.count()} examples of one.txt, evaluation half." in told
    assert "The task has one split" in told
    assert data["selection"]["split"] == "selection half"
    assert 0 < data["selection"]["examples"] <= selection.count()


def test_calibration_examples_come_from_a_file_and_all_of_the_task_measures(run, folder):
    model = headjax.load(folder / "model")
    other = headjax.load_task(f"all:{folder / 'other.txt'}", model)
    whole = headjax.load_task(f"all:{folder / 'one.txt'}", model).count()
    evaluation = {"task": "one.txt", "form": "text", "split": "all", "examples": whole}
    files = f"--task one.txt --calibration all:other.txt --batch-size 4 --calibrate {other.count()}"
    data = run(f"score model {files}").data
    assert data["scores"]["importance"] == importance(folder, other.batches(4))
    assert data["selection"] == {"task": "other.txt", "split": "all", "examples": other.count()}
    data = run(f"prune model OUT/out --remove 1 {files}").data
    assert data["selection"] == {"task": "other.txt", "split": "all", "examples": other.count()}
    assert data["evaluation"] == evaluation


def test_texts_without_labels_calibrate_a_model_that_embeds_sentences(run, tmp_path):
    texts = [" ".join(VOCABULARY[i % 7 : i % 7 + 2 + i % 4]) for i in range(24)]
    pairs = [*zip(texts[::2], texts[1::2], strict=True)]
    write_lines(tmp_path / "lines.txt", *texts)
    write_lines(tmp_path / "paragraphs.md", "\n\n".join(text.replace(" ", "\n", 1) for text in texts))
    write_lines(tmp_path / "pairs.tsv", "sentence1\tsentence2", *(f"{one}\t{other}" for one, other in pairs))
    scored = (f"{one}\t{other}\t{i % 5}" for i, (one, other) in enumerate(pairs))
    write_lines(tmp_path / "scored.tsv", "sentence1\tsentence2\tscore", *scored)
    words = "prune encoder OUT/out --overwrite --remove 1 --by reconstruction --reconstruct --task scored.tsv"
    ran = {name: run(f"{words} --calibration {tmp_path}/{name}") for name in ("scored.tsv", "lines.txt")}
    ran |= {name: run(f"{words} --calibration {tmp_path}/{name}") for name in ("paragraphs.md", "pairs.tsv")}
    assert {name: one.data["selection"]["examples"] for name, one in ran.items()} == dict.fromkeys(ran, 12)
    for name in ("lines.txt", "paragraphs.md", "pairs.tsv"):
        assert f"{name} (read as texts, two an example), all." in ran[name].told
        assert "Judged: similarities of scored.tsv alone. Other uses of the vectors" in ran[name].told
        for key in ("removed", "layers", "metrics"):
            assert ran[name].data[key] == ran["scored.tsv"].data[key]


def test_several_files_have_equal_shares_and_each_number_is_told(run, tmp_path):
    write_lines(tmp_path / "notes.txt", *(f"good film {word}" for word in VOCABULARY for _ in range(4)))
    words = f"prune encoder OUT/out --remove 1 --by reconstruction --task scored.tsv --calibration {tmp_path}/notes.txt"
    data, told = run(f"{words} --calibration scored.tsv --calibrate 12")
    named = f"{tmp_path}/notes.txt (9), scored.tsv (3)"
    assert data["selection"] == {"task": named, "split": "all", "examples": 12}
    assert f"Selection: 12 examples of {named}, all." in told
    reference = run(f"{words} --overwrite --calibration python --calibrate 9").data["selection"]
    assert reference == {"task": f"{tmp_path}/notes.txt (4), python (5)", "split": "all", "examples": 9}


def test_conversions_are_calibrated_where_a_number_is_given(run):
    words = f"convert model OUT/out --to collaborative:shared_dim=8 --task text.txt {LIMIT}"
    data, told = run(words)
    assert data["selection"] is None
    assert "Selection" not in told
    data = run(f"{words} --overwrite --calibrate 8 --calibration all:one.txt").data
    assert data["selection"] == {"task": "one.txt", "split": "all", "examples": 8}


def test_named_heads_need_no_selection(run, folder):
    data, told = run(f"prune model OUT/out --remove decoder/0/1 --task text.txt {LIMIT}")
    assert data["selection"] is None
    assert "Selection" not in told
    data = run("evaluate model --task all:one.txt").data
    whole = headjax.load_task(f"all:{folder / 'one.txt'}", headjax.load(folder / "model")).count()
    assert data["examples"] == whole
    assert data["evaluation"] == {"task": "one.txt", "split": "all", "examples": whole}


TOKENS = {"vocab_size": 260, "max_position_embeddings": 40}
FAMILIES = {
    "bert": (BERT | {"vocab_size": len(WORDS), "max_position_embeddings": 32, "num_labels": 2}, "table.tsv"),
    "gpt2": (
        CONFIGS["gpt2"] | {"vocab_size": 260, "n_positions": 40, "architectures": ["GPT2LMHeadModel"]},
        "text.txt",
    ),
    "t5": (CONFIGS["t5"] | {"vocab_size": 260, "architectures": ["T5ForConditionalGeneration"]}, "translation"),
    "vit": (CONFIGS["vit"] | {"num_channels": 1, "num_labels": 2}, "mnist"),
}
HEADS = {"t5": 24}
"""Where they are not 8."""


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, folder, tmp_path_factory):
    """An imported model and the task that is its family's."""
    (fields, task), home = FAMILIES[request.param], tmp_path_factory.mktemp(request.param)
    model = model_of(fields)
    if task == "table.tsv":
        model = model.replace(tokenizer=headjax.load(folder / "classifier").tokenizer)
    elif task != "mnist":
        model = model.replace(tokenizer=headjax.byte_tokenizer())
    headjax.to_huggingface(model, home / "hf")
    assert main(["import", str(home / "hf"), str(home / "model")]) == 0
    rows = (f"{word} film\t{i % 2}" for i, word in enumerate(WORDS[5:13]))
    table = write_lines(home / "table.tsv", "sentence\tlabel", *rows)
    named = {"translation": "translation:pairs:en-de", "mnist": f"mnist:{home}", "table.tsv": str(table)}
    return request.param, home / "model", write_mnist(home) and named.get(task, task)


@pytest.mark.parametrize("words", ["score MODEL --length 16", "prune MODEL OUT/pruned --remove 2"])
def test_commands_take_every_family(case, run, words):
    family, model, task = case
    data = run(f"{words} --task {task} --limit 4 --batch-size 2".replace("MODEL", str(model))).data
    if "score" in words:
        assert len(data["scores"]["importance"]) == HEADS.get(family, 8)
        assert np.isfinite(list(data["scores"]["importance"].values())).all()
        return
    assert np.isfinite(data["metrics"]["loss"])
    assert len(data["removed"]) == 2


@pytest.mark.parametrize(("words", "number"), [("", 4), ("--calibrate 5", 5)])
def test_a_slow_machine_calibrates_on_fewer_examples_unless_told_how_many(run, monkeypatch, words, number):
    monkeypatch.setattr("headjax.commands.inputs.FEWEST", 4)
    monkeypatch.setattr("headjax.commands.inputs.SLOWEST", 0.0)
    monkeypatch.setattr("headjax.core.timing.matrix_rate", lambda: 2e3)
    data, told = run(f"score model --task text.txt --calibration all:other.txt {words}")
    assert data["selection"]["examples"] == number
    assert ("4 examples choose: this machine multiplies matrices at" in told) is (not words)


def test_the_time_of_the_work_is_told_before_and_refused_above_a_limit(run, monkeypatch):
    monkeypatch.setattr("headjax.core.timing.seconds_of", lambda call: (1.0, 2.0))  # by the clock, of processors
    monkeypatch.setattr("headjax.core.timing.matrix_rate", lambda: 1.0)
    monkeypatch.setattr("headjax.commands.inputs.SAID", 2.0)
    monkeypatch.setattr("headjax.commands.inputs.SLOWEST", 1.0)
    words = "--task text.txt --calibrate 16 --limit 16 --batch-size 8"
    # Scoring takes 2 passes over 2 batches, each of a second; two models are evaluated on 2 more.
    assert "plan: about 8.00 s of processor time, by a timed pass" in run(f"score model {words}").told
    told = run(f"prune model OUT/never {words} --remove 1 --by importance --max-time 0.1", code=2).told
    assert "--max-time: it takes about 8.00 s, by a timed pass; 75% of the examples would fit" in told
    repaired = run(f"prune model OUT/never {words} --remove 1 --by importance --reconstruct --max-time 0.1", code=2)
    assert "; 75%" not in repaired.told
    shrunk = run(f"shrink model OUT/never {words} --parameters 60% --max-time 0.1", code=2)
    assert "--max-time: it takes about " in shrunk.told
