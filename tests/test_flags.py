"""The tests start under every jaxlib: a flag of XLA that it does not know ends the process without a word."""

from tests.flags import xla_flags


def test_flags_that_jaxlib_does_not_know_are_left_out(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr("tests.flags.WANTED", ("--xla_cpu_no_such_flag=1", "--xla_force_host_platform_device_count=8"))
    assert xla_flags() == "--xla_force_host_platform_device_count=8"


def test_flags_that_are_given_stay_and_are_not_repeated(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    monkeypatch.setattr("tests.flags.WANTED", ("--xla_force_host_platform_device_count=8",))
    assert xla_flags() == "--xla_force_host_platform_device_count=2"
