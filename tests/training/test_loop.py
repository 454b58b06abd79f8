"""The loop: resuming is exact, devices do not matter, and what cannot be done is refused before anything is lost."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal

import pytest

import headjax
from tests import tiny
from tests.buckets import path_of
from tests.closeness import assert_trees_close, assert_trees_equal, close_to
from tests.selected import further
from tests.tiny import flatten
from tests.training.runs import STEPS, after, constant, read_metrics, run, terminate, walk

pytestmark = pytest.mark.whole

SUMS = STEPS * 2 * tiny.SUMS


@pytest.fixture(scope="module")
def data():
    return walk()


@pytest.fixture(scope="module")
def uninterrupted(data, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "whole"
    return run(workdir, data), workdir


@pytest.fixture
def copy(uninterrupted, tmp_path):
    """A copy of the finished run's folder."""
    return shutil.copytree(uninterrupted[1], tmp_path / "copy")


def test_training_learns_and_leaves_a_model_directory(uninterrupted):
    result, workdir = uninterrupted
    assert (result.finished, result.steps) == (True, STEPS)
    losses = [record["train/loss"] for record in read_metrics(workdir / "metrics.jsonl") if "train/loss" in record]
    assert len(losses) == STEPS
    assert losses[-1] < losses[0] - 0.1
    assert_trees_equal(headjax.load(result.path).params, result.model.params)
    assert headjax.load(result.path).history[-1]["action"] == "train"


@pytest.mark.parametrize(("step", "place"), [(2, "tmp_path"), (3, "tmp_path"), further(5, "tmp_path"), (3, "bucket")])
def test_a_run_stopped_by_sigterm_goes_on_bit_for_bit(step, place, uninterrupted, data, request):
    (whole, whole_workdir), folder = uninterrupted, f"{request.getfixturevalue(place)}/run"
    before, workdir = signal.getsignal(signal.SIGTERM), path_of(folder)
    stopped = run(folder, data, options=after(step, terminate))
    assert (stopped.finished, stopped.path) == (False, None)
    # The signal is seen after the step in flight, at the latest one step later.
    assert stopped.steps in (step, step + 1)
    assert (workdir / "checkpoints" / str(stopped.steps)).exists()
    continued = run(folder, data)
    assert signal.getsignal(signal.SIGTERM) is before
    assert continued.finished
    assert_trees_equal(continued.model.params, whole.model.params)
    assert str(continued.path) == f"{folder}/model"
    assert_trees_equal(headjax.load(f"{folder}/model").params, whole.model.params)
    assert continued.metrics == whole.metrics

    def values(path):
        return [{k: v for k, v in record.items() if "second" not in k} for record in read_metrics(path)]

    assert values(workdir / "metrics.jsonl") == values(whole_workdir / "metrics.jsonl")


def test_a_run_killed_between_checkpoints_goes_on_from_the_last_one(uninterrupted, data, tmp_path):
    def kill():
        raise MemoryError("killed")

    with pytest.raises(MemoryError, match="killed"):
        run(tmp_path, data, options=after(5, kill))
    assert_trees_equal(run(tmp_path, data).model.params, uninterrupted[0].model.params)


EIGHT = {"data": 2, "fsdp": 2, "model": 2}
ANOTHER_WAY = {"remat": "full", "scan": False, "attention": "einsum"}


@pytest.mark.parametrize(
    ("begun", "continued"),
    [
        further({"mesh": {"data": 8}}, None),  # the run that goes on as EIGHT begins so
        ({"mesh": EIGHT}, None),
        ({"mesh": {"data": 1, "fsdp": 8}}, None),
        ({"mesh": {"slices": 2, "fsdp": 2, "model": 2}}, None),
        ({"mesh": {"data": 8}}, {"mesh": EIGHT}),
        ({}, {"compute": ANOTHER_WAY}),  # one that ran out of memory goes on with rematerialisation, say
    ],
)
def test_eight_devices_and_other_ways_to_compute_reach_what_one_device_reaches(
    begun, continued, uninterrupted, data, tmp_path
):
    whole = uninterrupted[0]
    if continued is not None:
        assert not run(tmp_path, data, options=after(3, terminate), **begun).finished
    found = run(tmp_path, data, **(begun if continued is None else continued))
    assert found.metrics["loss"] == close_to(whole.metrics["loss"], sums=SUMS)
    # Adam divides a gradient's rounding by its size: any parameter may move like the largest.
    assert_trees_close(flatten(found.model.params), flatten(whole.model.params), sums=SUMS, floor=1.0)


def test_a_finished_run_started_again_changes_nothing(uninterrupted, data, copy):
    again = run(copy, data)
    assert_trees_equal(again.model.params, uninterrupted[0].model.params)
    assert again.metrics == uninterrupted[0].metrics


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of TensorStore's other reads
def test_a_damaged_checkpoint_is_named_and_without_it_the_run_ends_as_ever(uninterrupted, data, copy):
    for file in (copy / "checkpoints" / "7" / "state" / "d").iterdir():
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(headjax.CheckpointError, match=r"checkpoints/7: cannot be restored"):
        run(copy, data)
    shutil.rmtree(copy / "checkpoints" / "7")
    again = run(copy, data)
    assert_trees_equal(again.model.params, uninterrupted[0].model.params)
    assert again.metrics == uninterrupted[0].metrics


def test_the_best_weights_are_kept(data, tmp_path):
    """Also by a run that is interrupted after its best evaluation; here the learning rate grows until it ruins all."""
    given = {"optimizer": constant(2.0, warmup_steps=STEPS), "evaluate_every": 1, "keep": "best"}
    whole = run(tmp_path / "whole", data, **given)
    stopped = run(tmp_path / "run", data, options=after(4, terminate), **given)
    continued = run(tmp_path / "run", data, **given)
    losses, others = (
        {record["step"]: record["validation/loss"] for record in read_metrics(file) if "validation/loss" in record}
        for file in (tmp_path / "whole" / "metrics.jsonl", tmp_path / "run" / "metrics.jsonl")
    )
    assert list(others) == list(losses) == list(range(1, STEPS + 1))  # that of the step of the interrupt, too
    best = min(losses, key=losses.get)
    assert best < stopped.steps < STEPS == whole.steps
    assert whole.kept_step == continued.kept_step == best
    assert whole.metrics["loss"] == continued.metrics["loss"] == losses[best]
    assert whole.model.history[-1]["steps"] == best
    assert_trees_equal(headjax.load(whole.path).params, continued.model.params)


def test_a_run_is_extended(data, tmp_path):
    """A finished or interrupted run with more steps goes on to what it would have reached with so many at once."""
    optimizer = constant(warmup_steps=2)
    whole = run(tmp_path / "whole", data, optimizer=optimizer)
    run(tmp_path / "run", data, optimizer=optimizer, steps=4)
    stopped = run(tmp_path / "run", data, optimizer=optimizer, options=after(5, terminate))
    assert not stopped.finished
    longer = run(tmp_path / "run", data, optimizer=optimizer)
    assert (longer.finished, longer.steps) == (True, 7)
    assert_trees_equal(longer.model.params, whole.model.params)
    assert headjax.load(longer.path).history[-1]["steps"] == 7


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def another_schedule(**fields):
    """An optimizer with another schedule, and other fields."""
    return {"kind": "adamw", "schedule": {"kind": "linear_decay", "peak": 0.02, "warmup_steps": 3}} | fields


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"batch_size": 16, "mesh": {"data": 8}}, r"config\.batch_size is 8 there and 16 here"),
        ({"compute": {"dtype": "bfloat16"}}, r'config\.compute\.dtype is "float32" there and "bfloat16" here'),
        ({"prng": "rbg"}, r'config\.prng is "threefry2x32" there and "rbg" here'),
        ({"optimizer": another_schedule()}, r"config\.optimizer\.schedule\.final is 0\.1 there"),
        ({"optimizer": another_schedule(b1=0.8), "steps": 9}, r"config\.optimizer\.b1 is 0\.9 there and 0\.8 here"),
        ({"optimizer": another_schedule(), "steps": 5}, r"holds a run of 7 steps, which 5 would shorten\.$"),
    ],
)
def test_a_workdir_of_another_run_is_left_alone(changes, difference, data, copy):
    before = contents(copy)
    with pytest.raises(headjax.CheckpointError, match=f"copy: .*{difference}"):
        run(copy, data, **changes)
    assert contents(copy) == before


def test_whose_run_it_is_the_config_in_its_folder_says(data, copy):
    file = copy / "train_config.json"
    held = json.loads(file.read_text())
    for content, refusal in (
        (json.dumps(held | {"gone": 1}), r"config\.gone is 1 there and null here"),
        ("{", r"train_config\.json: "),
        ("[]", r"config is \[\] there and null here"),
    ):
        file.write_text(content)
        with pytest.raises(headjax.CheckpointError, match=refusal):
            run(copy, data)


@pytest.mark.parametrize("keep", ["last", "best"])
def test_a_run_whose_last_parameters_are_no_good_has_diverged(keep, data, tmp_path):
    # The last step throws the parameters so far that the loss is not finite, and its own loss and gradient are.
    schedule = {"kind": "cosine", "peak": 1e30, "warmup_steps": 2}
    given = {"steps": 2, "checkpoint_every": 1, "keep": keep, "optimizer": {"kind": "adamw", "schedule": schedule}}
    result = run(tmp_path, data, **given)
    again = run(tmp_path, data, **given)
    assert (result.finished, result.path, result.steps) == (False, None, 1)
    assert "step 2" in result.diverged
    assert not (tmp_path / "model").exists()
    assert not (tmp_path / "best").exists()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert records[-2]["validation/loss"] is None
    assert records[-1] == {"step": 2, "train/diverged": 1.0}
    # Started again it goes on from the checkpoint before, and ends alike.
    assert again.diverged == result.diverged


def test_a_second_run_in_a_workdir_is_refused(data, tmp_path):
    """It changes nothing, and the first one goes on."""
    second = []

    def begin_another():
        before = (tmp_path / "metrics.jsonl").read_bytes()
        with pytest.raises(headjax.HeadjaxError, match="in use by another process") as caught:
            run(tmp_path, data)
        assert (tmp_path / "metrics.jsonl").read_bytes() == before
        second.append(str(caught.value))

    assert run(tmp_path, data, options=after(1, begin_another)).finished
    assert len(second) == 1
    assert "\n" not in second[0]


def test_what_cannot_begin_is_refused_before_a_step_is_compiled_or_anything_written(data, bucket, tmp_path, compiled):
    with pytest.raises(headjax.ConfigError, match=r"^config\.batch_size: "):
        run(tmp_path / "run", data, batch_size=6, mesh={"data": 8})
    assert not (tmp_path / "run").exists()
    (tmp_path / "file").touch()
    for folder, refusal in (
        ("gs://none-such/run", r"^gs://none-such/run: cannot be written \("),
        ("s3://b/run", r"^s3://b/run: not a path that headjax reads or writes"),
        (tmp_path / "file" / "run", r"file/run: "),
    ):
        with pytest.raises(headjax.HeadjaxError, match=refusal):
            run(folder, data)
    assert "step" not in compiled


def test_tensorboard_and_json_lines_hold_the_same_steps(data, tmp_path):
    run(tmp_path, data, steps=2, tensorboard=True, evaluate_every=1, checkpoint_every=1)
    assert len(list((tmp_path / "tensorboard").glob("events*"))) == 1
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert [record["step"] for record in records] == [1, 1, 2, 2]
    assert {"train/loss", "train/gradient_norm", "train/targets", "train/tokens_per_second", "step"} <= set(records[0])
    for record in records[::2]:
        speed = record["train/tokens"] / record["train/step_seconds"]
        assert speed == pytest.approx(record["train/tokens_per_second"])


def test_some_steps_are_traced(data, tmp_path):
    profiled = {"profiled": range(2, 4)}
    run(tmp_path, data, steps=3, options=profiled)
    (trace,) = (tmp_path / "tensorboard" / "plugins" / "profile").glob("*/*.xplane.pb")
    assert b"train" in trace.read_bytes()
    with pytest.raises(headjax.HeadjaxError, match=r"^--profile-steps: "):
        run(tmp_path / "other", data, steps=2, options=profiled)


def test_a_run_whose_time_is_over_ends_after_a_step_and_goes_on(data, tmp_path):
    changes = {"steps": 2, "optimizer": constant()}
    stopped = run(tmp_path, data, **changes, options={"max_seconds": 1e-9})
    assert (stopped.finished, stopped.path, stopped.steps) == (False, None, 1)
    assert run(tmp_path, data, **changes).finished


def test_a_run_says_what_it_is_doing_from_its_start(data, tmp_path):
    """So that a log has a line also while a large model is drawn, compiled or evaluated."""
    opened = []

    @contextlib.contextmanager
    def shown(title, total, unit):
        opened.append(title)
        yield lambda done, values: None

    run(tmp_path, data, steps=1, optimizer=constant(), options={"progress": shown})
    begin, first, *rest = opened
    assert begin == "reading the model and the data"
    assert first == "making the first state"
    assert rest == ["training", "compiling the train step", "evaluating", "saving the model"]
    opened.clear()
    run(tmp_path, data, steps=2, optimizer=constant(), options={"progress": shown})
    assert opened[1] == "restoring the checkpoint"
