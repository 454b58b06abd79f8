"""The command line's frame: exit codes, one-line errors, JSON alone on stdout."""

import dataclasses
import errno
import json
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest

from headjax import __version__
from headjax.cli import COMMANDS, main
from headjax.commands.results import Result, found
from headjax.report.tables import Column, Table

CONFIG = """
from ml_collections import ConfigDict

def get_config(arg=""):
    return ConfigDict({
        "model": {
            "kind": "language_model", "vocab_size": 300, "max_length": 16, "width": 16, "num_layers": 2,
            "attention": {"kind": "multi_head", "num_heads": 2, "head_dim": 8},
            "feed_forward": {"kind": "dense", "hidden": 16},
        },
        "data": {"kind": "language", "path": "", "length": 16, "tokenizer": "bytes"},
        "batch_size": 8, "steps": 2,
        "optimizer": {"kind": "adamw", "schedule": {"kind": "constant_rate", "peak": 0.001}},
        "tensorboard": False,
    })
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numbers(Result):
    loss: float = found()
    losses: list = found()
    heads: np.ndarray = found()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shown(Result):
    shown: list = dataclasses.field(default_factory=list)
    last: str = ""

    def tables(self):
        return self.shown

    def message(self):
        return self.last


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.py"
    path.write_text(CONFIG)
    return str(path)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(f"Paragraph {i} says that {i * i} is the square of {i}." for i in range(400)))
    return str(path)


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
    """`commands/golden/errors.txt` has what every command refuses."""
    assert error_of(capsys, "inspect", "a\nb\x1b[0m\u2028").startswith(r"a\nb\x1b[0m\u2028: ")
    assert error_of(capsys, "inspekt").startswith("COMMAND: ")


def test_what_cannot_fit_is_refused_before_it_is_built(config, text, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HEADJAX_MEMORY", "100M")
    train = ("train", "--config", config, "--workdir", str(tmp_path / "run"), f"--config.data.path={text}")
    for override, field in (
        ("batch_size=1000000000", "config.batch_size: 1,000,000,000 examples"),
        ("model.num_layers=10000", "config.model: "),
        ("model.num_layers=1000000000", "config.model.num_layers: "),
    ):
        assert error_of(capsys, *train, f"--config.{override}").startswith(field)
    assert not (tmp_path / "run").exists()


def test_json_has_the_seconds_of_the_command_and_null_for_numbers_that_are_not_finite(config, tmp_path, monkeypatch):
    import headjax.commands.inspect as inspect

    def run(options, progress):
        return Numbers(loss=float("nan"), losses=[np.float32("inf"), 1.5], heads=np.arange(2))

    monkeypatch.setattr(inspect, "run", run)
    path = tmp_path / "result.json"
    assert main(["inspect", "--config", config, "--json", str(path)]) == 0
    data = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert 0 <= data.pop("command_seconds") < 60
    assert data == {"loss": None, "losses": [None, 1.5], "heads": [0, 1]}


def test_a_warning_is_one_line(config, capsys, monkeypatch):
    def run(options, progress):
        warnings.warn("checkpoints/7: damaged", stacklevel=2)
        return Shown()

    monkeypatch.setattr("headjax.commands.inspect.run", run)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["inspect", "--config", config]) == 0
    assert capsys.readouterr().err == "headjax: warning: checkpoints/7: damaged\n"


def test_failures_of_the_machine_are_one_line_and_a_defect_keeps_its_traceback(config, capsys, monkeypatch):
    error = OSError(errno.ENOSPC, "No space left on device", "out/config.json")

    def run(options, progress):
        raise error

    monkeypatch.setattr("headjax.commands.inspect.run", run)
    assert error_of(capsys, "inspect", "--config", config) == "out/config.json: no space left on device"
    error = KeyError("x")
    with pytest.raises(KeyError):
        main(["inspect", "--config", config])


@pytest.mark.parametrize(("end", "code"), [("| true; exit ${PIPESTATUS[0]}", 141), (">&-", 0)])
def test_a_reader_that_has_seen_enough_or_a_closed_stdout_is_no_failure(end, code):
    command = f"{sys.executable} -m headjax.cli tasks {end}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")


def test_a_platform_that_jax_lacks_is_one_line(tmp_path):
    words = [sys.executable, "-m", "headjax.cli", "quickstart", "--workdir", str(tmp_path / "run")]
    env = {**os.environ, "JAX_PLATFORMS": "cuda"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("headjax: error: JAX_PLATFORMS: ")


def test_an_interrupt_that_another_error_hides_is_an_interrupt(config, capsys, monkeypatch):
    def run(options, progress):
        try:
            raise KeyboardInterrupt
        finally:
            raise AttributeError("half done")

    monkeypatch.setattr("headjax.commands.inspect.run", run)
    assert main(["inspect", "--config", config]) == 130
    assert capsys.readouterr().err == "headjax: interrupted\n"


def test_control_characters_are_spelled_wherever_they_are_printed(config, capsys, monkeypatch):
    hostile = "\x1b]52;c;aGk=\x07\u202e\x9b"

    def run(options, progress):
        print(hostile)
        warnings.warn(hostile, stacklevel=2)
        return Shown(shown=[Table([Column(hostile)], [[hostile]], title=hostile, notes=[hostile])], last=hostile)

    monkeypatch.setattr("headjax.commands.inspect.run", run)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["inspect", "--config", config]) == 0
    printed = capsys.readouterr()
    assert all(each.isprintable() or each == "\n" for each in printed.out + printed.err)
    assert printed.out.count("aGk=") == 6
    monkeypatch.undo()
    assert error_of(capsys, "inspect", hostile).isprintable()


def test_help_and_version(capsys):
    assert main([]) == 0
    assert set(COMMANDS) <= set(capsys.readouterr().out.split())
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.strip() == f"headjax {__version__}"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([name, "--help"])
    assert stopped.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_importing_headjax_imports_nothing_heavy():
    code = (
        "import sys, headjax; print(sorted({'jax', 'orbax', 'matplotlib', 'tensorflow', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
