"""What commands print: the line of every refusal, as `golden/errors.txt` has it, and the JSON of every result.

A refusal has exit code 2 and writes nothing. `golden/json.json` has the keys and types of JSON. After a change of
wording that is meant, `HEADJAX_UPDATE_LISTINGS=1 pytest tests/commands/test_golden.py` writes the lines anew.
"""

import importlib.util
import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from headjax.cli import COMMANDS, main

ERRORS = Path(__file__).parent / "golden" / "errors.txt"
QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.py"


def golden() -> dict[str, str]:
    """Lines after `$ headjax`, with the line that each prints."""
    lines = iter(ERRORS.read_text().splitlines())
    return {line.removeprefix("$ headjax "): next(lines) for line in lines}


def words_of(line: str) -> list[str]:
    return [str(QUICKSTART) if word == "QUICKSTART" else word for word in shlex.split(line)]


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file."""
    found = {path: path.stat() for path in folder.rglob("*")}
    return {
        str(path): (entry.st_size, entry.st_mtime_ns) for path, entry in found.items() if path.name != "__pycache__"
    }


@pytest.mark.parametrize("line", golden())
def test_bad_requests_are_one_line_and_change_nothing(line, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    before = contents(folder)
    assert main(words_of(line)) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("headjax: error: ")
    told = printed.err.removeprefix("headjax: error: ").replace(str(folder.resolve()), "FOLDER")
    if os.environ.get("HEADJAX_UPDATE_LISTINGS"):
        lines = golden() | {line: told.rstrip("\n")}
        ERRORS.write_text("".join(f"$ headjax {request}\n{text}\n" for request, text in lines.items()))
    assert (printed.out, told) == ("", f"{golden()[line]}\n")
    assert contents(folder) == before


def test_older_results_are_replaced(folder, tmp_path):
    (tmp_path / "void.json").write_text("")
    (tmp_path / "other.json").write_text('{"mine": 1}')
    for name, *more in (["result.json"], ["result.json"], ["void.json"], ["other.json", "--overwrite"]):
        assert main(["inspect", str(folder / "model"), "--json", str(tmp_path / name), *more]) == 0
        assert json.loads((tmp_path / name).read_text())["heads"] == 4
    assert main(["inspect", str(folder / "model"), "--json", "/dev/stderr"]) == 0


@pytest.mark.parametrize("option", ["--max-new-tokens", "--cache", "--beams"])
def test_what_takes_more_memory_than_there_is_names_its_option(option, folder, capsys):
    assert (
        main(["generate", str(folder / "model"), "--prompt", "a", "--max-new-tokens", "3", option, "1" + 12 * "0"]) == 2
    )
    assert capsys.readouterr().err.startswith(f"headjax: error: {option}: ")


GOLDEN = Path(__file__).parent / "golden" / "json.json"

TASK = "--task text.txt --limit 8 --batch-size 8"

WORDS = {
    "tasks": "tasks",
    "inspect": "inspect model",
    "score": f"score model {TASK}",
    "ablate": f"ablate model {TASK} --mode each,all-but-one",
    "prune": f"prune model OUT/prune {TASK} --remove 1",
    "prune --max-drop": f"prune model OUT/drop {TASK} --max-drop 50% --by random",
    "prune --reconstruct": f"prune model OUT/repaired {TASK} --remove decoder/0/0 --reconstruct --feed-forward",
    "prune --fine-tune": f"prune model OUT/tuned {TASK} --remove decoder/0/0 --fine-tune 2",
    "convert": f"convert model OUT/convert {TASK} --to grouped:kv_heads=1 --calibrate 8",
    "convert without a task": "convert model OUT/plain --to grouped:kv_heads=1",
    "shrink": f"shrink model OUT/shrunk {TASK} --parameters 60% --calibrate 8 --work OUT/work --out OUT/shrunk.html",
    "shrink --frontier": f"shrink model {TASK} --frontier --calibrate 8 --work OUT/work",
    "evaluate": f"evaluate model {TASK}",
    "compare": f"compare model model {TASK} --repeats 2",
    "sharing": f"sharing model {TASK} --budget 16 --plots OUT/plots",
    "report": f"report model --out OUT/heads.html {TASK} --orders random --seeds 1 --selected 8 --percentages 100",
    "generate": "generate model --prompt A --max-new-tokens 4",
    "generate --beams": "generate model --prompt A --max-new-tokens 4 --beams 2",
    "predict": "predict classifier --task films.tsv --limit 4",
    "finetune": "finetune classifier OUT/finetune --train films.tsv --steps 2 --evaluations 1",
    "train": "train --config config.py --workdir OUT/run --config.data.path=text.txt",
    "import": "import OUT/hf OUT/import",
    "export": "export model OUT/hf --check --layout padded",
    "tokenizer": "tokenizer text.txt --out OUT/tokenizer --vocab-size 280",
    "prepare": "prepare lm1b --out OUT/data --source text.txt --vocab-size 280 --length 16",
}
"""Commands of which a golden JSON is kept, in an order in which each finds what it reads; exports before imports."""

ELSEWHERE = {"plan"}
"""Commands whose JSON takes minutes, or a compiler that is not everywhere; their own tests look at it."""


def shape(value: Any) -> Any:
    """The keys and types of JSON data; heads, layers and targets are one key, items of a list one."""
    if isinstance(value, dict):
        for name, pattern in (("HEAD", r"[a-z]+/\d+(/\d+)?"), ("TARGET", r"\w+:.*")):
            if value and all(re.fullmatch(pattern, key) for key in value):
                return {name: shape(next(iter(value.values())))}
        return {key: shape(entry) for key, entry in sorted(value.items())}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    names = {bool: "bool", str: "text", type(None): "null"}
    return names.get(type(value), "number")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("out")


QUICK = "inspect tasks evaluate score ablate predict compare prune convert generate tokenizer".split()  # noqa: SIM905
"""Commands whose golden JSON `make test` looks at, too."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.whole)
        for name in sorted(WORDS, key=lambda name: (name == "import", list(WORDS).index(name)))
    ],
)
def test_json_has_the_keys_and_types_of_the_golden_file(name, folder, out, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    words = WORDS[name].replace("OUT/", f"{out}/").split()
    golden = json.loads(GOLDEN.read_text())[name]
    if any(importlib.util.find_spec(peer) is None for peer in ("transformers", "torch")):
        golden |= {"transformers": "null"} if "transformers" in golden else {}
    assert main([*words, "--json", "-"]) == 0
    assert shape(json.loads(capsys.readouterr().out)) == golden


def test_every_command_has_a_golden_json():
    assert {name.split()[0] for name in WORDS} | ELSEWHERE == set(COMMANDS)
    assert set(WORDS) == set(json.loads(GOLDEN.read_text()))
