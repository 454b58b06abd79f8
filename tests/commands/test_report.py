"""`headjax report`: the page holds the numbers of the other commands."""

from __future__ import annotations

import re

import pytest

from headjax.cli import main
from tests import tiny
from tests.closeness import assert_numbers_close, close_to

PERPLEXITY_SUMS = 16 * tiny.SUMS
"""A rounding of the loss, near 4, is four times as large a share of the perplexity."""


CONFIG = """
from ml_collections import ConfigDict

def get_config(arg=""):
    return ConfigDict({
        "model": {"kind": "directory", "path": "FOLDER/model"},
        "data": {"kind": "language", "path": "FOLDER/text.txt", "length": 32},
        "batch_size": 8, "steps": 4, "checkpoint_every": 2, "keep_checkpoints": 2, "tensorboard": False,
        "optimizer": {"kind": "adamw", "schedule": {"kind": "constant_rate", "peak": 0.01}},
    })
"""


@pytest.mark.whole
def test_the_report_holds_what_the_commands_say(run, folder, capsys):
    """On a trained model, with another task and the run's checkpoints; the page needs nothing from elsewhere."""
    (folder / "train.py").write_text(CONFIG.replace("FOLDER", str(folder)))
    assert main(["train", "--config", str(folder / "train.py"), "--workdir", str(folder / "trained")]) == 0
    capsys.readouterr()
    measured = ("--orders", "importance,random", "--seeds", "1", "--selected", "8", "--percentages", "50,100")
    more = ("--second", f"all:{folder / 'text.txt'}", "--run", str(folder / "trained"))
    data = run("report", *measured, *more, "--out", str(folder / "heads.html"))
    assert not (folder / "heads.html.part").exists()
    assert data["examples"] == 16
    assert len(data["best_heads"]) == 2
    ablated = run("ablate", "--mode", "each,all-but-one")
    scale = ablated["baseline"]["perplexity"]
    for mode, found in data["effects"].items():
        assert_numbers_close(
            found["effect"], ablated["modes"][mode]["effect"], sums=PERPLEXITY_SUMS, scale=scale, name=mode
        )
    pruned = run("prune", "--remove", "50%", "--by", "random", out="half-random")
    half, none = data["curves"]["random"]
    assert (half["removed"], none["removed"]) == (2, 4)
    assert half["value"] == close_to(pruned["metrics"]["perplexity"], sums=PERPLEXITY_SUMS)
    assert data["transfer"]["spearman"]["low"] <= data["transfer"]["spearman"]["value"]
    assert [snapshot["step"] for snapshot in data["snapshots"]] == [2, 4]
    early, late = data["snapshots"]
    assert early["baseline"] != late["baseline"]
    assert -1 <= late["agreement"] <= early["agreement"] <= 1  # with the model that training began from
    page = (folder / "heads.html").read_text()
    assert page.count("<script") == 1
    assert not re.search(r'(src|href)="http', page)
    for title in ("What the scores say", "One head less", "Removing heads", "Other data", "During training",
                  "What heads look at", "Attention patterns"):  # fmt: skip
        assert title in page
