"""The JSON of every command: its keys and types, as `golden/json.json` has them."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from headjax.cli import COMMANDS, main
from tests.slow import writers
from tests.test_cli import CONFIG
from tests.training.test_grid import CONFIG as GRID

GOLDEN = Path(__file__).parent / "golden" / "json.json"

TASK = "--task IN/text.txt --limit 8 --batch-size 8"

WORDS = {
    "tasks": "tasks",
    "inspect": "inspect IN/model",
    "score": f"score IN/model {TASK}",
    "ablate": f"ablate IN/model {TASK} --mode each,all-but-one",
    "prune": f"prune IN/model OUT/prune {TASK} --remove 1",
    "prune --max-drop": f"prune IN/model OUT/drop {TASK} --max-drop 50% --by random",
    "prune --flops": "prune IN/model OUT/flops --flops 90% --by random --uniform",
    "prune --speed-up": f"prune IN/model OUT/speed {TASK} --speed-up 1 --by random",
    "prune --reconstruct": f"prune IN/model OUT/repaired {TASK} --remove decoder/0/0 --reconstruct --feed-forward",
    "prune --fine-tune": f"prune IN/model OUT/tuned {TASK} --remove decoder/0/0 --fine-tune 2",
    "convert": f"convert IN/model OUT/convert {TASK} --to grouped:kv_heads=1 --calibrate 8",
    "convert without a task": "convert IN/model OUT/plain --to grouped:kv_heads=1",
    "shrink": f"shrink IN/model OUT/shrunk {TASK} --parameters 60% --calibrate 8 --work OUT/work --out OUT/shrunk.html",
    "shrink --frontier": f"shrink IN/model {TASK} --frontier --calibrate 8 --work OUT/work",
    "evaluate": f"evaluate IN/model {TASK}",
    "compare": f"compare IN/model IN/model {TASK} --repeats 2",
    "sharing": f"sharing IN/model {TASK} --budget 16 --plots OUT/plots",
    "sweep": f"sweep IN/model OUT/sweep {TASK} --to grouped:kv_heads=1",
    "sweep --remove": f"sweep IN/model OUT/sweep {TASK} --remove 25% --by random --repair none,reconstruct",
    "report": f"report IN/model --out OUT/heads.html {TASK} --orders random --seeds 1 --selected 8 --percentages 100",
    "generate": "generate IN/model --prompt A --max-new-tokens 4",
    "generate --beams": "generate IN/model --prompt A --max-new-tokens 4 --beams 2",
    "predict": "predict IN/classifier --task IN/films.tsv --limit 4",
    "finetune": "finetune IN/classifier OUT/finetune --train IN/films.tsv --steps 2 --evaluations 1",
    "train": "train --config IN/train.py --workdir OUT/run --config.data.path=IN/text.txt",
    "grid": "grid OUT/grid --config IN/grid.py --over peak=0.01",
    "import": "import OUT/hf OUT/import",
    "export": "export IN/model OUT/hf --check --layout padded",
    "tokenizer": "tokenizer IN/text.txt --out OUT/tokenizer --vocab-size 280",
    "verify": "verify IN/model",
    "prepare": "prepare lm1b --out OUT/data --source IN/text.txt --vocab-size 280 --length 16",
}
"""Commands of which a golden JSON is kept, in an order in which each finds what it reads; exports before imports."""

ELSEWHERE = {"quickstart", "plan", "bench"}
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
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    writers.write_inputs(folder)
    (folder / "train.py").write_text(CONFIG)
    (folder / "grid.py").write_text(GRID.replace("PATH", repr(str(folder / "text.txt"))))
    return folder


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("out")


QUICK = "inspect tasks verify evaluate score ablate predict compare prune convert generate tokenizer".split()  # noqa: SIM905
"""Commands whose golden JSON `make test` looks at, too."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.whole)
        for name in sorted(WORDS, key=lambda name: (name == "import", list(WORDS).index(name)))
    ],
)
def test_json_has_the_keys_and_types_of_the_golden_file(name, inputs, out, capsys):
    words = [word.replace("IN/", f"{inputs}/").replace("OUT/", f"{out}/") for word in WORDS[name].split()]
    golden = json.loads(GOLDEN.read_text())[name]
    if any(importlib.util.find_spec(peer) is None for peer in ("transformers", "torch")):
        golden |= {"transformers": "null"} if "transformers" in golden else {}
    assert main([*words, "--json", "-"]) == 0
    assert shape(json.loads(capsys.readouterr().out)) == golden


def test_every_command_has_a_golden_json():
    assert {name.split()[0] for name in WORDS} | ELSEWHERE == set(COMMANDS)
    assert set(WORDS) == set(json.loads(GOLDEN.read_text()))
