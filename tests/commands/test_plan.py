"""`headjax plan`: what it refuses in one line, what it prints, and what it stores."""

import json
from pathlib import Path

import jax
import pytest

from headjax.plan.plan import Collective, Plan
from headjax.plan.tpu import Slice
from tests.command_line import main
from tests.plan.test_plan import CONFIG


@pytest.fixture
def plan(tmp_path, monkeypatch, capsys):
    """Plans a config; returns the JSON, or the last line of the error, and what was printed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.py").write_text(CONFIG)

    def plan(words, code=0):
        assert main(["plan", "--config", "config.py", *words.split(), "--json", "plan.json"]) == code
        printed = capsys.readouterr()
        return printed.err.splitlines()[-1] if code else (json.loads(Path("plan.json").read_text()), printed.out)

    return plan


PLANNED = Plan(
    "v5e-8", 8, 1, 32, 16, "full", 1, "rbg", True, 10**9, 2 * 10**9, 7e12, {"all-reduce": Collective(3, 2_500_000)}, 1.0
)  # fmt: skip


def test_the_slice_is_checked_before_anything_compiles(plan, monkeypatch):
    monkeypatch.setattr(Slice, "devices", lambda self: jax.devices() * (self.num_devices // 8))
    monkeypatch.setattr("headjax.plan.plan.target", None)
    assert "batch_size: 32 does not divide over 64 devices" in plan("--topology v5e-64", code=2)


def test_the_command_prints_and_stores_what_the_compiler_said(plan, monkeypatch):
    monkeypatch.setattr("headjax.plan.plan.plan", lambda config, where: PLANNED)
    data, printed = plan("--topology v5e-8")
    assert (data["topology"], data["devices"], data["fits"]) == ("v5e-8", 8, True)
    assert data["collectives"] == {"all-reduce": {"count": 3, "bytes": 2_500_000}}
    for expected in ("7.00 TFLOP", "2.50 MB", "full"):
        assert expected in printed, expected
    assert "fits on v5e-8: 1.00 GB of 2.00 GB per device" in printed
    refused = PLANNED._replace(fits=False, collectives={}, peak_bytes_per_device=4 * 10**9)
    monkeypatch.setattr("headjax.plan.plan.plan", lambda config, where: refused)
    assert "does not fit on v5e-8: at least 4.00 GB wanted, 2.00 GB there" in plan("--topology v5e-8")[1]
