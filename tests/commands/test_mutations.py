"""Mutated requests of every command: each is answered, or refused in a few lines.

Requests run in this process on tiny models, up to where the first batch would be computed: some of them, seeded, and
more in `make attack`.
"""

import contextlib
import dataclasses
import importlib
import io
import json
import random
import re
import shutil
import sys
import traceback
import types
import warnings
from pathlib import Path
from typing import Any

import pytest

import headjax
from headjax.cli import COMMANDS
from headjax.commands.options import name_of
from headjax.core.serialize import to_data
from tests import tiny
from tests.command_line import main
from tests.commands.language_folder import write_language_folder

CONFIG = f"""
from ml_collections import ConfigDict
from headjax.core.fields import parse_arguments

def get_config(arg=""):
    knobs = parse_arguments(arg, width=16, rate=0.001, attention="multi_head", smoke=False)
    config = ConfigDict({tiny.RUN!r})
    config.model.width, config.model.attention.kind = knobs.width, knobs.attention
    config.optimizer.schedule.peak, config.data.task = knobs.rate, "short.txt"
    return config
"""


class Enough(headjax.HeadjaxError):
    """A request has been read and checked, and would now compute."""

    exit_code = 0


def enough(*_: Any, **__: Any) -> Any:
    raise Enough("enough")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A folder with small inputs of every kind."""
    folder = tmp_path_factory.mktemp("mutations") / "pristine"
    folder.mkdir()
    write_language_folder(folder, max_length=32)
    short = "\n\n".join(f"Paragraph {i} is short." for i in range(60))
    tokenizer = headjax.byte_tokenizer()
    sizes = {"vocab_size": 257, "width": 16, "num_layers": 1, "attention": tiny.multi_head(), "hidden": 16}
    classifier = headjax.EncoderConfig(max_length=32, task=headjax.tasks.Classification(classes=2), **sizes)
    translator = headjax.EncoderDecoderConfig(start_token=256, **sizes)
    for name, config in {"classifier": classifier, "translator": translator}.items():
        headjax.Model(config, tiny.model(config).params, tokenizer=tokenizer).save(folder / name)
    rows = "".join(f"this is {'good' if i % 2 else 'bad'} {i}\t{i % 2}\n" for i in range(40))
    (folder / "labels.tsv").write_text(f"sentence\tlabel\n{rows}")
    (folder / "pairs.tsv").write_text("source\ttarget\n" + "".join(f"a {i}\tb {i}\n" for i in range(40)))
    (folder / "short.txt").write_text(short)
    (folder / "empty.txt").write_text("")
    (folder / "binary.txt").write_bytes(bytes(range(256)))
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "config.py").write_text(CONFIG)
    (folder / "models").mkdir()
    (folder / "models" / "minilm").symlink_to("../classifier")  # which a shipped config starts from
    (folder / "link").symlink_to("model")
    (folder / "dangling").symlink_to("nothing")
    with contextlib.chdir(folder):
        assert main(["export", "model", "hf"]) == 0
        (folder / "held").mkdir()
        (folder / "held" / "train_config.json").write_text(
            json.dumps(to_data(headjax.train_config(headjax.load_config("config.py"))))
        )
    return folder


@pytest.fixture
def sandbox(pristine, tmp_path, monkeypatch):
    """A copy of the folder to work in; what would compute, start processes or look into the network ends instead."""
    folder = shutil.copytree(pristine, tmp_path / "sandbox", symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("HEADJAX_DATA", raising=False)
    inputs = importlib.import_module("headjax.models.inputs")
    checked = inputs.check_ranges
    monkeypatch.setattr(inputs, "check_ranges", lambda *given: (checked(*given), enough()))
    monkeypatch.setitem(sys.modules, "headjax.data.seqio_tasks", types.SimpleNamespace(tfds_rows=enough))
    for place in ("headjax.training.loop.Feed", "headjax.plan.tpu.Slice.devices", "jax.distributed.initialize"):
        monkeypatch.setattr(place, enough)
    return folder


REQUESTS = [
    line.split()
    for line in """
    prepare lm1b --out out --source short.txt --length 8 --vocab-size 260
    prepare mnli --out out --source labels.tsv --tokenizer classifier
    train --config config.py --workdir out
    train --config config.py:width=8,smoke --workdir out --profile-steps 1:2 --config.steps=3
    finetune classifier out --train labels.tsv --columns sentence,label --epochs 1
    finetune model out --train short.txt --steps 2 --validation text.txt
    finetune translator out --train pairs.tsv --length 12
    evaluate model --task short.txt --limit 8 --batch-size 4
    evaluate classifier --task labels.tsv --batch-size 3
    generate model --prompt ab --max-new-tokens 3 --top-k 2 --seed 1
    generate model --file short.txt --temperature 0.5 --top-p 0.9 --batch-size 2
    generate translator --prompt a --max-new-tokens 3
    predict classifier --text good --out out.tsv
    predict classifier --task labels.tsv --limit 3 --length 16
    predict translator --text abc --beams 2 --out out.jsonl
    evaluate model link --task short.txt
    inspect model --length 16
    inspect --config config.py --length 16
    score model --task short.txt --calibrate 4
    ablate model --task short.txt --mode each
    prune model out --remove decoder/0/0
    prune model out --remove 1 --by random --seed 3
    prune model out --remove 50% --task short.txt --reconstruct --calibrate 4
    convert model out --to grouped:kv_heads=1
    convert model out --to collaborative:shared_dim=8 --layers 0
    convert model out --to latent:rank=4 --task short.txt --calibrate 4
    shrink model out --task short.txt --parameters 80%
    shrink model out --task short.txt --budget flops=80% --budget drop=1%
    report model --task short.txt --out out.html --percentages 50,100 --orders importance
    import hf out --dtype float32
    export model out --layout padded
    plan --config config.py --topology v5e-8 --length 16
    """.strip().splitlines()
]
assert {words[0] for words in REQUESTS} == set(COMMANDS)

VALUES = (
    *("0", "-1", "7", "1000000000", "9" * 25, "0.5", "1e999", "nan", "1_000", "0x10", "\u0663", "", "-", "=", "x"),
    *("True", "None", "[[", "{'a.b': 1}", "{[]: 1}", "\\d", "a=b", "decoder/9/9", "40%", "1000%", "1:2:3", "random"),
    *("model", "classifier", "translator", "hf", "held", "link", "dangling", "out", "labels.tsv", "empty.txt"),
    *("binary.txt", "deep.json", "config.py", ".", "nowhere", "text.txt/x", "*.txt", "translation:pairs.tsv:a-b"),
    *("\n", "\x1b[0m", "[bold]", "%s", "{0}", "\ud800", "x" * 5000, "v3:2x2", "grouped:kv_heads=3", "latent:rank=0"),
)


def mutated(draw: random.Random) -> list[str]:
    """A request with one to three of its words changed, dropped, repeated, exchanged or added; mostly values."""
    words = [*draw.choice(REQUESTS), "--json", "result.json"]
    fields = dataclasses.fields(importlib.import_module(f"headjax.commands.{words[0]}").Options)
    options = [name_of(field) for field in fields if "option" in field.metadata and name_of(field).startswith("--")]
    for _ in range(draw.randint(1, 3)):
        at, other, value = draw.randrange(1, len(words)), draw.randrange(1, len(words)), draw.choice(VALUES)
        change = draw.choice(("value", "part", "option") * 4 + ("drop", "again", "exchange", "junk"))
        number = re.search(r"[0-9.]+(?!.*[0-9])|\w+$", words[at])
        if change == "option":
            words += [draw.choice((*options, "--no-such")), value]
        elif change == "value":
            words[at] = value
        elif change == "part" and number is not None:
            words[at] = words[at][: number.start()] + value + words[at][number.end() :]
        elif change == "drop" and len(words) > 2:
            del words[at]
        elif change == "exchange":
            words[at], words[other] = words[other], words[at]
        else:
            words.insert(at, words[at] if change == "again" else value)
    return words


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file below a folder."""
    found = {path.relative_to(folder).as_posix(): path.lstat() for path in folder.rglob("*")}
    return {name: (entry.st_size, entry.st_mtime_ns) for name, entry in found.items()}


def wrong_with(words: list[str], folder: Path) -> str:
    """Run a request; return what is wrong with the way in which it ends, or nothing."""
    out, err = io.StringIO(), io.StringIO()
    before = state_of(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("default")
            code = main(words)
    except SystemExit as stopped:  # --help
        return f"exits with {stopped.code}" if stopped.code else ""
    except Exception:
        return f"no line: {traceback.format_exc()}"
    said, left = err.getvalue(), state_of(folder).keys() - before.keys()
    if code not in (0, 2):
        return f"exits with {code}"
    tables = code == 0 and "-" in words  # `--json -` leaves standard output to the JSON
    if "Traceback" in said or (said.count("\n") > 5 and not tables):
        return f"says too much: {said[:500]}"
    if code == 2 and (not said.splitlines()[-1].startswith("headjax: error: ") or len(said) > 20_000):
        return f"says no error: {said[:500]}"
    if code == 2 and left:
        return f"leaves {sorted(left)[:3]}"
    if code == 0 and (folder / "result.json").is_file():
        json.loads((folder / "result.json").read_text(), parse_constant=pytest.fail)
    return ""


@pytest.mark.parametrize(("count", "seed"), [(25, 0), pytest.param(5000, 1, marks=pytest.mark.attack)])
def test_mutated_requests_of_every_command(count, seed, pristine, sandbox):
    """Fails with one example of everything that goes wrong."""
    draw, clean, findings = random.Random(seed), state_of(sandbox), {}
    for words in (mutated(draw) for _ in range(count)):
        wrong = wrong_with(words, sandbox)
        if wrong:
            end = re.sub(r"0x[0-9a-f]+|\d+", "N", wrong.strip().splitlines()[-1])[:80]
            findings.setdefault(f"{words[0]}: {end}", f"{words}\n{wrong[-3000:]}")
        if state_of(sandbox) != clean:
            for entry in sandbox.iterdir():
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
            shutil.copytree(pristine, sandbox, symlinks=True, dirs_exist_ok=True)
            clean = state_of(sandbox)
    assert not findings, "\n\n".join(findings.values())
