"""`headjax plan`: what it refuses in one line, and what it prints."""

import json
import os
import signal
from pathlib import Path

import jax
import pytest

from headjax.cli import main
from headjax.plan.collectives import Collective
from headjax.plan.plan import Plan
from headjax.plan.tpu import Roofline, Slice
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


def test_the_slice_is_checked_before_any_compiles(plan, monkeypatch):
    monkeypatch.setattr("headjax.commands.plan._compiled", lambda *_: pytest.fail("compiled"))
    monkeypatch.setattr(Slice, "devices", lambda self: jax.devices() * (self.num_devices // 8))
    assert "batch_size: 32 does not divide over 64 devices" in plan("--topology v5e-64", code=2)


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
