"""The command line's frame: exit codes, one-line errors, JSON alone on stdout."""

import dataclasses
import errno
import json
import os
import subprocess
import sys
import types
import warnings

import numpy as np
import pytest

import headjax
from headjax.commands.outputs import ABSENT, CommandResult, key, keys_of, record
from headjax.report.tables import Column, Table
from tests import tiny
from tests.command_line import main


class Numbers(CommandResult):
    loss: float = key()
    losses: list = key()
    heads: np.ndarray = key()


class Recorded(CommandResult):
    task: object = record("headjax.evaluation.task.Task", "higher_is_better", named="name")
    scores: object = record("headjax.heads.scoring.Scores", "loss", suffix="_before", default=None)


class Shown(CommandResult):
    shown: list = dataclasses.field(default_factory=list)
    last: str = ""

    def tables(self):
        return self.shown

    def message(self):
        return self.last


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.py"
    path.write_text(tiny.config_file())
    return str(path)


@pytest.fixture
def inspect(config, monkeypatch):
    """Runs `headjax inspect` with this in its place; returns the exit code."""

    def inspect(run, *more):
        monkeypatch.setattr("headjax.commands.inspect.run", lambda options, progress: run())
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            return main(["inspect", "--config", config, *more])

    return inspect


def error_of(capsys, *arguments):
    """The one line a failing command prints; its exit code must be 2 and stdout empty."""
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("headjax: error: ")
    assert printed.err.count("\n") == 1
    return printed.err.removeprefix("headjax: error: ").rstrip("\n")


def test_json_on_stdout_stands_alone_and_tables_go_there_otherwise(config, tmp_path, capsys):
    assert main(["inspect", "--config", config, "--json", "-"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["heads"] == 4
    assert "Formulation" in printed.err
    path = tmp_path / "new" / "result.json"
    assert main(["inspect", "--config", config, "--json", str(path)]) == 0
    assert "Formulation" in capsys.readouterr().out
    assert json.loads(path.read_text())["heads"] == 4


def test_bad_input_is_one_line_and_exit_code_2(capsys):
    """`commands/refusals.tsv` has what every command refuses."""
    assert error_of(capsys, "inspect", "a\nb\x1b[0m\u2028").startswith(r"a\nb\x1b[0m\u2028: ")
    assert error_of(capsys, "inspekt").startswith("COMMAND: ")


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("batch_size=1000000000", "config.batch_size: 1,000,000,000 examples"),
        ("model.num_layers=10000", "config.model: "),
        ("model.num_layers=1000000000", "config.model.num_layers: "),
    ],
)
def test_what_cannot_fit_is_refused_before_it_is_built(override, field, config, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HEADJAX_MEMORY", "100M")
    (tmp_path / "text.txt").write_text("\n\n".join(f"Paragraph {i} says {i * i}." for i in range(2000)))
    train = ("train", "--config", config, "--workdir", str(tmp_path / "run"))
    data = f"--config.data.task={tmp_path / 'text.txt'}"
    assert error_of(capsys, *train, data, f"--config.{override}").startswith(field)
    assert not (tmp_path / "run").exists()


def test_json_has_the_seconds_of_the_command_and_null_for_numbers_that_are_not_finite(inspect, tmp_path):
    numbers = Numbers(loss=float("nan"), losses=[np.float32("inf"), 1.5], heads=np.arange(2))
    path = tmp_path / "result.json"
    assert inspect(lambda: numbers, "--json", str(path)) == 0
    data = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert 0 <= data.pop("command_seconds") < 60
    assert data == {"loss": None, "losses": [None, 1.5], "heads": [0, 1]}


def test_attributes_of_a_record_are_keys_that_its_class_documents():
    task = types.SimpleNamespace(name="sst2", higher_is_better=True)
    assert Recorded(task=task).to_json() == {"higher_is_better": True, "named": "sst2"}
    for loss, shown in ((0.5, {"loss_before": 0.5}), (ABSENT, {})):
        data = Recorded(task=task, scores=types.SimpleNamespace(loss=loss)).to_json()
        assert data == {"higher_is_better": True, "named": "sst2"} | shown
    meanings = keys_of(Recorded)
    assert meanings["named"] == "name or file of the task."
    assert meanings["higher_is_better"] == "Whether a higher primary metric is better."
    assert meanings["loss_before"] == ""


def raising(error, hidden=None):
    """A command that raises an error, maybe while it handles another one."""

    def run():
        try:
            raise hidden or error
        finally:
            raise error

    return run


@pytest.mark.parametrize(
    ("run", "code", "said"),
    [
        (lambda: warnings.warn("model: damaged", stacklevel=2) or Shown(), 0, "warning: model: damaged"),
        (raising(OSError(errno.ENOSPC, "No space left on device", "out/config.json")), 2,
         "error: out/config.json: no space left on device"),
        (raising(AttributeError("half done"), KeyboardInterrupt()), 130, "interrupted"),
    ],
)  # fmt: skip
def test_warnings_failures_of_the_machine_and_interrupts_are_one_line(run, code, said, inspect, capsys):
    assert inspect(run) == code
    assert capsys.readouterr() == ("", f"headjax: {said}\n")


def test_a_defect_keeps_its_traceback(inspect):
    with pytest.raises(KeyError):
        inspect(raising(KeyError("x")))


@pytest.mark.whole
def test_a_reader_that_has_seen_enough_or_a_closed_stdout_is_no_failure():
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "headjax", "--help"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, text=True, check=False, env=buffered)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")
    done = subprocess.run(["bash", "-c", '"$@" >&-', "_", *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (0, "", False)


@pytest.mark.whole
def test_a_platform_that_jax_lacks_is_one_line(tmp_path):
    words = [*["-m", "headjax", "train", "--config", "configs/quickstart.py", "--workdir"], str(tmp_path)]
    env = {**os.environ, "JAX_PLATFORMS": "cuda"}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("headjax: error: JAX_PLATFORMS: ")


def test_control_characters_are_spelled_wherever_they_are_printed(inspect, capsys, monkeypatch):
    hostile = "\x1b]52;c;aGk=\x07\u202e\x9b"

    def run():
        warnings.warn(hostile, stacklevel=2)
        return Shown(shown=[Table([Column(hostile)], [[hostile]], title=hostile, notes=[hostile])], last=hostile)

    assert inspect(run) == 0
    printed = capsys.readouterr()
    assert all(each.isprintable() or each == "\n" for each in printed.out + printed.err)
    assert printed.out.count("aGk=") == 5
    monkeypatch.undo()
    assert error_of(capsys, "inspect", hostile).isprintable()


def test_the_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.strip() == f"headjax {headjax.__version__}"


REFUSED = (
    "inspekt",
    "score headjax/hub/demo --task LICENSE --unknown",
    "score nowhere --task LICENSE",
    "score headjax/hub/demo --task sst3",
    "finetune headjax/hub/demo {new} --train nowhere.tsv",
    "score headjax/hub/demo --task LICENSE --calibration text:nowhere.txt",
    "generate headjax/hub/demo --file nowhere.txt",
    "train --config nowhere.py --workdir {new}",
    "prune headjax/hub/demo docs --remove 40%",
    "prune headjax/hub/demo {new} --remove 40% --by importanc --task LICENSE",
    "convert headjax/hub/demo {new} --to colaborative",
)
"""What is refused by its names and files alone."""


def test_neither_the_import_nor_help_nor_refusals_import_jax(tmp_path):
    lines = [["--help"], ["score", "--help"], *(line.format(new=tmp_path / "new").split() for line in REFUSED)]
    code = f"""
import contextlib, sys, headjax
from headjax.cli import main
codes = []
for line in {lines}:
    try:
        codes.append(main(line))
    except SystemExit as stopped:
        codes.append(stopped.code)
heavy = ["flax", "jax", "matplotlib", "orbax", "tensorflow", "torch", "transformers"]
print(codes, [name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"{[0, 0] + [2] * len(REFUSED)} []"
    assert done.stderr.count("\n") == len(REFUSED)
