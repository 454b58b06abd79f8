"""Options from dataclasses: types, bounds, errors that name an option as typed; and modules of the user's own."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

import headjax
from headjax.cli import Parser
from headjax.commands.options import CommandOptions, argument, option, parse_options
from headjax.core.fields import Count, Rate
from tests.command_line import main


def of_thousand(text: str) -> int:
    if not text.endswith("k"):
        raise ValueError(f"expected thousands such as 3k, got {text!r}")
    return 1000 * int(text[:-1])


class Options(CommandOptions):
    source: str = argument("SOURCE", "where it comes from")
    out: str = argument("OUT", "where it goes")
    warm_up: Count = option(3, "steps at first")
    dropout: Rate = option(0.25, "share of zeros", "R")
    kind: Literal["one", "two"] = option("one", "how it is made")
    layers: tuple[headjax.nn.Size, ...] = option((), "only these", "LAYERS")
    names: tuple[str, ...] = option((), "only these, 10% of them", "NAMES")
    files: tuple[str, ...] = option((), "some files", "FILE", words="many")
    set: tuple[str, ...] = option((), "one field", "FIELD=VALUE", words="repeated")
    memory: int | None = option(None, "its memory", "SIZE", read=of_thousand, shown="2k")
    check: bool = option(False, "look at it again")
    count: Count = option(2, "how often", name="--times")
    overrides: tuple[str, ...] = ()


def parsed(*words: str, **given):
    return parse_options(Options, words, Parser(prog="headjax try"), **given)


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("a b", {}),
        ("a --warm-up 3 b", {}),  # a word stands anywhere
        ("--check a b", {"check": True}),
        ("a b --war 8", {"warm_up": 8}),  # a name can be shortened
        ("a b --times 4", {"count": 4}),  # and need not be the field's
        ("a b --layers 3,1 --names x,y --kind two", {"layers": (3, 1), "names": ("x", "y"), "kind": "two"}),
        ("a b --dropout 1e-1 --memory 2k --json -", {"dropout": 0.1, "memory": 2000, "json": "-"}),
        ("a b --set p=1 --check --set q=2 --files f g", {"set": ("p=1", "q=2"), "check": True, "files": ("f", "g")}),
    ],
)
def test_every_type_is_read_and_defaults_are_those_of_the_dataclass(line, fields):
    assert parsed(*line.split()) == Options(source="a", out="b", **fields)
    assert parsed(*line.split(), overrides=("z",)).overrides == ("z",)


def test_the_help_shows_defaults(capsys):
    with pytest.raises(SystemExit) as stopped:
        parsed("--help")
    assert stopped.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "headjax try" in shown
    for text in (
        "OUT where it goes", "steps at first (default 3)", "(default 0.25)", "{one,two}",
        "--times N how often (default 2)",
        "10% of them", "its memory (default 2k)", "look at it again", "write the result as JSON",
    ):  # fmt: skip
        assert text in shown


MODULE = """
from headjax.nn import MultiHeadAttention, formulation

@formulation("my_heads")
class MyHeads(MultiHeadAttention):
    pass
"""

CONFIG = """
import my_module
from ml_collections import ConfigDict

def get_config(arg=""):
    return ConfigDict({"model": {
        "kind": "decoder", "vocab_size": 257, "max_length": 32, "width": 16, "num_layers": 1,
        "attention": {"kind": "my_heads", "num_heads": 2, "head_dim": 8},
        "hidden": 16,
    }})
"""


def test_a_module_of_the_users(folder, tmp_path, monkeypatch, capsys):
    """One process saves a model of it; each of the others begins without it."""
    place = tmp_path / "configs"
    place.mkdir()
    (place / "my_module.py").write_text(MODULE)
    (place / "tiny.py").write_text(CONFIG)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["inspect", "--config", str(place / "tiny.py"), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["heads"] == 2
    model = headjax.load(folder / "model")
    attention = headjax.Kind(sys.modules.pop("my_module").MyHeads, **model.config.attention[0].options)
    model.replace(config=dataclasses.replace(model.config, attention=attention)).save(tmp_path / "mine")

    def run(*words):
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        command = [sys.executable, "-m", "headjax", *words]
        return subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True, check=False)

    refused = run("inspect", str(tmp_path / "mine"))
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "--import my_module" in refused.stderr
    words = ("--remove", "1", "--by", "random", "--import", str(place / "my_module.py"))
    assert run("prune", str(tmp_path / "mine"), str(tmp_path / "out"), *words).returncode == 0
