"""The GKE manifests: slices that exist, all of their chips, hosts that each have a number, and published fields."""

import argparse
import string
from pathlib import Path

import pytest
import yaml

from headjax.commands import prepare as prepare_command
from headjax.commands.options import parse_options
from headjax.core.errors import DIVERGED, FAILED
from headjax.plan.tpu import find_slice

FOLDER = Path(__file__).resolve().parents[1] / "tpu" / "gke"
VARIABLES = {
    "RUN": "heads-8",
    "ARGS": "heads=8",
    "QUEUE": "tpu",
    "IMAGE": "registry/headjax:1",
    "BUCKET": "my-bucket",
    "SERVICE_ACCOUNT": "trainer",
    "CONFIG": "configs/papers/concise_bert.py",
}
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
    assert hosts * chips == where.num_chips
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


def test_the_run_writes_to_the_bucket(manifest, job):
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert "volumes" not in pod
    assert "--workdir=gs://my-bucket/heads-8" in container["command"]
    assert "--config=configs/papers/concise_bert.py:heads=8" in container["command"]
    assert manifest["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "tpu"}


FIELDS = {
    "JobSet": {"apiVersion": "", "kind": "", "metadata": "metadata", "spec": "JobSetSpec"},
    "JobSetSpec": {
        "replicatedJobs": "ReplicatedJob", "network": "", "successPolicy": "", "failurePolicy": "FailurePolicy",
        "startupPolicy": "", "suspend": "", "coordinator": "", "managedBy": "", "ttlSecondsAfterFinished": "",
        "volumeClaimPolicies": "",
    },
    "FailurePolicy": {"maxRestarts": "", "restartStrategy": "", "rules": "FailurePolicyRule"},
    "FailurePolicyRule": {
        "name": "", "action": "", "onJobFailureReasons": "", "onJobFailureMessagePatterns": "",
        "targetReplicatedJobs": "",
    },
    "ReplicatedJob": {"name": "", "groupName": "", "template": "JobTemplate", "replicas": "", "dependsOn": ""},
    "JobTemplate": {"metadata": "metadata", "spec": "JobSpec"},
    "Job": {"apiVersion": "", "kind": "", "metadata": "metadata", "spec": "JobSpec"},
    "JobSpec": {
        "parallelism": "", "completions": "", "activeDeadlineSeconds": "", "podFailurePolicy": "PodFailurePolicy",
        "successPolicy": "", "backoffLimit": "", "backoffLimitPerIndex": "", "maxFailedIndexes": "", "selector": "",
        "manualSelector": "", "template": "PodTemplate", "ttlSecondsAfterFinished": "", "completionMode": "",
        "suspend": "", "podReplacementPolicy": "", "managedBy": "",
    },
    "PodFailurePolicy": {"rules": "PodFailurePolicyRule"},
    "PodFailurePolicyRule": {"action": "", "onExitCodes": "OnExitCodes", "onPodConditions": "OnPodCondition"},
    "OnPodCondition": {"type": "", "status": ""},
    "OnExitCodes": {"containerName": "", "operator": "", "values": ""},
    "PodTemplate": {"metadata": "metadata", "spec": "PodSpec"},
    "PodSpec": {
        "restartPolicy": "", "serviceAccountName": "", "terminationGracePeriodSeconds": "", "nodeSelector": "",
        "tolerations": "Toleration", "containers": "Container", "volumes": "",
    },
    "Toleration": {"key": "", "operator": "", "value": "", "effect": "", "tolerationSeconds": ""},
    "Container": {"name": "", "image": "", "command": "", "args": "", "env": "", "resources": "Resources"},
    "Resources": {"limits": "", "requests": "", "claims": ""},
    "metadata": {"name": "", "namespace": "", "labels": "", "annotations": ""},
}  # fmt: skip
"""Fields by type, from the public sources of JobSet (v1alpha2) and Kubernetes (batch/v1), read in November 2026: all of
JobSet and of JobSpec, and of pods those in use."""

ACTIONS = {"FailurePolicyRule": {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"}}
ACTIONS["PodFailurePolicyRule"] = {"FailJob", "FailIndex", "Ignore", "Count"}


def unknown(entry, kind, place):
    """Yield the places of fields and actions that no published type has."""
    for item in entry if isinstance(entry, list) else [entry]:
        for name, value in item.items():
            if name not in FIELDS[kind] or (name == "action" and value not in ACTIONS[kind]):
                yield f"{place}.{name}"
            elif FIELDS[kind][name]:
                yield from unknown(value, FIELDS[kind][name], f"{place}.{name}")


def test_published_types_have_every_field(manifest, prepare):
    assert list(unknown(manifest, "JobSet", "JobSet")) == []
    assert list(unknown(prepare, "Job", "Job")) == []
    manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"][0]["onExitCode"] = {}
    place = "JobSet.spec.replicatedJobs.template.spec.podFailurePolicy.rules.onExitCode"
    assert list(unknown(manifest, "JobSet", "JobSet")) == [place]


@pytest.fixture
def prepare():
    """The manifest of a preparation as `envsubst` makes it, which leaves `$(NAME)` to Kubernetes."""
    text = (FOLDER / "prepare.yaml").read_text().replace("$(", "$$(")
    named = {"TASK": "c4", "HOSTS": "16", "SOURCE": "gs://a/c4", "TOKENIZER": "gs://a/tokenizer"}
    return yaml.safe_load(string.Template(text).substitute(VARIABLES, **named))


def test_pods_that_prepare_have_a_number_each(prepare):
    assert (prepare["apiVersion"], prepare["kind"]) == ("batch/v1", "Job")
    spec = prepare["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 16, 16)
    (container,) = spec["template"]["spec"]["containers"]
    program, command, *words = container["command"]
    assert (program, command) == ("headjax", "prepare")
    words = [word.replace("$(JOB_COMPLETION_INDEX)", "3") for word in words]
    options = parse_options(prepare_command.Options, words, argparse.ArgumentParser())
    assert (options.task, options.out, options.host) == ("c4", "gs://my-bucket/data/c4", (3, 16))
    assert (spec["podReplacementPolicy"], spec["backoffLimitPerIndex"]) == ("Failed", 5)


def test_kubernetes_knows_every_field(job):
    """JobSet's own schema comes with JobSet; that of the job in it is Kubernetes' own."""
    validation = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate (pip install)")
    whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, **job}
    validation.validate(whole, validation.latest_version(), strict=True)
    with pytest.raises(validation.ValidationError):
        validation.validate(whole | {"unknown": 1}, validation.latest_version(), strict=True)
