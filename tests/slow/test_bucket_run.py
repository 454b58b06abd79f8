"""Runs and commands whose every path is in a bucket: prepared, trained, killed, continued, pruned, evaluated."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

import headjax
from tests import tiny
from tests.buckets import path_of
from tests.command_line import main
from tests.commands.language_folder import write_classifier
from tests.mesh.test_distributed import start, wait_until

STEPS, EVERY = 60, 10

CONFIG = tiny.config_file(
    model=tiny.RUN["model"] | {"vocab_size": 280, "num_layers": 1}, data={"task": "DATA"}, steps=STEPS,
    log_every=1, checkpoint_every=EVERY, keep_checkpoints=2, tensorboard=True,
    optimizer={"kind": "adamw", "schedule": {"kind": "cosine", "peak": 0.003, "warmup_steps": 5}},
)  # fmt: skip

pytestmark = [pytest.mark.whole, pytest.mark.processes]


def ended(processes, logs):
    """Wait for processes that end by themselves."""
    for process in processes:
        assert process.wait(timeout=900) == 0, "\n".join(log.read_text()[-2000:] for log in logs)


def trained(workdir, data, folder, name, kill=False):
    """The parameters that two processes end with, killed once a checkpoint is complete or not."""
    config = folder / f"{name}.py"
    config.write_text(CONFIG.replace("DATA", str(data)))
    logs = [folder / f"{name}-{index}.log" for index in range(2)]
    if kill:
        complete = (
            workdir / "checkpoints" / str(EVERY) / ("commit_success.txt" if str(workdir).startswith("gs://") else "")
        )
        two = start(config, workdir, logs, devices=1)
        try:
            wait_until(complete.exists, two, logs, 600)
        finally:
            for process in two:
                process.kill()
                process.wait()
        assert not (workdir / "model").exists()
    ended(start(config, workdir, logs, devices=1), logs)
    return headjax.load(workdir / "model").params


def test_a_run_in_a_bucket_ends_with_what_one_on_a_disk_ends_with(bucket, tmp_path):
    """Two hosts prepare the data in the bucket, and two processes train on it."""
    home = path_of(bucket)
    for name, count in (("train", 200), ("valid", 20)):
        text = "\n".join(f"Paragraph {i} says that {i * i} is the square of {i}." for i in range(count))
        (tmp_path / f"{name}.txt").write_text(text)
        (home / "text" / f"{name}.txt").write_text(text)
    prepared = ["--vocab-size", "280", "--length", "16", "--shard-mb", "0.001"]
    for host in ("1/2", "0/2"):
        words = ["prepare", "lm1b", "--out", f"{home}/data", "--source", f"{home}/text", *prepared, "--host", host]
        assert main(words) == 0
    texts = sorted(map(str, tmp_path.glob("*.txt")))
    for host in ("1/2", "0/2"):  # each packs its own rows
        words = ["prepare", "lm1b", "--out", str(tmp_path / "data"), "--source", *texts, *prepared, "--host", host]
        assert main(words) == 0

    here = trained(tmp_path / "run", tmp_path / "data", tmp_path, "disk")
    there = trained(home / "run", home / "data", tmp_path, "bucket", kill=True)
    jax.tree.map(np.testing.assert_array_equal, here, there)

    model, task = f"{home}/run/model", ["--task", f"{home}/data"]
    assert main(["score", model, *task, "--json", f"{home}/scores.json"]) == 0
    assert main(["prune", model, f"{home}/pruned", *task, "--remove", "50%"]) == 0
    assert main(["evaluate", f"{home}/pruned", *task, "--json", f"{home}/metrics.json"]) == 0
    assert headjax.load(f"{home}/pruned").config.attentions()["decoder"][0].num_heads == 1
    assert json.loads((home / "scores.json").read_text())
    assert np.isfinite(json.loads((home / "metrics.json").read_text())["metrics"]["loss"])


def test_commands_on_a_bucket(bucket, tmp_path):
    """Fine-tuning and what comes after it; nothing but what was asked for stays in the bucket."""
    home = path_of(bucket)
    write_classifier(tmp_path)
    headjax.load(tmp_path / "encoder").save(home / "encoder")
    (home / "films.tsv").write_text((tmp_path / "films.tsv").read_text())

    def run(*words):
        assert main([*words, "--json", f"{home}/result.json"]) == 0
        return json.loads((home / "result.json").read_text())

    table = f"{home}/films.tsv"
    trained = run("finetune", f"{home}/encoder", f"{home}/tuned", "--train", table, "--steps", "4", "--batch-size", "8")
    assert trained["model"] == f"{home}/tuned"
    assert not [path for path in home.iterdir() if path.name.startswith(".")]
    tuned = ["--task", table, "--batch-size", "8"]
    assert run("predict", f"{home}/tuned", *tuned, "--out", f"{home}/found.jsonl")["examples"] == 96
    assert len((home / "found.jsonl").read_text().splitlines()) == 96
    run("convert", f"{home}/tuned", f"{home}/shared", "--to", "collaborative:shared_dim=8", *tuned)
    assert headjax.load(f"{home}/shared").num_parameters < headjax.load(f"{home}/tuned").num_parameters
    run("report", f"{home}/tuned", *tuned, "--orders", "random", "--seeds", "1", "--out", f"{home}/heads.html")
    assert "<html" in (home / "heads.html").read_text()
