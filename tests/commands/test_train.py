"""`headjax train`: a model that inspect reads, and a run that goes on only as it began."""

import json

import pytest

from headjax.cli import main
from tests.test_cli import CONFIG, error_of


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


def test_train_writes_a_model_that_inspect_reads(config, text, tmp_path, capsys):
    workdir = str(tmp_path / "run")
    arguments = ["train", "--config", config, "--workdir", workdir, f"--config.data.path={text}", "--json", "-"]
    assert main(arguments) == 0
    trained = json.loads(capsys.readouterr().out)
    assert trained["steps"] == 2
    assert trained["finished"] is True
    assert trained["metrics"]["perplexity"] > 1
    assert trained["tokens_per_second"] > 0
    assert main(["inspect", trained["model"], "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == trained["parameters"]
    assert "config.steps is 2 there and 3 here" in error_of(capsys, *arguments[:-2], "--config.steps=3")


@pytest.mark.parametrize("name", ["--profile-steps", "--profile_steps"])
def test_steps_to_profile_in_both_spellings(name, config, tmp_path, capsys):
    said = error_of(capsys, "train", "--config", config, "--workdir", str(tmp_path / "run"), name, "5:2")
    assert "expected FIRST:LAST such as 10:15, got '5:2'" in said
