"""The configs of small runs name data and models that exist, and overrides of shipped files put another kind there."""

from pathlib import Path

import pytest

import headjax
from tests import tiny
from tests.tiny import flatten

SMALL = Path(__file__).parents[2] / "configs" / "small"


@pytest.mark.parametrize("name", ["cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb"])
def test_minilm_has_an_output_for_every_task(name):
    config = headjax.train_config(headjax.load_config(f"{SMALL / 'minilm.py'}:task={name},start=somewhere,steps=7"))
    assert config.data.task == name
    assert config.start == "somewhere"
    output = config.task
    classes = len(headjax.data.TASKS[name].form.label_names)
    assert (
        output == headjax.tasks.Classification(classes=classes)
        if classes
        else isinstance(output, headjax.tasks.Regression)
    )
    assert config.steps == 7


@pytest.mark.parametrize("corpus", ["lm1b", "wikitext2"])
def test_language_models_read_the_named_corpus(corpus, data_dir, monkeypatch):
    monkeypatch.setenv("HEADJAX_DATA", str(data_dir))
    config = headjax.train_config(
        headjax.load_config(f"{SMALL / 'language_model.py'}:corpus={corpus},width=64,steps=9")
    )
    assert Path(config.data.source.path).is_file()
    assert config.model.width == 64
    assert config.model.vocab_size == config.data.vocab_size


@pytest.mark.parametrize(("shape", "parameters"), [("llama", 5_770_496), ("qwen3", 5_770_880)])
def test_decoders_have_the_shapes_of_today(shape, parameters, data_dir, monkeypatch):
    monkeypatch.setenv("HEADJAX_DATA", str(data_dir))
    config = headjax.train_config(headjax.load_config(f"{SMALL / 'decoder.py'}:shape={shape},steps=9"))
    assert Path(config.data.source.path).is_file()
    attention = config.model.attention[0]
    assert (attention.num_heads, attention.kv_heads) == (8, 4)
    assert (attention.query_norm is None) == (attention.key_norm is None) == (shape == "llama")
    assert headjax.summarize(config.model, 8).parameters == parameters


@pytest.mark.parametrize(
    ("arguments", "formulation", "weights"),
    [
        ("", headjax.MultiHeadAttention, 4 * 128 * 128),
        ("heads=16,head_dim=32", headjax.MultiHeadAttention, 4 * 128 * 512),
        ("head_dim=8,value_dim=32", headjax.MultiHeadAttention, 2 * 128 * (32 + 128)),
        ("kv_heads=2", headjax.GroupedAttention, 3 * 128 * 128),
        ("shared_dim=32", headjax.CollaborativeAttention, 2 * 128 * (32 + 128) + 4 * 32),
    ],
)
def test_shapes_of_heads(arguments, formulation, weights):
    config = headjax.train_config(headjax.load_config(f"{SMALL / 'head_shapes.py'}:{arguments}"))
    attention = config.model.attention[0]
    assert attention.of is formulation
    tensors = flatten(tiny.weights(attention, 128, 128))
    assert sum(tensor.size for name, tensor in tensors.items() if not name.endswith("bias")) == weights
    if arguments.startswith("shared_dim"):  # starts as four heads of size 8
        assert (attention.head_dim, attention.value_dim, attention.mixing_init) == (8, 32, headjax.nn.Concatenate())


def test_the_code_model_is_the_one_that_headjax_carries():
    config = headjax.train_config(headjax.load_config(f"{SMALL / 'code.py'}:steps=9"))
    assert (config.steps, config.data.task, config.data.length) == (9, "python_code", 256)
    assert headjax.summarize(config.model, 8).parameters == 1_088_256


FILE = SMALL / "deep.py"
HEADS, LAYERS = 8, 3


@pytest.mark.parametrize(
    ("file", "field"),
    [
        ("decoder.py:shape=mamba", "shape"),
        ("deep.py:variant=deeep", "deep.py"),
        ("deep.py:text=wiki", "deep.py"),
        ("language_model.py:corpus=lm1", "corpus"),
        ("minilm.py:task=sst", "task"),
        ("multi30k.py:head_dim=4,shared_dim=32", "head_dim"),
        ("multi30k.py:num_heads=0", "num_heads"),
        ("multi30k.py:num_heads=3", "num_heads"),
    ],
)
def test_arguments_that_a_file_does_not_know_or_that_do_not_fit_are_named(file, field):
    with pytest.raises(headjax.ConfigError, match=rf"{field}: "):
        headjax.load_config(f"{SMALL / file}")


CONFIGS = Path(__file__).parents[2] / "configs"


def config(name, *overrides):
    return headjax.train_config(headjax.load_config(f"{CONFIGS / name}", [f"--config.{each}" for each in overrides]))


def test_a_directory_takes_a_task_too():
    found = config("small/minilm.py", "task.classes=3", "start=d", "task.kind=classification")
    assert (found.start, found.task) == ("d", headjax.tasks.Classification(classes=3))
