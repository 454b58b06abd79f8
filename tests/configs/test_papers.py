"""The papers' parameter counts, to the unit where they are known to the unit, and what their configs share."""

from pathlib import Path

import pytest

import headjax
from headjax.initialization import ModelSource

PAPERS = Path(__file__).parents[2] / "configs" / "papers"
FILES = [path for path in sorted(PAPERS.glob("*.py")) if path.stem != "common"]


def model(spec: str):
    """The model of `FILE` or `FILE:ARGS`."""
    name, _, arguments = spec.partition(":")
    config = headjax.load_config(f"{PAPERS / name}.py:{arguments}")
    return ModelSource.of(config.to_dict()).architecture()


def each(spec: str, values: str, numbers: tuple[float, ...]) -> dict[str, float]:
    """The numbers of a spec with each of these values in the place of its `*`."""
    return dict(zip((spec.replace("*", value) for value in values.split()), numbers, strict=True))


COUNTS = {
    **each("concise_bert:width=1024,heads=*", "8 16 32", (336_226_108,) * 3),
    **each("concise_bert:width=512,head_dim=128,heads=*", "8 12 16 32",
           (167_690_044, 192_892_732, 218_095_420, 318_906_172)),
    **each("concise_bert:width=512,heads=8,head_dim=*", "32 64 256", (129_886_012, 142_487_356, 218_095_420)),
    **each("concise_bert:width=768,head_dim=128,feed_forward=3072,heads=*", "8 12 16 20",
           (214_053_692, 251_839_292, 289_624_892, 327_410_492)),
    **each("bert:size=*", "base base,deep large large,deep", (110_106_428, 110_714_684, 336_226_108, 338_437_948)),
    "transformer_base": 60_915_712,
    "transformer_base:deep": 61_238_272,
    "collaborative_bert": 108_311_810,
    **each("collaborative_bert:shared_dim=*", "768 384 256 128", (108_514_562, 101_381_378, 99_003_650, 96_625_922)),
    "collaborative_bert:bare,model=distilbert": 66_362_880,
    "collaborative_bert:bare,model=distilbert,shared_dim=384": 62_897_664,
    "collaborative_bert:bare,model=albert": 11_683_584,
    **each("collaborative_bert:bare,model=albert,shared_dim=*", "512 384", (11_304_192, 11_106_048)),
    **each("collaborative_nmt:key_dim=*", "512 256 128 64", (60_915_712, 56_187_904, 53_824_000, 52_642_048)),
    **each("collaborative_nmt:key_dim=*,collaborative", "512 256 128 64",
           (60_989_440, 56_224_768, 53_842_432, 52_651_264)),
}  # fmt: skip
HEADS = {
    "bert:size=base,deep": 144,
    "bert:size=large,deep": 384,
    "transformer_base": 144,
    "transformer_base:deep": 144,
    "sixteen_heads_bert": 144,
    "sixteen_heads_wmt": 288,
    "iwslt14": 144,
    "collaborative_nmt:size=big": 288,
}


@pytest.mark.parametrize("spec, parameters", COUNTS.items())
def test_parameters_to_the_unit(spec, parameters):
    assert headjax.summarize(model(spec), 8).parameters == parameters


@pytest.mark.parametrize("spec, heads", HEADS.items())
def test_heads(spec, heads):
    assert headjax.summarize(model(spec), 8).heads == heads


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_config_is_a_training_run(path):
    config = headjax.train_config(headjax.load_config(f"{path}:data=some/folder"))
    name, _, folder = config.data.task.partition(":")
    assert folder == "some/folder"
    form = headjax.data.TASKS[name].form
    if config.data.form:
        assert config.data.form == {"size": form.size}
    else:
        assert config.data.length in (form.length, 128)


@pytest.mark.parametrize(
    "spec",
    [
        *("concise_bert:widht=3", "concise_bert:stage=3", "bert:size=huge", "collaborative_nmt:key_dim=100"),
        *("collaborative_nmt:size=bigg", "collaborative_bert:model=gpt", "collaborative_bert:task=imdb"),
    ],
)
def test_impossible_arguments_are_errors(spec):
    with pytest.raises(headjax.ConfigError, match=spec.partition(":")[2].partition("=")[0]):
        model(spec)


SMOKE = {
    "bert": "deep",
    "collaborative_bert": "model=distilbert,shared_dim=256,task=stsb",
    "collaborative_deit": "key_dim=192,collaborative",
    "collaborative_nmt": "size=big,key_dim=128,collaborative",
    "iwslt14": "residual=post,initialization=admin",
    "concise_finetuning": "task=squad",
    "transformer_base": "deep,initialization=admin",
}
"""Arguments that a rehearsal of the file is tried with."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_rehearsal_is_the_same_run_in_small(path):
    arguments = SMOKE.get(path.stem, "")
    full = headjax.load_config(f"{path}:{arguments}")
    small = headjax.train_config(headjax.load_config(f"{path}:{arguments},smoke"))
    assert small.data.rehearsal
    assert small.data.task == full.data.task
    large, config = ModelSource.of(full.to_dict()).architecture(), small.architecture()
    assert headjax.summarize(config, 8).parameters < 300_000
    assert headjax.summarize(config, 8).parameters < headjax.summarize(large, 8).parameters / 100
    assert config.attentions().keys() == large.attentions().keys()
    for stack, layers in config.attentions().items():
        assert type(layers[0]) is type(large.attentions()[stack][0])
        assert layers[0].num_heads == large.attentions()[stack][0].num_heads
    assert type(small.optimizer).__name__.lower() == full.optimizer.kind
    assert small.compute.dtype == full.get("compute", {}).get("dtype", "float32")


def test_fine_tuning_starts_from_a_directory_with_an_output_for_its_task():
    file = f"{PAPERS / 'collaborative_bert'}.py"
    run = headjax.load_config(f"{file}:task=stsb,start=some/model,data=folder,seed=3").to_dict()
    assert (run["start"], run["task"]) == ("some/model", {"kind": "regression"})
    assert run["data"] == {"task": "stsb:folder", "length": 128}
    assert (run["evaluate_every"], run["checkpoint_every"], run["seed"]) == (1000, 1000, 3)
    again = headjax.load_config(f"{file}:task=rte,start=some/model,again").to_dict()
    assert again["start"] == "some/model"
    assert not {"model", "task"} & again.keys()
    assert again["steps"] == 10 * 78


@pytest.mark.parametrize("shared", ["", ",collaborative"])
def test_queries_and_keys_are_cut_among_heads_or_shared_with_one_scale(shared):
    attention = model(f"collaborative_nmt:key_dim=128{shared}").attentions()["encoder"][0]
    assert (attention.shared_dim if shared else 8 * attention.head_dim) == 128
    assert (attention.head_dim**-0.5 if shared else attention.scale) == 64**-0.5
