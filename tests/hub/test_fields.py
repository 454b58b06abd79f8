"""The fields of a config.json: one line for each way in which the file can be broken."""

from __future__ import annotations

from headjax.core.errors import CheckpointError
from tests.hub.directories import (
    refused_import,
)


def test_no_config(folder):
    (folder / "config.json").write_text("[]")
    assert refused_import(folder, CheckpointError).endswith("config.json: not a JSON object")
    (folder / "config.json").write_text("{")
    assert "cannot be read" in refused_import(folder, CheckpointError)
    (folder / "config.json").write_text("[" * 100_000)
    assert refused_import(folder, CheckpointError).endswith("config.json: nested too deep")
    (folder / "config.json").write_text('{"hidden_size": ' + "1" * 5000 + "}")
    assert "cannot be read" in refused_import(folder, CheckpointError)
    (folder / "config.json").unlink()
    assert refused_import(folder, CheckpointError).endswith("config.json: missing")
