"""Wrong types at the public functions: one line that names the function, the argument, what it takes and what came."""

import inspect
import re
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from flax import nnx

import headjax
from headjax.core.arguments import checked
from headjax.core.errors import ArgumentError, HeadjaxError
from headjax.data.forms.language import Translations
from headjax.evaluation.task import Task
from headjax.heads.learned_gates import Subset
from headjax.heads.reconstruction_order import reconstruction_order
from headjax.models.sampling import Greedy
from headjax.models.tasks import Classification
from headjax.shrinking.shrink import Budget
from headjax.tokenizers.learned import byte_tokenizer
from headjax.training.config import TrainConfig
from headjax.training.objectives import Distillation
from headjax.training.optimizer import AdamW, ConstantRate
from tests import tiny

MODEL = tiny.model(tiny.decoder_config())
FUNCTIONS = {name: found for name in headjax._LAZY if isinstance(found := getattr(headjax, name), FunctionType)}


class Nothing:
    """What no function takes."""


def right(name: str, annotation: str) -> Any:
    """A value of the right type for a required argument, by its annotation."""
    known = {
        "Model": MODEL,
        "Model | None": None,
        "Model | nnx.Module": MODEL,
        "Model | nnx.Module | Applied": MODEL,
        "type[nnx.Module]": nnx.Module,
        **dict.fromkeys(("nnx.Module", "nnx.Module | Applied"), nnx.Linear(1, 1, rngs=nnx.Rngs(0))),
        **dict.fromkeys(("Loss", "Loss | None"), lambda model, batch: 0.0),
        "GateDistribution": Subset(count=1),
        "float": 0.1,
        "ModelConfig": MODEL.config,
        "Batch": tiny.tokens(),
        "Batch | str | Sequence[str]": tiny.tokens(),
        "Iterable[Batch]": [tiny.tokens()],
        "Iterable[Any]": [tiny.tokens()],
        "Sequence[Any]": [tiny.tokens()],
        **{cls.__name__: object.__new__(cls) for cls in (Budget, Task, TrainConfig, Translations)},
        "str": "text",
        **dict.fromkeys(("str | Path", "str | os.PathLike[str]"), Path("nowhere")),
        "Tokenizer": byte_tokenizer(),
        "Sequence[str]": ["a"],
        "Sequence[Batch]": [tiny.tokens()],
        "Sequence[float]": (0.1,),
        "Task | Sequence[Batch]": [tiny.tokens()],
        "int": 3,
        "Source": [],
        "TaskOutput": Classification(classes=2),
        "Sampler": Greedy(),
        "str | LayerChange": "grouped:kv_heads=1",
        "Callable[[LayerModule], nnx.Module]": lambda found: found.module,
        "Distillation": Distillation(steps=1, optimizer=AdamW(schedule=ConstantRate(peak=1.0))),
        "Iterable[HeadId | str]": ["decoder/0/0"],
        "Target | Restructuring | str | Mapping[HeadLayer, Target | str]": "gated",
    }
    assert annotation in known, f"{name}: give an example of {annotation} here"
    return known[annotation]


def arguments():
    for name, function in FUNCTIONS.items():
        for parameter in inspect.signature(function).parameters.values():
            if (
                parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
                and parameter.annotation != "Any"
            ):
                yield pytest.param(name, parameter.name, id=f"{name}-{parameter.name}")


@pytest.mark.parametrize(("name", "wrong"), list(arguments()))
def test_every_argument_of_every_public_function_is_checked(name, wrong):
    parameters = inspect.signature(FUNCTIONS[name]).parameters
    given = {}
    for parameter in parameters.values():
        if parameter.name == wrong:
            given[wrong] = Nothing()
            break
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            given[parameter.name] = right(name, parameter.annotation)
    later = list(parameters.values())[list(parameters).index(wrong) + 1 :]
    given |= {each.name: None for each in later if each.default is each.empty and each.kind is not each.VAR_KEYWORD}
    expected = re.escape(f"{name}: {wrong}: expected {parameters[wrong].annotation}, got a Nothing")
    with pytest.raises(ArgumentError, match=f"^{expected}$"):
        FUNCTIONS[name](**given)


@pytest.mark.parametrize(
    ("call", "place"),
    [
        (lambda: headjax.score_heads(MODEL, tiny.tokens()), "score_heads: batches"),
        (lambda: headjax.score_heads(MODEL, [1]), "score_heads: batches[0]"),
        (lambda: MODEL("text"), "Model.__call__: batch"),
        (lambda: headjax.text_batch(byte_tokenizer(), "a text"), "text_batch: texts"),
        (lambda: headjax.text_batch(byte_tokenizer(), ["a", 3]), "text_batch: texts[1]"),
        (lambda: headjax.generate(MODEL, tiny.tokens(), max_new_tokens="2"), "generate: max_new_tokens"),
        (lambda: headjax.generate(MODEL, tiny.tokens(), max_new_tokens=True), "generate: max_new_tokens"),
        (lambda: headjax.prune(MODEL, "decoder/0/0"), "prune: heads"),
    ],
)
def test_mistakes_that_users_make(call, place):
    with pytest.raises(HeadjaxError, match="^" + re.escape(f"{place}: expected ")) as error:
        call()
    assert isinstance(error.value, TypeError)
    assert "\n" not in str(error.value)


def test_numbers_of_numpy_iterators_and_defaults_pass():
    @checked
    def function(count: int, rate: float = 0.5, items: headjax.HeadId | None = None, *rest: int, **more: Any) -> Any:
        """Return what it was given."""
        return count, rate, items, rest, more

    assert function(np.int64(3), np.float32(1.5)) == (3, 1.5, None, (), {})
    assert function(1, 2, None, 3, other=4) == (1, 2, None, (3,), {"other": 4})
    assert (function.__name__, function.__doc__) == ("function", "Return what it was given.")
    batches = iter([tiny.tokens()])
    with pytest.raises(ArgumentError, match=r"gates: expected Gates \| None, got 3$"):
        headjax.evaluate(MODEL, batches, gates=3)
    assert len(list(batches)) == 1, "an iterator is not consumed by the comparison"
    assert headjax.reconstruction_order.__wrapped__ is reconstruction_order, "the submodule's function is underneath"
    assert headjax.reconstruction_order is headjax.reconstruction_order
