"""Plans: what is refused before anything compiles, and, where libtpu is installed, real compilations."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import headjax
from headjax.core.tensors import count
from headjax.plan.plan import check_plan, plan, plan_config
from headjax.plan.tpu import GIB
from tests import tiny

ROOT = Path(__file__).resolve().parents[2]

MODEL = tiny.RUN["model"] | {
    "vocab_size": 256, "width": 32, "num_layers": 3, "attention": {"kind": "multi_head", "num_heads": 4, "head_dim": 8},
    "hidden": 64, "tied": False,
}  # fmt: skip
DATA = {"task": "anything", "length": 16}
CONFIG = tiny.config_file(model=MODEL, data=DATA, batch_size=32)


def data(**changes):
    return tiny.RUN | {"model": MODEL, "data": DATA, "batch_size": 32} | changes


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"batch_size": 12}, r"config\.batch_size: 12 "),
        ({"mesh": {"data": 16}}, r"config\.mesh: data=\d+, fsdp=1, model=1 "),
        ({"mesh": {"data": 4}}, r"config\.mesh: data=\d+, fsdp=1, model=1 "),
        ({"accumulate": 8}, r"config\.batch_size: 32 .* 8 parts"),
        ({"mesh": {"data": 1, "model": 8}}, r".*heads of size 4 .* model=8"),
        # Sizes that no compiler counts.
        ({"vocab_size": 10**9, "width": 10**6}, r"config\.model: [0-9,]+ parameters .* 2.4e\+07 GB, .* v5e-8 has 135"),
        ({"batch_size": 2**27}, r"config\.batch_size: 134,217,728 examples"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_compiles(changes, field, eight_devices, monkeypatch):
    monkeypatch.setattr("headjax.training.config.Trainer", None)
    of_model = {name: value for name, value in changes.items() if name in (*MODEL, "attention_dropout")}
    rest = {name: value for name, value in changes.items() if name not in of_model}
    with pytest.raises(headjax.ConfigError, match=f"^{field}"):
        plan(plan_config(data(model=MODEL | of_model, **rest)), eight_devices)


def test_the_length_comes_from_the_data_the_model_or_the_caller():
    assert plan_config(data()).length == 16
    assert plan_config(data(data={"task": "anything"})).length == 16
    assert plan_config(data(), length=8).length == 8
    with pytest.raises(headjax.ConfigError, match=r"^config\.optimizer: missing$"):
        plan_config({name: entry for name, entry in data().items() if name != "optimizer"})


def test_the_planned_model_is_the_one_that_the_initialisation_configures(eight_devices):
    post_norm = MODEL | {"residual": "post_norm"}
    plain, _ = check_plan(plan_config(data(model=post_norm)), eight_devices)
    admin, _ = check_plan(plan_config(data(model=post_norm, initialization={"kind": "admin"})), eight_devices)
    assert count(admin.tensors()) == count(plain.tensors()) + 3 * 2 * 32  # a vector for every sub-layer
    with pytest.raises(headjax.ConfigError, match=r"^residual: is pre_norm"):
        check_plan(plan_config(data(initialization={"kind": "admin"})), eight_devices)


def test_the_compilers_complaint_says_how_much_is_wanted(eight_devices, monkeypatch):
    temporaries = "total memory required for HLO temporaries (4.50T) exceeds available HBM (15.75G)."
    used = "Ran out of memory in memory space hbm. Used 19.22G of 15.75G hbm. Exceeded hbm capacity by 3.47G."

    def planned(complaint):
        def compile(lowered):
            raise jax.errors.JaxRuntimeError(complaint)

        monkeypatch.setattr(jax.stages.Lowered, "compile", compile)
        return plan(plan_config(data()), eight_devices)

    for complaint, needed in (
        (f"RESOURCE_EXHAUSTED: Ran out of memory on HBM, the {temporaries}", 4.5 * 1024 * GIB),
        (used, 19.22 * GIB),
    ):
        found = planned(complaint)
        assert not found.fits
        assert found.peak_bytes_per_device == int(needed)
    with pytest.raises(headjax.ConfigError, match="oops"):
        planned("INTERNAL:\n oops")


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """The plan for v5e-8."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("compiling for a TPU needs libtpu")
    folder = tmp_path_factory.mktemp("plan")
    (folder / "config.py").write_text(CONFIG)
    arguments = ["--config", str(folder / "config.py"), "--topology", "v5e-8", "--json", "-"]
    command = [sys.executable, "-m", "headjax", "plan", *arguments]
    environment = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_a_plan_for_a_tpu(planned):
    model = plan_config(data()).model
    gradient = 4 * count(model.tensors())
    assert planned["fits"]
    state = 3 * gradient
    assert state < planned["peak_bytes_per_device"] < planned["hbm_bytes_per_device"]
    assert planned["flops_per_device"] == pytest.approx(3 * model.flops(16) * 32 / 8)
    assert planned["collectives"].keys() == {"all-reduce"}
    # One gradient and three scalars: summed loss, targets and their part in the loss.
    assert gradient < planned["collectives"]["all-reduce"]["bytes"] <= gradient + 3 * 4
