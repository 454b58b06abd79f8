"""The loop: resuming is exact, devices do not matter, and what cannot be done is refused before anything is lost."""

import contextlib
import json
import os
import shutil
import signal
import time

import jax
import numpy as np
import pytest

from headjax.core.errors import CheckpointError, ConfigError, HeadjaxError
from headjax.core.tensors import flatten
from headjax.data.examples import TokenBlocks
from headjax.data.task import TaskData
from headjax.models.model import load
from headjax.storage.paths import path_of
from headjax.training.config import train_config
from headjax.training.loop import train
from headjax.training.recording import ProfiledSteps, read_metrics
from headjax.training.step import train_step
from headjax.training.workdir import check_workdir
from tests import tiny
from tests.closeness import assert_trees_close, close_to

VOCABULARY, STEPS = 24, 7

pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def data():
    """Text with something to learn: every token is followed by the next or the next but one."""
    rng = np.random.default_rng(0)
    tokens = np.cumsum(rng.integers(1, 3, size=1500)) % VOCABULARY
    blocks = [TokenBlocks(part.astype(np.int32), 12) for part in (tokens[:1200], tokens[1200:])]
    return TaskData(None, *blocks, {"text": "a random walk"})


def config(**changes):
    fields = {
        "model": {
            "kind": "language_model",
            "vocab_size": VOCABULARY,
            "max_length": 12,
            "width": 16,
            "num_layers": 2,
            "attention": {"kind": "multi_head", "num_heads": 2, "head_dim": 8},
            "feed_forward": {"kind": "dense", "hidden": 32},
            "dropout": 0.1,
            "attention_dropout": 0.1,
        },
        "data": {"kind": "language"},
        "batch_size": 8,
        "steps": STEPS,
        "optimizer": {"kind": "adamw", "schedule": {"kind": "cosine", "peak": 0.01, "warmup_steps": 2}},
        "mesh": {"data": 1},
        "log_every": 1,
        "checkpoint_every": 3,
        "tensorboard": False,
    }
    return train_config(fields | changes)


@contextlib.contextmanager
def one_device():
    """Meshes built inside see a single device."""
    devices = jax.devices
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda *arguments: devices(*arguments)[:1])
        yield


def interrupt_at(step):
    """A progress bar during which the process gets a SIGTERM."""

    @contextlib.contextmanager
    def opened(title, total, unit):
        def update(done, values):
            if done == step:
                os.kill(os.getpid(), signal.SIGTERM)

        yield update

    return opened


@pytest.fixture(scope="module")
def uninterrupted(data, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "whole"
    with one_device():
        return train(config(), workdir, data=data), workdir


def assert_equal(ours, theirs):
    ours, theirs = flatten(ours), flatten(theirs)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


def test_training_learns_and_leaves_a_model_directory(uninterrupted):
    result, workdir = uninterrupted
    assert result.finished
    assert result.steps == 7
    losses = [record["train/loss"] for record in read_metrics(workdir / "metrics.jsonl") if "train/loss" in record]
    assert len(losses) == 7
    assert losses[-1] < losses[0] - 0.1
    assert_equal(load(result.path).params, result.model.params)
    assert load(result.path).history[-1]["action"] == "train"


@pytest.mark.parametrize("step", [2, 3, 5])
def test_a_run_stopped_by_sigterm_goes_on_bit_for_bit(step, uninterrupted, data, tmp_path):
    whole, whole_workdir = uninterrupted
    before = signal.getsignal(signal.SIGTERM)
    with one_device():
        stopped = train(config(), tmp_path, data=data, progress=interrupt_at(step))
        assert not stopped.finished
        # The signal is seen after the step in flight, at the latest one step later.
        assert stopped.steps in (step, step + 1)
        assert stopped.path is None
        assert (tmp_path / "checkpoints" / str(stopped.steps) / "checksums.json").exists()
        continued = train(config(), tmp_path, data=data)
    assert signal.getsignal(signal.SIGTERM) is before
    assert continued.finished
    assert_equal(continued.model.params, whole.model.params)
    assert continued.metrics == whole.metrics

    def values(path):
        return [{k: v for k, v in record.items() if "second" not in k} for record in read_metrics(path)]

    assert values(tmp_path / "metrics.jsonl") == values(whole_workdir / "metrics.jsonl")


def test_a_run_killed_between_checkpoints_goes_on_from_the_last_one(uninterrupted, data, tmp_path):
    whole, _ = uninterrupted

    @contextlib.contextmanager
    def killed(title, total, unit):
        def update(done, values):
            if done == 5:
                raise MemoryError("killed")

        yield update

    with one_device():
        with pytest.raises(MemoryError, match="killed"):
            train(config(), tmp_path, data=data, progress=killed)
        continued = train(config(), tmp_path, data=data)
    assert_equal(continued.model.params, whole.model.params)


@pytest.mark.parametrize(
    "mesh",
    [{"data": 8}, {"data": 2, "fsdp": 2, "model": 2}, {"data": 1, "fsdp": 8}, {"slices": 2, "fsdp": 2, "model": 2}],
)
def test_eight_devices_reach_what_one_reaches(mesh, uninterrupted, data, tmp_path):
    whole, _ = uninterrupted
    spread = train(config(mesh=mesh), tmp_path, data=data)
    assert spread.metrics["loss"] == close_to(whole.metrics["loss"], sums=STEPS * 2 * tiny.SUMS)
    # Adam divides a gradient's rounding by its size: any parameter may move like the largest.
    ours, theirs = flatten(spread.model.params), flatten(whole.model.params)
    assert_trees_close(ours, theirs, sums=STEPS * 2 * tiny.SUMS, floor=1.0)


def test_a_run_goes_on_on_another_mesh(uninterrupted, data, tmp_path):
    whole, _ = uninterrupted
    stopped = train(config(mesh={"data": 8}), tmp_path, data=data, progress=interrupt_at(3))
    assert not stopped.finished
    continued = train(config(mesh={"data": 2, "model": 2, "fsdp": 2}), tmp_path, data=data)
    assert continued.metrics["loss"] == close_to(whole.metrics["loss"], sums=STEPS * 2 * tiny.SUMS)


def test_a_run_goes_on_computed_another_way(uninterrupted, data, tmp_path):
    """One that ran out of memory goes on with rematerialisation, say."""
    whole, _ = uninterrupted
    with one_device():
        train(config(), tmp_path, data=data, progress=interrupt_at(3))
        with pytest.raises(CheckpointError, match=r'config\.compute\.dtype is "float32" there and "bfloat16" here'):
            train(config(compute={"dtype": "bfloat16"}), tmp_path, data=data)
        other = {"remat": "full", "scan": False, "attention": "einsum"}
        continued = train(config(compute=other), tmp_path, data=data)
    # Adam divides a gradient's rounding by its size: any parameter may move like the largest.
    ours, theirs = flatten(continued.model.params), flatten(whole.model.params)
    assert_trees_close(ours, theirs, sums=STEPS * 2 * tiny.SUMS, floor=1.0)


def test_a_finished_run_started_again_changes_nothing(uninterrupted, data, tmp_path):
    whole, workdir = uninterrupted
    shutil.copytree(workdir, tmp_path / "copy")
    with one_device():
        again = train(config(), tmp_path / "copy", data=data)
    assert_equal(again.model.params, whole.model.params)
    assert again.metrics == whole.metrics


def test_the_best_weights_are_kept(data, tmp_path):
    """Also by a run that is interrupted after its best evaluation; here the learning rate grows until it ruins all."""
    ruinous = {"kind": "adamw", "schedule": {"kind": "constant_rate", "peak": 2.0, "warmup_steps": STEPS}}
    given = {"optimizer": ruinous, "evaluate_every": 1, "keep": "best"}
    with one_device():
        whole = train(config(**given), tmp_path / "whole", data=data)
        stopped = train(config(**given), tmp_path / "run", data=data, progress=interrupt_at(4))
        continued = train(config(**given), tmp_path / "run", data=data)
    losses = {
        record["step"]: record["validation/loss"]
        for record in read_metrics(tmp_path / "whole" / "metrics.jsonl")
        if "validation/loss" in record
    }
    evaluated = [
        record["step"] for record in read_metrics(tmp_path / "run" / "metrics.jsonl") if "validation/loss" in record
    ]
    assert evaluated == list(losses) == list(range(1, STEPS + 1))  # that of the step of the interrupt, too
    best = min(losses, key=losses.get)
    assert best < stopped.steps < STEPS == whole.steps
    assert whole.kept_step == continued.kept_step == best
    assert whole.metrics["loss"] == continued.metrics["loss"] == losses[best]
    assert whole.model.history[-1]["steps"] == best
    assert_equal(load(whole.path).params, continued.model.params)


def test_a_run_is_extended(data, tmp_path):
    """A finished or interrupted run with more steps goes on to what it would have reached with so many at once."""
    constant = {"kind": "adamw", "schedule": {"kind": "constant_rate", "peak": 0.01, "warmup_steps": 2}}
    with one_device():
        whole = train(config(optimizer=constant), tmp_path / "whole", data=data)
        assert train(config(optimizer=constant, steps=4), tmp_path / "run", data=data).extended_from is None
        stopped = train(config(optimizer=constant, steps=5), tmp_path / "run", data=data, progress=interrupt_at(4))
        assert stopped.extended_from == 4
        longer = train(config(optimizer=constant), tmp_path / "run", data=data)
    assert (longer.finished, longer.steps, longer.extended_from) == (True, 7, 5)
    assert_equal(longer.model.params, whole.model.params)
    assert load(longer.path).history[-1]["steps"] == 7


def test_an_extended_run_may_have_another_schedule_and_nothing_else(uninterrupted, tmp_path):
    shutil.copy(uninterrupted[1] / "train_config.json", tmp_path)

    def optimizer(**fields):
        return {"kind": "adamw", "schedule": {"kind": "linear_decay", "peak": 0.02, "warmup_steps": 3}} | fields

    assert check_workdir(tmp_path, config(steps=9, optimizer=optimizer())) == STEPS
    with pytest.raises(CheckpointError, match=r"config\.optimizer\.b1 is 0\.9 there and 0\.8 here"):
        check_workdir(tmp_path, config(steps=9, optimizer=optimizer(b1=0.8)))
    with pytest.raises(CheckpointError, match=r"config\.optimizer\.schedule\.final is 0\.1 there"):
        check_workdir(tmp_path, config(optimizer=optimizer()))
    with pytest.raises(CheckpointError, match=r": holds a run of 7 steps, which 5 would shorten\.$"):
        check_workdir(tmp_path, config(steps=5, optimizer=optimizer()))


def test_training_goes_on_from_a_model_directory(uninterrupted, data, tmp_path):
    whole, _ = uninterrupted
    start = {"kind": "directory", "path": str(whole.path)}
    constant = {"kind": "adamw", "schedule": {"kind": "constant_rate", "peak": 1e-8}, "weight_decay": 0.0}
    with one_device():
        result = train(config(model=start, steps=1, optimizer=constant), tmp_path, data=data)
    assert result.metrics["loss"] == pytest.approx(whole.metrics["loss"], abs=1e-4)
    assert [entry["action"] for entry in result.model.history] == ["train", "train"]


def test_a_workdir_of_another_run_is_left_alone(uninterrupted, data, tmp_path):
    _, workdir = uninterrupted
    shutil.copytree(workdir, tmp_path / "copy")
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match=r"copy: .*config\.batch_size"):
        train(config(batch_size=16, mesh={"data": 8}), tmp_path / "copy", data=data)
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before
    for content in ("{", "[]"):
        (tmp_path / "copy" / "train_config.json").write_text(content)
        with pytest.raises(CheckpointError, match=r"train_config\.json: "):
            train(config(mesh={"data": 8}), tmp_path / "copy", data=data)


def test_a_run_that_ends_while_another_loads_its_data_keeps_its_workdir(uninterrupted, data, tmp_path, monkeypatch):
    other, settings = uninterrupted[1], config(seed=1)

    def load(self, tokenizer=None):
        shutil.copytree(other, tmp_path, dirs_exist_ok=True)
        return data

    monkeypatch.setattr(type(settings.data), "load", load)
    with one_device(), pytest.raises(CheckpointError, match=r"config\.seed"):
        train(settings, tmp_path)
    assert json.loads((tmp_path / "train_config.json").read_text())["seed"] == 0


@pytest.mark.parametrize("keep", ["last", "best"])
def test_a_run_whose_last_parameters_are_no_good_has_diverged(keep, data, tmp_path):
    # The last step throws the parameters so far that the loss is not finite, and its own loss and gradient are.
    schedule = {"kind": "cosine", "peak": 1e30, "warmup_steps": 2}
    settings = config(steps=2, checkpoint_every=1, keep=keep, optimizer={"kind": "adamw", "schedule": schedule})
    with one_device():
        result = train(settings, tmp_path, data=data)
        again = train(settings, tmp_path, data=data)
    assert not result.finished
    assert result.path is None
    assert "step 2" in result.diverged
    assert result.steps == 1
    assert not (tmp_path / "model").exists()
    assert not (tmp_path / "best").exists()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert records[-2]["validation/loss"] is None
    assert records[-1] == {"step": 2, "train/diverged": 1.0}
    # Started again it goes on from the checkpoint before, and ends alike.
    assert again.diverged == result.diverged


def test_a_run_is_known_again_by_a_newer_headjax(uninterrupted, tmp_path):
    """A field that did not exist when the run began had the value that is now its default."""
    held = json.loads((uninterrupted[1] / "train_config.json").read_text())
    assert held.pop("prng") == "threefry2x32"
    (tmp_path / "train_config.json").write_text(json.dumps(held))
    check_workdir(tmp_path, train_config(config()))
    with pytest.raises(CheckpointError, match=r'config\.prng is "threefry2x32" there and "rbg" here'):
        check_workdir(tmp_path, train_config(config(prng="rbg")))
    (tmp_path / "train_config.json").write_text(json.dumps(held | {"gone": 1}))
    with pytest.raises(CheckpointError, match=r"config\.gone is 1 there and null here"):
        check_workdir(tmp_path, train_config(config()))


def test_a_run_with_a_damaged_checkpoint_goes_on_from_the_one_before(uninterrupted, data, tmp_path):
    whole, workdir = uninterrupted
    shutil.copytree(workdir, tmp_path / "copy")
    for file in (tmp_path / "copy" / "checkpoints" / "7" / "state" / "d").iterdir():
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with one_device(), pytest.warns(UserWarning, match=r"checkpoints/7/state/d/\w+: has .* going on from step 6"):
        again = train(config(), tmp_path / "copy", data=data)
    assert_equal(again.model.params, whole.model.params)
    assert again.metrics == whole.metrics
    assert (tmp_path / "copy" / "checkpoints.damaged" / "7").is_dir()


def test_a_second_run_in_a_workdir_is_refused(data, tmp_path):
    """It changes nothing, and the first one goes on."""
    second = []

    @contextlib.contextmanager
    def during(title, total, unit):
        def update(done, values):
            if done == 1:
                before = (tmp_path / "metrics.jsonl").read_bytes()
                with pytest.raises(HeadjaxError, match=rf"in use by process {os.getpid()} of ") as caught:
                    train(config(), tmp_path, data=data)
                assert (tmp_path / "metrics.jsonl").read_bytes() == before
                second.append(str(caught.value))

        yield update

    with one_device():
        assert train(config(), tmp_path, data=data, progress=during).finished
    assert len(second) == 1
    assert "\n" not in second[0]
    assert not (tmp_path / "lock.json").exists()


def test_a_run_that_lost_its_workdir_stops(data, tmp_path, monkeypatch):
    monkeypatch.setattr("headjax.storage.lock.BEAT", 0.05)
    other = {"owner": "ann", "host": "elsewhere", "process": 7, "token": "00", "heartbeat": 0.0}

    @contextlib.contextmanager
    def taken(title, total, unit):
        def update(done, values):
            if done == 2:
                for _ in range(20):  # a beat that has begun may write once more
                    (tmp_path / "lock.json").write_text(json.dumps(other))
                    time.sleep(0.05)

        yield update

    with one_device(), pytest.raises(HeadjaxError, match="taken over by process 7 of ann on elsewhere"):
        train(config(), tmp_path, data=data, progress=taken)
    assert json.loads((tmp_path / "lock.json").read_text()) == other
    assert not (tmp_path / "checkpoints" / "3").exists()


def test_what_does_not_fit_is_refused_before_anything_is_written(data, tmp_path):
    with pytest.raises(ConfigError, match=r"^config\.batch_size: "):
        train(config(batch_size=6, mesh={"data": 8}), tmp_path / "run", data=data)
    assert not (tmp_path / "run").exists()


def test_tensorboard_and_json_lines_hold_the_same_steps(data, tmp_path):
    with one_device():
        train(config(steps=2, tensorboard=True, evaluate_every=1, checkpoint_every=1), tmp_path, data=data)
    # One before the first checkpoint, one after each.
    assert len(list((tmp_path / "tensorboard").glob("events*"))) == 3
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 1, 2, 2]
    assert {"train/loss", "train/gradient_norm", "train/targets", "train/tokens_per_second", "step"} <= set(records[0])
    for record in records[::2]:
        parts = [record[f"train/{part}_seconds"] for part in ("compute", "input_wait", "checkpoint_wait")]
        assert min(parts) >= 0.0
        assert sum(parts) == pytest.approx(record["train/step_seconds"])


def test_runs_that_differ_in_the_seed_share_a_program(data, tmp_path, monkeypatch):
    programs = []

    def recorded(*arguments, **options):
        step = train_step(*arguments, **options)
        programs.append(step.program)
        return step

    monkeypatch.setattr("headjax.training.loop.train_step", recorded)
    with one_device():
        losses = [train(config(steps=2, seed=seed), tmp_path / str(seed), data=data).metrics["loss"] for seed in (0, 1)]
    assert programs[0] is programs[1]
    assert programs[0]._cache_size() == 1
    assert losses[0] != losses[1]


def test_some_steps_are_traced(data, tmp_path):
    profiled = ProfiledSteps.parse("2:3")
    with one_device():
        train(config(steps=3), tmp_path, data=data, profiled=profiled)
        (trace,) = (tmp_path / "tensorboard" / "plugins" / "profile").glob("*/*.xplane.pb")
        assert b"train" in trace.read_bytes()
        with pytest.raises(HeadjaxError, match=r"^--profile-steps: "):
            train(config(steps=2), tmp_path / "other", data=data, profiled=profiled)


def test_a_run_in_a_bucket_goes_on_bit_for_bit(uninterrupted, data, bucket):
    whole, whole_workdir = uninterrupted
    with one_device():
        stopped = train(config(), f"{bucket}/run", data=data, progress=interrupt_at(3))
        assert not stopped.finished
        continued = train(config(), f"{bucket}/run", data=data)
    assert str(continued.path) == f"{bucket}/run/model"
    assert_equal(load(f"{bucket}/run/model").params, whole.model.params)
    workdir = path_of(bucket) / "run"
    steps = [
        [record["step"] for record in read_metrics(folder / "metrics.jsonl")] for folder in (workdir, whole_workdir)
    ]
    assert steps[0] == steps[1]
    assert not (workdir / "lock.json").exists()


def test_a_bucket_that_is_not_there_and_a_folder_that_cannot_be_are_named(data, bucket, tmp_path, monkeypatch):
    monkeypatch.setattr("headjax.training.loop.train_step", None)  # nothing is compiled before
    with (
        one_device(),
        pytest.raises(HeadjaxError, match=r"^gs://none-such/run: cannot be written \(no such"),
    ):
        train(config(), "gs://none-such/run", data=data)
    with pytest.raises(HeadjaxError, match=r"^s3://b/run: not a path that headjax reads or writes"):
        train(config(), "s3://b/run", data=data)
    (tmp_path / "file").touch()
    with one_device(), pytest.raises(HeadjaxError, match=r"file/run: "):
        train(config(), tmp_path / "file" / "run", data=data)


def test_bfloat16_follows_float32(uninterrupted, data, tmp_path):
    whole, _ = uninterrupted
    with one_device():
        rounded = train(config(compute={"dtype": "bfloat16"}), tmp_path, data=data)
    assert rounded.model.params["embeddings"]["token"].dtype == np.float32
    assert rounded.metrics["loss"] == pytest.approx(whole.metrics["loss"], rel=0.02)
    assert rounded.metrics["loss"] != whole.metrics["loss"]
