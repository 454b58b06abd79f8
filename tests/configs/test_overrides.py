"""Overrides on the config files that ship with headjax: another kind in the place of a group's."""

from pathlib import Path

import pytest

from headjax.cli import main
from headjax.core.errors import ConfigError
from headjax.initialization import Admin, LayerScale
from headjax.mesh.mesh import MeshConfig
from headjax.models.model import save
from headjax.models.recipe import Directory
from headjax.models.tasks import Classification
from headjax.training.config import load_config, train_config
from headjax.training.optimizer import Cosine, LinearDecay, RAdam
from tests.tiny import decoder_config, model

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(path for path in CONFIGS.rglob("*.py"))


def config(name, *overrides):
    return train_config(load_config(f"{CONFIGS / name}", [f"--config.{each}" for each in overrides]))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_config_trains_a_model_directory_on_request(path):
    overrides = ["--config.model.kind=directory", "--config.model.path=somewhere"]
    changed = load_config(str(path), overrides)
    assert changed.model.kind == "directory"
    assert changed.model.path == "somewhere"
    assert train_config(changed).model.path == "somewhere"


def test_a_directory_takes_a_task_too():
    overrides = ("model.task.classes=3", "model.path=d", "model.task.kind=classification", "model.kind=directory")
    assert config("quickstart.py", *overrides).model == Directory(path="d", task=Classification(classes=3))


@pytest.mark.parametrize(("kind", "expected"), [("admin", Admin()), ("layer_scale", LayerScale())])
def test_groups_that_the_file_leaves_out(kind, expected):
    changed = config("quickstart.py", f"initialization.kind={kind}", "mesh.fsdp=2")
    assert (changed.initialization, changed.mesh) == (expected, MeshConfig(fsdp=2))


def test_another_schedule_and_optimizer_keep_what_they_share():
    old = config("quickstart.py").optimizer
    assert isinstance(old.schedule, Cosine)
    new = config("quickstart.py", "optimizer.kind=radam", "optimizer.schedule.kind=linear_decay").optimizer
    kept = {"peak": old.schedule.peak, "warmup_steps": old.schedule.warmup_steps}
    assert new == RAdam(schedule=LinearDecay(**kept), clip_norm=old.clip_norm, b1=old.b1, b2=old.b2)


def test_an_unknown_kind_names_the_nearest():
    with pytest.raises(ConfigError, match=r"^config\.model\.kind: "):
        config("quickstart.py", "model.kind=directry")


def test_inspect_shows_a_model_directory_in_the_place_of_the_recipe(tmp_path, capsys):
    save(model(decoder_config()), tmp_path / "model")
    overrides = ("--config.model.kind=directory", f"--config.model.path={tmp_path / 'model'}")
    assert main(["inspect", "--config", str(CONFIGS / "quickstart.py"), *overrides]) == 0
    assert "multi_head" in capsys.readouterr().out
