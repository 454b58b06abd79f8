"""`headjax plan`: what it refuses in one line, and what it prints."""

import os
import signal

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
def config(tmp_path):
    path = tmp_path / "config.py"
    path.write_text(CONFIG)
    return str(path)


def test_every_slice_is_checked_before_the_first_compiles(eight_devices, config, monkeypatch, capsys):
    monkeypatch.setattr("headjax.plan.plan._compile", None)
    monkeypatch.setattr(Slice, "devices", lambda self: jax.devices() * (self.num_devices // 8))
    arguments = ["--config", config, "--topology", "v5e-8", "--scale", "64"]
    assert main(["plan", *arguments]) == 2
    assert "batch_size: 32 does not divide over 64 devices" in capsys.readouterr().err


def test_a_crash_of_the_compiler_is_one_line(eight_devices, config, monkeypatch, capsys):
    monkeypatch.setattr("headjax.plan.plan.plan", crash)
    assert main(["plan", "--config", config, "--topology", "v5e-8"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("headjax: error: v5e-8: the TPU's compiler crashed on the step with a batch of 32 (SIGSEGV ")
    assert "another compute.remat" in said


def crash(config, where):
    os.write(2, b"*** SIGSEGV STACK OVERFLOW received by PID 7 on cpu 0 ***\n")
    os.kill(os.getpid(), signal.SIGSEGV)


def test_an_unknown_slice_is_one_line(config, capsys):
    assert main(["plan", "--config", config, "--topology", "v9-8"]) == 2
    assert capsys.readouterr().err.startswith("headjax: error: topology: unknown TPU slice 'v9-8'; known: v2-8 to ")


def test_the_command_prints_what_the_compiler_said(eight_devices, config, monkeypatch, capsys):
    estimate = Roofline(0.25, 0.5, 0.125, 0.5, 0.4375, 321.0)
    sent = {"all-reduce": Collective(3, 2_500_000)}
    fits = Plan("v5e-8", 8, 1, 32, 16, "full", 1, "rbg", True, 10**9, 2 * 10**9, 7e12, sent, {}, {}, 1.0, estimate)
    monkeypatch.setattr("headjax.commands.plan._compiled", lambda *_: fits)
    assert main(["plan", "--config", config, "--topology", "v5e-8"]) == 0
    printed = capsys.readouterr().out
    for expected in ("7.00 TFLOP", "500 ms", "memory", "43.8%", "321", "2.50 MB", "full", "bfloat16"):
        assert expected in printed, expected
    assert "fits on v5e-8: 1.00 GB of 2.00 GB per device" in printed
    refused = fits._replace(fits=False, collectives={}, estimate=None, peak_bytes_per_device=4 * 10**9)
    monkeypatch.setattr("headjax.commands.plan._compiled", lambda *_: refused)
    assert main(["plan", "--config", config, "--topology", "v5e-8"]) == 0
    assert "does not fit on v5e-8: at least 4.00 GB wanted, 2.00 GB there" in capsys.readouterr().out
