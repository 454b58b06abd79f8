"""Requests that commands refuse: one line, exit code 2, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from headjax.cli import main

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.py"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("prune", "model", "bad", "--remove", "decoder/9/0"), "decoder/9/0"),
        (("prune", "model", "bad", "--remove", "40%"), "--task: needed to order heads by importance"),
        (("prune", "model", "bad", "--remove", "140%", "--by", "random"), "asks for 5 heads, the model has 4"),
        (("prune", "model", "bad", "--remove", "some", "--by", "random"), "'some' is no number of heads"),
        (("prune", "model", "bad", "--remove", "1", "--by", "importanc"), "did you mean 'importance'?"),
        (
            ("prune", "model", "bad", "--remove", "1", "--by", "random", "--steps", "0"),
            "--steps: must be an integer of at least 1",
        ),
        (
            ("prune", "model", "bad", "--remove", "1", "--by", "random", "--stacks", "encoder"),
            "--stacks: the model has no",
        ),
        (("prune", "model", "bad", "--remove", "some"), "'some' is no number of heads"),
        (
            ("prune", "model", "bad"),
            "one of the arguments --remove --max-drop --speed-up --parameters --flops is required",
        ),
        (
            ("prune", "model", "bad", "--remove", "1", "--by", "random", "--uniform"),
            "--remove: 1 asks for 1 heads; --uniform can remove 2",
        ),
        (("prune", "model", "bad", "--remove", "decoder/0/0", "--uniform"), "--uniform: an order chooses the heads"),
        (
            ("prune", "model", "bad", "--remove", "decoder/0/0", "--whole-groups"),
            "--whole-groups: an order chooses the heads, but --remove names them",
        ),
        (("prune", "model", "bad", "--max-drop", "-1"), "--max-drop: expected a number such as 0.01, or 5%"),
        (("prune", "model", "bad", "--max-drop", "1", "--by", "random"), "--task: needed to measure --max-drop on"),
        (("prune", "model", "bad", "--speed-up", "9", "--by", "subset", "--task", "text.txt"), "--by: subset chooses"),
        (
            ("prune", "model", "bad", "--speed-up", "0.5", "--task", "text.txt"),
            "--speed-up: must be at least 1, got 0.5",
        ),
        (("prune", "model", "bad", "--remove", "decoder/0/0", "--fine-tune", "3"), "--task: needed to fine-tune on"),
        (("score", "model", "--task", "text.txt", "--buckets", "x"), "--buckets: expected numbers such as 16,32,64"),
        (
            ("score", "model", "--task", "text.txt", "--buckets", "0,4"),
            "--buckets[0]: must be an integer of at least 1",
        ),
        (("ablate", "model", "--task", "text.txt", "--mode", "one"), "--mode: unknown mode 'one'"),
        (("ablate", "model", "--task", "text.txt", "--budget", "much"), "--budget: expected a size"),
        (("score", "model", "--task", "no_such_task"), "no_such_task"),
        (("score", "model", "--task", "text.txt", "--select", "test"), "--select: task: unknown task or file 'test'"),
        (("score", "model", "--task", "text.txt", "--select", "labels.tsv"), "--select: task: it needs another model"),
        (("score", "model", "--task", "all:text.txt", "--select", "train"), "--select: text.txt has no training"),
        (("score", "model", "--task", "text.txt", "--selected", "-1"), "--selected: must not be negative, got -1"),
        (("prune", "model", "bad", "--remove", "decoder/0/0", "--select", "train"), "--select: needs a task"),
        (
            ("report", "model", "--task", "text.txt", "--orders", "importance+sorted"),
            "'sorted' is neither normalize nor",
        ),
        (("report", "model", "--task", "text.txt", "--percentages", "50,20"), "percentages: must rise within 1..100"),
        (("score", "model", "--task", "empty.txt"), "empty.txt: empty, there is no text in it"),
        (("ablate", "model", "--task", "labels.tsv"), "task: it needs another model output: a classification into 2"),
        (("prune", "model", "model", "--remove", "1", "--by", "random"), "model: exists already; --overwrite replaces"),
        (("convert", "model", "model", "--to", "deep"), "model: exists already; --overwrite replaces it"),
        (("export", "model", "model"), "model: exists already; --overwrite replaces it"),
        (("import", "model", "text.txt"), "text.txt exists and is no folder"),
        (("finetune", "model", "model", "--train", "text.txt"), "model: exists already; --overwrite replaces it"),
        (("score", "nowhere", "--task", "text.txt"), "nowhere: not a model directory"),
        (("convert", "model", "bad", "--to", "colaborative:shared_dim=8"), "did you mean 'collaborative'?"),
        (("convert", "model", "bad", "--to", "collaborative:shared_dim=17"), "17"),
        (("convert", "model", "bad", "--to", "gated", "--calibrate", "3"), "--task: needed to calibrate on"),
        (
            ("convert", "model", "bad", "--to", "gated", "--layers", "7"),
            "layers: there is no layer 7; they are numbered",
        ),
        (("convert", "model", "bad", "--to", "gated", "--calibrate", "-2"), "--calibrate: must not be negative"),
        (
            ("sweep", "model", "bad", "--to", "gated", "--task", "text.txt", "--calibrate", "-2"),
            "--calibrate: must not be negative",
        ),
        (("sharing", "model", "--budget", "-1"), "--budget: must not be negative"),
        (
            (
                "prune",
                "model",
                "bad",
                "--remove",
                "1",
                "--task",
                "text.txt",
                "--fine-tune",
                "3",
                "--learning-rate",
                "0",
            ),
            "--learning-rate: must be positive, got 0",
        ),
        (
            ("prune", "model", "bad", "--remove", "1", "--task", "text.txt", "--fine-tune", "3", "--distill", "-1"),
            "--distill: must not be negative, got -1",
        ),
        (("report", "model", "--task", "text.txt", "--orders", "importanc"), "orders: unknown order 'importanc'; did"),
        (("report", "model", "--task", "text.txt", "--run", "nowhere"), "nowhere: holds no training run"),
        (
            ("generate", "model", "--prompt", "a", "--max-new-tokens", "1000000000000"),
            "--max-new-tokens: 1 x 1,000,000",
        ),
        (
            ("generate", "model", "--prompt", "a", "--max-new-tokens", "1000"),
            "--max-new-tokens: input_ids: 1001 tokens",
        ),
        (("generate", "model", "--prompt", "a", "--cache", "1000000000000"), "--cache: 1 x 1,000,000,000,000 tokens"),
        (
            ("generate", "model", "--prompt", "a", "--max-new-tokens", "3", "--beams", "1000000000000"),
            "--beams: 1,000,000,000,000 x 4 tokens take at least",
        ),
        (("report", "model", "--task", "text.txt", "--out", "."), ".: a folder, where a file is to be written"),
        (("score", "model", "--task", "text.txt", "--json", "model"), "model: a folder, where a file is to be written"),
        (
            ("prune", "model", "bad", "--remove", "1", "--by", "random", "--json", "bad"),
            "bad is --json of the command, too",
        ),
        (("prune", "model", "text.txt/bad", "--remove", "1", "--by", "random"), "text.txt exists and is no folder"),
        (("train", "--config", str(QUICKSTART), "--workdir", "text.txt"), "text.txt exists and is no folder"),
        (("quickstart", "--workdir", "text.txt"), "text.txt exists and is no folder"),
        (("sweep", "model", "text.txt", "--to", "gated", "--task", "text.txt"), "text.txt exists and is no folder"),
        (("tokenizer", "text.txt", "--out", "text.txt"), "text.txt exists and is no folder"),
        (("prepare", "mnli", "text.txt", "--source", "labels.tsv"), "text.txt exists and is no folder"),
        (
            ("prepare", "mnli", "bad", "--source", "labels.tsv", "--processes", "9999"),
            "--processes: must be at most 1,024",
        ),
        (("prune", "model", "bad", "--remove", "1", "--steps", "1000000000"), "--steps: must be at most 10,000"),
        (("convert", "model", "bad", "--to", "gated", "--layers", "x"), "--layers: expected numbers"),
    ],
)
def test_bad_requests_are_one_line_and_leave_nothing(arguments, message, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(list(arguments)) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("headjax: error: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert not (folder / "bad").exists()
