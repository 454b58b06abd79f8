"""Golden results of training, of a run that goes on, of distillation and of decoding."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import headjax
from tests.golden.results import compare, summary
from tests.golden.test_families import FAMILIES, batch, family, labelled

LICENSE = Path(__file__).parents[2] / "LICENSE"


def norm(model: nnx.Module) -> np.ndarray:
    """The length of all parameters as one vector."""
    return np.sqrt(sum(float((leaf.astype(np.float32) ** 2).sum()) for leaf in jax.tree.leaves(nnx.state(model))))


def run(start: Path, workdir: Path, steps: int, **fields: Any) -> dict[str, np.ndarray]:
    """Train from a model directory on bytes, and return the loss and the length of the parameters."""
    config = {
        "start": str(start), "data": {"task": str(LICENSE), "length": 16, "tokenizer": "bytes", "limit": 32},
        "optimizer": {"kind": "adamw", "schedule": {"kind": "constant_rate", "peak": 0.01}, "weight_decay": 0.1},
        "batch_size": 16, "steps": steps, "tensorboard": False, "log_every": 1, **fields,
    }  # fmt: skip
    found = headjax.train(headjax.train_config(config), workdir)
    assert (found.finished, found.steps) == (True, steps)
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    losses = [record["train/loss"] for record in records if "train/loss" in record]
    return {"losses": np.array(losses), "loss": np.array(found.metrics["loss"]), "norm": norm(found.model)}


def test_a_run_and_one_that_goes_on(tmp_path):
    for folder in ("theirs", "start"):
        (tmp_path / folder).mkdir()
    family("GPT2LMHeadModel bytes", tmp_path / "theirs").save(tmp_path / "start" / "model")
    start = tmp_path / "start" / "model"
    whole = run(start, tmp_path / "whole", 2)
    run(start, tmp_path / "resumed", 1)
    resumed = run(start, tmp_path / "resumed", 2)
    parts = run(start, tmp_path / "parts", 2, accumulate=2)
    results = {"train": whole, "resume": resumed, "accumulate": parts}
    compare("runs.npz", "train", {f"{name}/{key}": a for name, found in results.items() for key, a in found.items()})


def test_a_student(tmp_path):
    name = "LlamaForCausalLM"
    teacher = family(name, tmp_path)
    student = headjax.prune(teacher, ["decoder/0/0", "decoder/0/1"])
    found = headjax.distill(student, teacher, [labelled(name, 1)] * 2, headjax.Distillation(steps=2, hidden=0.5))
    compare("runs.npz", "distill", {"losses": found.losses, "norm": norm(found.model)})


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Gemma3ForCausalLM", "T5ForConditionalGeneration"])
def test_decoding(name, tmp_path):
    model, prompts = family(name, tmp_path), batch(FAMILIES[name]["config"])
    for key in ("decoder_input_ids", "decoder_attention_mask"):
        prompts.pop(key, None)
    results = {}
    for way, sampler in {"greedy": headjax.Greedy(), "sampled": headjax.Sample(temperature=0.8)}.items():
        found = headjax.generate(model, prompts, max_new_tokens=6, end_token=7, sampler=sampler)
        results |= {f"{way}/tokens": found.tokens, f"{way}/log_probability": found.log_probability}
    beams = headjax.beam_search(model, prompts, beams=3, max_new_tokens=6, end_token=7)
    results |= {f"beams/{key}": getattr(beams, key) for key in ("tokens", "scores")}
    compare("runs.npz", name, {key: summary(value) for key, value in results.items()})
