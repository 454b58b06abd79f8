"""lm-eval's numbers of a model of headjax are those of its own backend for Hugging Face on the exported weights."""

import importlib.util
import json
import warnings

import jax
import pytest

from headjax.core.errors import HeadjaxError
from headjax.hub import to_huggingface
from headjax.tokenizers.learned import byte_tokenizer
from tests.closeness import assert_close
from tests.hub.directories import model_of

NEEDED = ("lm_eval", "torch", "transformers", "accelerate", "datasets")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(
        bool(MISSING), reason=f"needs lm-eval[hf] and the extra parity: {', '.join(MISSING)} not installed"
    ),
]

GPT2 = {"model_type": "gpt2", "vocab_size": 257, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 48}
ROWS = [
    {"question": "Are heads many", "choices": ["yes", "no", "perhaps not"], "gold": 0, "text": "Some heads. " * 9},
    {"question": "Are heads alike", "choices": ["yes", "no", "now and then"], "gold": 1, "text": "A short text"},
    {"question": "Q " * 40, "choices": ["a", "b", "c"], "gold": 2, "text": "é and ü"},
]
COMMON = "dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {file}\ntest_split: test\n"
TASKS = {
    "local_choice": (
        "output_type: multiple_choice\ndoc_to_text: '{{question}}?'\ndoc_to_target: gold\ndoc_to_choice: choices\n"
        "metric_list:\n  - metric: acc\n"
    ),
    "local_rolling": (
        "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{text}}'\n"
        "metric_list:\n  - metric: word_perplexity\n  - metric: bits_per_byte\n"
    ),
    "local_until": (
        "output_type: generate_until\ndoc_to_text: '{{question}}?'\ndoc_to_target: '{{text}}'\n"
        "generation_kwargs:\n  max_gen_toks: 12\n  until: ['zz', '\\n']\n  do_sample: false\n"
        "metric_list:\n  - metric: exact_match\n"
    ),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The same weights as a model directory and as a Hugging Face directory, and a folder of tasks."""
    folder = tmp_path_factory.mktemp("harness")
    model = model_of(GPT2)
    params = jax.tree.map(lambda array: 3.0 * array, model.params)
    model = model.replace(params=params, tokenizer=byte_tokenizer())
    model.save(folder / "model")
    to_huggingface(model, folder / "hf")
    (folder / "tasks").mkdir()
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for name, text in TASKS.items():
        (folder / "tasks" / f"{name}.yaml").write_text(f"task: {name}\n" + COMMON.format(file=rows) + text)
    return folder


@pytest.fixture(scope="module")
def results(folders):
    """The samples and metrics of both backends by name."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    from headjax.evaluation.harness import HeadjaxLM

    models = {
        "hf": HFLM(pretrained=str(folders / "hf"), device="cpu", batch_size=2, dtype="float32"),
        "headjax": HeadjaxLM.create_from_arg_string(f"path={folders / 'model'},batch_size=2", {"device": "cpu"}),
    }
    assert models["hf"].max_length == models["headjax"].max_length == 48
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        manager = TaskManager(include_path=str(folders / "tasks"), include_defaults=False)
        return {
            name: simple_evaluate(model=model, tasks=list(TASKS), task_manager=manager, bootstrap_iters=0)
            for name, model in models.items()
        }


def answers(results, backend, task):
    """A task's raw answers in the order of its examples."""
    samples = sorted(results[backend]["samples"][task], key=lambda sample: sample["doc_id"])
    return [sample["resps"] for sample in samples]


def test_answers_and_metrics_are_those_of_the_other_backend(results):
    ours, theirs = (answers(results, name, "local_choice") for name in ("headjax", "hf"))
    assert len(ours) == len(ROWS)
    for found, expected in zip(ours, theirs, strict=True):
        for (one,), (other,) in zip(found, expected, strict=True):
            assert float(one[0]) == pytest.approx(float(other[0]), abs=1e-3)
            assert str(one[1]) == str(other[1])
    ours, theirs = (answers(results, name, "local_rolling") for name in ("headjax", "hf"))
    for ((one,),), ((other,),) in zip(ours, theirs, strict=True):  # texts longer than the model
        assert float(one) == pytest.approx(float(other), abs=1e-3)
    assert answers(results, "headjax", "local_until") == answers(results, "hf", "local_until")
    found, expected = (results[name]["results"] for name in ("headjax", "hf"))
    assert found["local_choice"]["acc,none"] == expected["local_choice"]["acc,none"]
    for metric in ("word_perplexity,none", "bits_per_byte,none"):
        assert found["local_rolling"][metric] == pytest.approx(expected["local_rolling"][metric], rel=1e-3)


def test_the_rolling_log_likelihood_is_wikitext2s_protocol(folders):
    from lm_eval.api.instance import Instance

    from headjax.data.wikitext import load_wikitext2
    from headjax.evaluation.harness import HeadjaxLM
    from headjax.evaluation.measures import LanguageModelling
    from headjax.evaluation.task import Task, measure_task
    from headjax.models.model import load

    text = " = Heads = \n One head , two heads . \n" * 4
    (folders / "wiki.valid.raw").write_text(text)
    model = load(folders / "model")
    data = load_wikitext2(str(folders), model.tokenizer, 48, trains=False)
    loss = measure_task(model, Task("wikitext2", data, LanguageModelling())).outcomes["loss"].sum()
    harness = HeadjaxLM(str(folders / "model"), max_length=47)
    request = Instance("loglikelihood_rolling", {}, (text,), 0)
    assert_close(harness.loglikelihood_rolling([request]), [-loss], sums=1000)


def test_what_cannot_be_read_is_one_line(folders):
    from lm_eval.api.instance import Instance

    from headjax.evaluation.harness import HeadjaxLM

    with pytest.raises(HeadjaxError, match="not a model directory"):
        HeadjaxLM(str(folders / "nowhere"))
    harness = HeadjaxLM(str(folders / "model"))
    request = Instance("generate_until", {}, ("a", {"max_gen_toks": 48}), 0)
    with pytest.raises(HeadjaxError, match="max_gen_toks: 48, but the model reads 48 tokens in all"):
        harness.generate_until([request])


def test_sampling_options_of_tasks():
    from headjax.evaluation.harness import Wish
    from headjax.models.sampling import Greedy, Sample

    assert Wish.of({"until": "stop", "max_tokens": 3}, 9) == Wish(3, ("stop",), Greedy())
    assert Wish.of({"do_sample": True, "temperature": 0.5, "top_p": 0.9}, 9).sampler == Sample(
        temperature=0.5, top_p=0.9
    )
    assert Wish.of({"do_sample": False, "temperature": 0.5}, 9).sampler == Greedy()
    assert Wish(9, ("b", "d"), Greedy()).cut("abcd") == "a"
