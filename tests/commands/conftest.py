"""A model directory and a text, and commands on them."""

import json

import pytest

from headjax.cli import main
from tests.commands.language_folder import write_language_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model directory with random weights and a text to try it on."""
    folder = tmp_path_factory.mktemp("commands")
    write_language_folder(folder, max_length=32)
    (folder / "empty.txt").write_text("")
    (folder / "labels.tsv").write_text("sentence\tlabel\ngood\t1\nbad\t0\n")
    return folder


@pytest.fixture
def run(folder, capsys):
    """Runs a command on the model and returns its JSON."""

    def run(command, *arguments, out=None, task=True):
        words = [command, str(folder / "model"), *([str(folder / out)] if out else []), *arguments]
        words += ["--task", str(folder / "text.txt"), "--limit", "16", "--batch-size", "8"] if task else []
        assert main([*words, "--json", "-"]) == 0
        return json.loads(capsys.readouterr().out)

    return run
