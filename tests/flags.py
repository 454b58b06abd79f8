"""Flags of XLA for the tests, as far as jaxlib knows them."""

import os
import subprocess
import sys

WANTED = (
    "--xla_cpu_use_fusion_emitters=false",  # halves the compiler's time, up to jaxlib 0.10
    "--xla_cpu_parallel_codegen_split_count=1",  # programs are small and cores few
    # Eight devices wait for each other on few cores; where these are busy, XLA ends the process after 40 seconds.
    "--xla_cpu_collective_call_terminate_timeout_seconds=600",
)


def xla_flags() -> str:
    """The flags that are given, and those that the tests want in addition."""
    given = os.environ.get("XLA_FLAGS", "").split()
    names = {flag.split("=")[0] for flag in given}
    wanted = [flag for flag in WANTED if flag.split("=")[0] not in names]
    if wanted and not known(*wanted):
        wanted = [flag for flag in wanted if known(flag)]
    return " ".join([*given, *wanted])


def known(*flags: str) -> bool:
    """Whether jaxlib has all of these flags: given one that it has not, it ends the process."""
    asked = [sys.executable, "-c", "from jaxlib import xla_client; xla_client.CompileOptions()"]
    environment = os.environ | {"XLA_FLAGS": " ".join(flags)}
    return not subprocess.run(asked, env=environment, capture_output=True, check=False).returncode
