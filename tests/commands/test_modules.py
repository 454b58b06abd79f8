"""A formulation of the user's own: found beside its config, recorded with the model, imported by `--import` alone."""

import dataclasses
import json
import sys

import pytest

import headjax
from headjax.cli import main
from headjax.core import serialize

MODULE = """
import dataclasses
from headjax.attention import MultiHead
from headjax.core.serialize import kind

@kind("my_heads")
@dataclasses.dataclass(frozen=True, kw_only=True)
class MyHeads(MultiHead):
    pass
"""

CONFIG = """
import my_module
from ml_collections import ConfigDict

def get_config(arg=""):
    return ConfigDict({"model": {
        "kind": "language_model", "vocab_size": 257, "max_length": 32, "width": 16, "num_layers": 1,
        "attention": {"kind": "my_heads", "num_heads": 2, "head_dim": 8},
        "feed_forward": {"kind": "dense", "hidden": 16},
    }})
"""


@pytest.fixture
def forget(monkeypatch):
    """Forgets the module, as a new process has."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def forget():
        monkeypatch.setattr(serialize, "_KINDS", {k: v for k, v in serialize._KINDS.items() if k != "my_heads"})
        sys.modules.pop("my_module", None)

    yield forget
    forget()


def test_a_module_of_the_users(folder, tmp_path, monkeypatch, capsys, forget):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "my_module.py").write_text(MODULE)
    (tmp_path / "configs" / "tiny.py").write_text(CONFIG)
    config = str(tmp_path / "configs" / "tiny.py")
    assert main(["inspect", "--config", config, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["heads"] == 2

    model = headjax.load(folder / "model")
    own = sys.modules["my_module"].MyHeads
    attention = model.config.decoder.layers[0].attention
    fields = {field.name: getattr(attention, field.name) for field in dataclasses.fields(attention)}
    layers = tuple(dataclasses.replace(layer, attention=own(**fields)) for layer in model.config.decoder.layers)
    stack = dataclasses.replace(model.config.decoder, layers=layers)
    model.replace(config=dataclasses.replace(model.config, decoder=stack)).save(tmp_path / "mine")
    forget()
    monkeypatch.setattr(sys, "path", [place for place in sys.path if not place.startswith(str(tmp_path))])

    monkeypatch.chdir(tmp_path / "configs")
    assert main(["inspect", str(tmp_path / "mine")]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "--import my_module" in line
    assert "my_module" not in sys.modules
    assert main(["prune", str(tmp_path / "mine"), str(tmp_path / "out"), "--remove", "1", "--by", "random",
                 "--import", "my_module"]) == 0  # fmt: skip
    forget()
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "out"), "--import", config.replace("tiny", "my_module"), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["heads"] == 3


@pytest.mark.parametrize("name", ["no_such_module", "missing.py", "broken.py", "."])
def test_a_module_that_cannot_be_imported_is_one_line(name, tmp_path, monkeypatch, capsys, forget):
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    assert main(["tasks", "--import", name]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert f"--import: {name}" in line
    sys.modules.pop("broken", None)
