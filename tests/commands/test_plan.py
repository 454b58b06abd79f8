"""`headjax plan`: what they refuse in one line, what they print, and what they store."""

import json
import os
import signal
from pathlib import Path

import jax
import pytest

from headjax.cli import main
from headjax.commands.plan import Refused, _scale
from headjax.core.errors import HeadjaxError
from headjax.plan.collectives import Collective
from headjax.plan.plan import Plan
from headjax.plan.tpu import Roofline, Slice, find_slice
from tests.plan import conftest
from tests.plan.test_plan import CONFIG

eight_devices = conftest.eight_devices


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
    "v5e-8", 8, 1, 32, 16, "full", 1, "rbg", True, 10**9, 2 * 10**9, 7e12, {"all-reduce": Collective(3, 2_500_000)},
    {}, 1.0, Roofline(0.25, 0.5, 0.125, 0.5, 0.4375, 321.0),
)  # fmt: skip


@pytest.fixture
def compiled(monkeypatch):
    """Slices of any size whose devices are simulated; plans are made up, the one of 16 devices does not fit."""
    asked = []

    def made(process, config, where):
        asked.append(where.name)
        if where.num_devices == 32:
            raise HeadjaxError("v5e-32: the TPU's compiler crashed")
        found = PLANNED._replace(topology=where.name, devices=where.num_devices)
        return found if where.num_devices != 16 else found._replace(fits=False, collectives={}, estimate=None)

    monkeypatch.setattr("headjax.commands.plan._compiled", made)
    monkeypatch.setattr(Slice, "devices", lambda self: jax.devices() * (self.num_devices // 8))
    return asked


def test_the_slice_is_checked_before_any_compiles(plan, compiled):
    assert "batch_size: 32 does not divide over 64 devices" in plan("--topology v5e-64 --scale 8,64", code=2)
    assert "batch_size: 32 does not divide over 64 devices" in plan("--scale v5e-64", code=2)
    assert compiled == []


def test_every_size_is_a_row_and_a_failure_is_a_line_of_it(plan, compiled):
    data, _ = plan("--topology v5e-8 --scale 8..64")
    assert compiled == ["v5e-8", "v5e-16", "v5e-32"]  # once each, and none of 64 devices
    assert (data["topology"], data["devices"], data["fits"]) == ("v5e-8", 8, True)
    assert [each["topology"] for each in data["scale"]] == ["v5e-8", "v5e-16", "v5e-32", "v5e-64"]
    assert [each["devices"] for each in data["scale"]] == [8, 16, 32, 64]
    assert data["scale"][0]["collectives"] == {"all-reduce": {"count": 3, "bytes": 2_500_000}}
    assert data["scale"][1]["fits"] is False
    assert data["scale"][2]["error"] == "v5e-32: the TPU's compiler crashed"
    assert data["scale"][3]["error"].startswith("config.batch_size: 32 does not divide over 64 devices")


def test_the_table_of_sizes_has_memory_and_messages():
    refused = Refused(find_slice("v5e-256x4"), "too many")
    table = _scale([PLANNED, PLANNED._replace(fits=False, collectives={}, estimate=None), refused])
    rows = [[cell.text for cell in row] for row in table.cells()]
    assert rows[0] == ["v5e-8", "8", "yes", "1.00 GB", "2.00 GB", "3", "2.50 MB", "0 B", "500 ms", ""]
    assert rows[1][2:4] == ["no", "1.00 GB"]
    assert (rows[2][0], rows[2][1], rows[2][-1]) == ("v5e-256x4", "1,024", "too many")


def test_slices_can_be_named_without_a_topology(plan, compiled):
    data, _ = plan("--scale v5e-64,v5e-8,v5e-16")
    assert data["topology"] == "v5e-8"  # the first that can be planned
    assert [each["topology"] for each in data["scale"]] == ["v5e-64", "v5e-8", "v5e-16"]


def test_a_crash_of_the_compiler_is_one_line(eight_devices, plan, monkeypatch):
    monkeypatch.setattr("headjax.plan.plan.plan", crash)
    said = plan("--topology v5e-8", code=2)
    assert said.startswith("headjax: error: v5e-8: the TPU's compiler crashed on the step with a batch of 32 (SIGSEGV ")
    assert "another compute.remat" in said


def crash(config, where):
    os.write(2, b"*** SIGSEGV STACK OVERFLOW received by PID 7 on cpu 0 ***\n")
    os.kill(os.getpid(), signal.SIGSEGV)


def test_the_command_prints_what_the_compiler_said(eight_devices, plan, monkeypatch):
    monkeypatch.setattr("headjax.commands.plan._compiled", lambda *_: PLANNED)
    _, printed = plan("--topology v5e-8")
    for expected in ("7.00 TFLOP", "500 ms", "memory", "43.8%", "321", "2.50 MB", "full", "bfloat16"):
        assert expected in printed, expected
    assert "fits on v5e-8: 1.00 GB of 2.00 GB per device" in printed
    refused = PLANNED._replace(fits=False, collectives={}, estimate=None, peak_bytes_per_device=4 * 10**9)
    monkeypatch.setattr("headjax.commands.plan._compiled", lambda *_: refused)
    assert "does not fit on v5e-8: at least 4.00 GB wanted, 2.00 GB there" in plan("--topology v5e-8")[1]
