"""What commands refuse, by the name in `refusals.tsv`, and the keys of their JSON.

A refusal is one line that begins with the option, field or file, has exit code 2 and writes nothing.
"""

import json
import re
import shlex
from pathlib import Path
from typing import get_args

import pytest

from headjax.cli import COMMANDS, GROUPS
from headjax.commands import convert, export
from headjax.commands.prune import OrderName
from headjax.conversion.model import TARGETS
from headjax.heads.orders import ORDERS
from headjax.hub.layouts import LAYOUTS
from headjax.hub.onnx import QUANTIZED
from tests.command_line import main

REFUSALS = [
    line.split("\t") for line in (Path(__file__).parent / "refusals.tsv").read_text(encoding="utf-8").splitlines()
]
QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.py"


def words_of(line: str) -> list[str]:
    return [str(QUICKSTART) if word == "QUICKSTART" else word for word in shlex.split(line)]


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file."""
    found = {path: path.stat() for path in folder.rglob("*")}
    return {
        str(path): (entry.st_size, entry.st_mtime_ns) for path, entry in found.items() if path.name != "__pycache__"
    }


@pytest.mark.parametrize(("name", "line"), REFUSALS, ids=[line for _, line in REFUSALS])
def test_bad_requests_are_one_line_and_change_nothing(name, line, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.delenv("HEADJAX_DATA", raising=False)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    before = contents(folder)
    assert main(words_of(line)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert re.match(rf"headjax: error: (\S*/)?{re.escape(name)}: .", printed.err)
    assert contents(folder) == before


HINTS = {
    "score model text.txt": "; data is named by an option: --task text.txt",
    "predict model text.txt": "; data is named by an option: --task text.txt",
    "finetune model bad text.txt": "; data is named by an option: --train text.txt",
    "evaluate model hf://datasets/a/b": "; data is named by an option: --task hf://datasets/a/b",
    "score model --calibration text.txt": "--task",  # where the file belongs to an option, nothing is told of it
    "prune model bad remove=40%": "; options begin with dashes: --remove 40%",
    "prune model bad remove: 40%": "; options begin with dashes: --remove",
    "prune model bad -remove=40%": "; options begin with dashes: --remove 40%",
    "score model task=text.txt": "; options begin with dashes: --task text.txt",
    "score model --task text.txt batch_size=8": "; options begin with dashes: --batch-size 8",
}


@pytest.mark.parametrize("line", HINTS)
def test_a_stray_word_is_told_with_the_option_that_it_means(line, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(line.split()) == 2
    assert capsys.readouterr().err.rstrip("\n").endswith(HINTS[line])


@pytest.mark.parametrize("line", ["score classifier", "shrink classifier bad --budget parameters=60%", "predict model"])
def test_a_table_without_a_header_is_told_with_the_numbers_of_its_columns(line, folder, capsys, monkeypatch):
    """The option that is told makes the command read the table."""
    monkeypatch.chdir(folder)
    assert main([*line.split(), "--task", "bare.tsv"]) == 2
    assert capsys.readouterr().err.endswith("; rename them, or say --columns 0,1\n")


def test_columns_by_number_read_a_table_without_a_header(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(["evaluate", "classifier", "--task", "bare.tsv", "--columns", "0,1", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 3


def test_results_are_replaced_and_other_files_are_not(folder, tmp_path):
    for name, *more in (["result.json"], ["result.json"], ["data.tsv"], ["data.tsv", "--overwrite"]):
        taken = (tmp_path / name).exists() and name == "data.tsv" and not more
        assert main(["inspect", str(folder / "model"), "--json", str(tmp_path / name), *more]) == (2 if taken else 0)
        assert json.loads((tmp_path / name).read_text())["heads"] == 4
    assert main(["inspect", str(folder / "model"), "--json", str(tmp_path / "data.tsv")]) == 2
    assert main(["inspect", str(folder / "model"), "--json", "/dev/stderr"]) == 0


def test_what_takes_more_memory_than_there_is_names_its_option(folder, capsys):
    words = ["generate", str(folder / "translation"), "--prompt", "a", "--max-new-tokens", "1" + 12 * "0"]
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("headjax: error: --max-new-tokens: ")


def test_help_lists_every_command_in_a_group_and_has_an_example_of_each(capsys):
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert all(f"{group}:\n" in listed for group in GROUPS)
    assert all(
        re.search(rf"^  {name} +{re.escape(command.purpose)}$", listed, re.M) for name, command in COMMANDS.items()
    )
    for name, command in COMMANDS.items():
        with pytest.raises(SystemExit):
            main([name, "--help"])
        shown = capsys.readouterr().out
        assert f"example:\n  {command.example}" in shown
        options = set(re.findall(r"^  (--[a-z-]+)", shown, re.M)) - {"--json", "--overwrite", "--import"}
        assert len(options) <= 17, options
        assert command.example.startswith(f"headjax {name} ")
        assert set(re.findall(r" (--[a-z-]+)", command.example)) <= options | {"--json"}


TASK = "--task text.txt --limit 8 --batch-size 8"
HEAD = "decoder/1/0"

CONTRACT = {
    "inspect model": "parameters heads flops cache_bytes_per_token layers",
    f"evaluate model {TASK}": "metrics.loss metrics.perplexity examples",
    f"evaluate model model {TASK}": "metrics examples other.metrics other.significance.p_value other.speed_up",
    f"score model {TASK}": f"scores.importance.{HEAD} examples seconds",
    f"ablate model {TASK} --mode each,all-but-one": f"baseline.loss effect.{HEAD} modes.all-but-one.effect.{HEAD}",
    "predict classifier --task films.tsv --limit 4": "predictions",
    "generate model --prompt A --max-new-tokens 4": "text tokens_per_second",
    f"prune model OUT/prune {TASK} --remove 1": "kept removed parameters metrics.loss",
    "convert model OUT/plain --to grouped:kv_heads=1": "error_per_layer parameters metrics",
    f"convert model OUT/convert {TASK} --to grouped:kv_heads=1 --calibrate 8": "error_per_layer parameters metrics",
    f"shrink model OUT/shrunk {TASK} --budget parameters=60% --work OUT/work":
        "layers budget.parameters.left predicted.damage metrics.loss frontier",
    f"report model --out OUT/heads.html {TASK} --orders random --seeds 1 --percentages 100": "scores curves report",
    "finetune classifier OUT/finetune --train films.tsv --steps 2 --evaluations 1": "steps metrics.loss model",
    "finetune classifier OUT/distilled --train films.tsv --steps 2 --teacher classifier": "steps metrics.loss model",
    "train --config config.py --workdir OUT/run --config.data.task=text.txt":
        "steps metrics.loss tokens_per_second model",
    "export model OUT/hf --check --layout padded": "family tensors max_difference",
    "import OUT/hf OUT/import": "family tensors",
    "prepare lm1b --out OUT/data --source text.txt --vocab-size 280 --length 16": "examples shards",
}  # fmt: skip
"""Commands in an order in which each finds what it reads, and the keys that their JSON has; `a.b` is a key of a key."""

QUICK = ("inspect", "evaluate", "score", "predict", "prune", "convert", "generate")
"""Commands whose JSON `make test` looks at, too. That of `plan` needs a compiler that is not everywhere."""


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("out")


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=() if line.split()[0] in QUICK else pytest.mark.whole) for line in CONTRACT]
)
def test_json_alone_is_on_stdout_and_has_the_keys_of_the_contract(line, folder, out, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert main([*line.replace("OUT/", f"{out}/").split(), "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    for key in CONTRACT[line].split():
        value = data
        for part in key.split("."):
            value = value[part]
        assert value is not None
    for error in data.get("error_per_layer", ()):
        assert {"stack", "layer", "relative_error"} <= error.keys()


def test_every_command_has_a_contract():
    assert {line.split()[0] for line in CONTRACT} | {"plan"} == set(COMMANDS)


def test_names_that_are_known_before_the_imports_are_all_there_are():
    assert set(get_args(OrderName)) == set(ORDERS)
    assert set(convert.TARGETS) == set(TARGETS)
    assert {*get_args(export.Layout)} == {"auto", *LAYOUTS, "onnx", "maxtext"}
    assert {*get_args(export.Quantized)} == {*QUANTIZED}
