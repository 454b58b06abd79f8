"""The GKE manifest: slices that exist, all of their chips, and fields that Kubernetes knows."""

import string
from pathlib import Path

import pytest
import yaml

from headjax.core.errors import DIVERGED, FAILED
from headjax.plan.tpu import find_slice

MANIFEST = Path(__file__).resolve().parents[1] / "tpu" / "gke" / "sweep.yaml"
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
    return yaml.safe_load(string.Template(MANIFEST.read_text()).substitute(VARIABLES, SLICES=str(slices)))


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
    assert policy["rules"] == [{"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}]
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


def test_kubernetes_knows_every_field(job):
    """JobSet's own schema comes with JobSet; that of the job in it is Kubernetes' own."""
    validation = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate (pip install)")
    whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, **job}
    validation.validate(whole, validation.latest_version(), strict=True)
    with pytest.raises(validation.ValidationError):
        validation.validate(whole | {"unknown": 1}, validation.latest_version(), strict=True)
