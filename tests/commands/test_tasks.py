"""`headjax tasks`: every task that `--task` or `prepare` takes, with files and metrics."""

from __future__ import annotations

import json

from headjax.cli import main
from headjax.data.tasks import TASKS
from headjax.evaluation.specs import NAMED


def test_tasks(capsys):
    assert main(["tasks", "--json", "-"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["tasks"]}
    assert found.keys() == {*NAMED, *TASKS}
    assert found["cola"]["metrics"] == ["matthews", "accuracy"]
    assert found["squad"]["metrics"] == ["f1"]
    assert "train.tsv and dev.tsv" in found["sst2"]["needs"]
    assert all(one["needs"] for one in found.values())
    assert found["sst2"]["source"].startswith("Return mean_i")


def test_an_unknown_task_names_the_list(folder, capsys):
    assert main(["evaluate", str(folder / "model"), "--task", "sst3"]) == 2
    assert "`headjax tasks` lists them" in capsys.readouterr().err
