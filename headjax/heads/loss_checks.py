"""Checks of a loss on its first batches: attention that no site gates, and examples that depend on each other."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.core.errors import HeadjaxError
from headjax.heads.batches import arrays_of, examples_in
from headjax.heads.discovery import REGISTER, not_recognised, report_unrecognised
from headjax.heads.program import Losses, ModuleProgram, OwnLoss, Program, compiled, measure
from headjax.heads.seam import coarsest, subclass
from headjax.heads.site import ROOT, Gates, at_path, is_within, ones, parameters
from headjax.mesh.distributed import fetch
from headjax.mesh.mesh import take


def compare_examples(program: Program, state: Any, batch: Any) -> bool:
    """Raise `HeadjaxError` unless an example's loss is independent of the others; return whether the batch has several.

    Losses of examples, [batch], must stay the same when every second example is replaced; one number must be the mean
    or the sum of the losses of the examples alone.
    """
    of_headjax = isinstance(program.loss, OwnLoss) and program.read is not arrays_of
    programs = {} if of_headjax else {"loss": program}
    for name, metric in program.metrics:
        of_metric = dataclasses.replace(program, loss=metric, metrics=())
        programs |= {} if of_metric.calls(state, batch).per_example else {name: of_metric}
    return all(_compared(name, each, state, batch) for name, each in programs.items())


def _compared(name: str, program: Program, state: Any, batch: Any) -> bool:
    gates = ones(program.sites)
    traced, shapes = jax.make_jaxpr(program.value, return_shape=True)(state, gates, batch)
    by_example = shapes.total.ndim == 1
    count = shapes.total.shape[0] if by_example else examples_in(batch)
    if not any(array.ndim and array.shape[0] == count for array in jax.tree.leaves(batch)):
        raise HeadjaxError(f"{name}: returned {count} numbers for a batch of {examples_in(batch)} examples")
    if count == 1:
        return False
    with jax.default_matmul_precision("highest"):
        compare = _beside_others if by_example else _alone
        of_batch, expected, scale, how = compare(program, state, gates, batch, count)
    share = min(0.03, 64 * float(jnp.finfo(coarsest(traced.jaxpr)).eps) * (1.0 if by_example else count**0.5))
    differs = np.abs(expected - of_batch) > share * scale  # False where a number is not finite
    if differs.any():
        at = np.unravel_index(differs.argmax(), differs.shape)
        raise HeadjaxError(
            f"{name}: {of_batch[at]:.4g} in a batch is {expected[at]:.4g} {how}, so it is no sum over examples "
            "(in-batch negatives, batch statistics, a balance term, an array of the batch without an axis of "
            "examples); return the loss of every example, [batch], by itself, or make the batch one example by an axis "
            "of length 1 in front of its arrays"
        )
    return True


Comparison = tuple[np.ndarray, np.ndarray, Any, str]
"""Losses of a batch, those if its examples did not depend on each other, their scale, and how these were computed."""


def _beside_others(program: Program, state: Any, gates: Gates, batch: Any, count: int) -> Comparison:
    """Compare the losses of examples, and their numbers of targets, in batches of one shape: rounding is the same."""
    places = np.arange(count)
    even, odd = places // 2 * 2, np.minimum(places // 2 * 2 + 1, count - 1)

    def losses(examples: np.ndarray) -> np.ndarray:
        def pick(array: jax.Array) -> jax.Array:
            return take(array, examples, 0, "batches") if array.ndim and array.shape[0] == count else array

        return np.stack(fetch(_value(program, state, gates, jax.tree.map(pick, batch))))  # [2, batch]

    of_batch = losses(places)
    expected = np.select([(even == places)[None], (odd == places)[None]], [losses(even), losses(odd)])
    return of_batch, expected, np.abs(of_batch).max(axis=-1, keepdims=True), "beside other examples"


def _alone(program: Program, state: Any, gates: Gates, batch: Any, count: int) -> Comparison:
    of_batch = np.asarray(fetch(_value(program, state, gates, batch)).total)[None]
    alone = fetch(measure(program, state, gates, batch)).values["loss"]
    mean = alone.mean(dtype=np.float64)
    factor = 1 if abs(mean - of_batch[0]) <= abs(count * mean - of_batch[0]) else count
    return of_batch, np.array([factor * mean]), factor * np.abs(alone).max(), "for its examples alone"


@compiled()
def _value(program: Program, state: Any, gates: Gates, batch: Any) -> Losses:
    return program.value(state, gates, batch)


SCOPE = "module "
"""Beginning of the names of scopes that are paths of modules."""


def checked(program: Program, state: Any, batches: Iterable[Any], strict: bool) -> Iterator[Any]:
    """Yield batches as JAX arrays, and say on the first one which attention layers of the loss are left out.

    The first one with several examples shows whether the loss is one of its examples.
    """
    compared = False
    advice = REGISTER if isinstance(program, ModuleProgram) else "give its W_O among the sites"
    for number, batch in enumerate(map(program.read, batches)):
        if number == 0:
            report_unrecognised(unrecognised(program, state, batch), strict, advice)
        compared = compared or compare_examples(program, state, batch)
        yield batch


def unrecognised(program: Program, state: Any, batch: Any) -> dict[str, str]:
    """Return the attention layers of a loss that are no sites, by path, with their classes."""
    places = _without_gates(program.value, program, state, batch)
    if not isinstance(program, ModuleProgram):
        return {"/".join(name for name in place if "->" not in name) or "the function": "" for place in places}
    model = nnx.merge(program.graph, state)
    paths = set(not_recognised(model, program.sites))
    scoped = functools.partial(_scoped_value, program)
    for place in _without_gates(scoped, program, state, batch) if places else ():
        path = next((name.removeprefix(SCOPE) for name in reversed(place) if name.startswith(SCOPE)), ROOT)
        while path != ROOT and next(parameters(at_path(model, path)), None) is None:  # out to a module with parameters
            path = path.rpartition(".")[0] or ROOT
        paths.add(path)

    def order(path: str) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in path.split(".")]

    inner = [path for path in paths if not any(is_within(other, path) for other in paths)]
    return {path: type(at_path(model, path)).__qualname__ for path in sorted(inner, key=order)}


def parameters_of(model: nnx.Module, paths: Iterable[str], besides: Iterable[str]) -> int:
    """Return the number of parameters within modules at some paths and not within those at others."""
    inside, others = (
        {id(variable): variable for path in some for _, variable in parameters(at_path(model, path))}
        for some in (paths, besides)
    )
    params = (variable for key, variable in inside.items() if key not in others and isinstance(variable, nnx.Param))
    return sum(variable[...].size for variable in params)


def _scoped_value(program: ModuleProgram, state: Any, gates: Gates, batch: Any) -> Losses:
    """Return the loss, computed under scopes that are named by the paths of the modules."""
    model = program.gated(state, gates)
    for parts, module in list[Any](nnx.iter_modules(model, graph=True)):
        if callable(module):
            cls: Any = type(module)
            module.__class__ = _scoped_class(cls)
            module.head_scope = SCOPE + (".".join(map(str, parts)) or ROOT)
    return Losses.of(program.loss(model, batch))


@functools.cache
def _scoped_class(cls: Any) -> Any:
    def scoped(self: Any, *args: Any, **kwargs: Any) -> Any:
        with jax.named_scope(self.head_scope):
            return cls.__call__(self, *args, **kwargs)

    return subclass(cls, {"__call__": scoped})


Scopes = tuple[str, ...]
"""Names of the scopes of an operation, from the outermost one."""

BODIES = ("jaxpr", "body_jaxpr", "call_jaxpr", "fun_jaxpr")
"""Parameters of operations that hold a trace."""


class _Fact(NamedTuple):
    """Dependences of an array in a trace, and the operations that computed it."""

    batch: bool = False
    gated: bool = False  # depends on gates, and not on the batch
    logits: bool = False  # is a product of two arrays that depend on the batch
    weights: bool = False  # is made of exponentials of logits
    # The products of weights and values whose contexts the array consists of. Another product of two arrays that depend
    # on the batch, such as that of the next layer's queries and keys, begins anew.
    contexts: frozenset[tuple[int, ...]] = frozenset()


def _joined(facts: Iterable[_Fact]) -> _Fact:
    facts = list(facts)
    batch, gated, logits, weights = (any(fact[index] for fact in facts) for index in range(4))
    return _Fact(batch, gated and not batch, logits, weights, frozenset().union(*(fact.contexts for fact in facts)))


def _without_gates(value: Callable[..., Losses], program: Program, state: Any, batch: Any) -> list[Scopes]:
    """Return the scopes of the operations of a loss that make contexts which never meet a gate."""
    closed = jax.make_jaxpr(value)(state, ones(program.sites), batch)
    numbers = len(jax.tree.leaves(state)), len(program.sites), len(jax.tree.leaves(batch))
    kinds = _Fact(), _Fact(gated=True), _Fact(batch=True)
    walk = _TraceWalk()
    walk.run(closed.jaxpr, [fact for fact, number in zip(kinds, numbers, strict=True) for _ in range(number)], (), ())
    return [place for operation, place in walk.places.items() if operation not in walk.met]


class _TraceWalk:
    """Follows facts about arrays from operation to operation through a trace, and through those within it.

    A product of two arrays that depend on the batch gives logits, exponentials (or sigmoids) of logits are weights, and
    a product of weights with an array that depends on the batch gives contexts. The contexts of a site are multiplied
    by its gates before they enter another such product; those of attention that no site holds are not.
    """

    def __init__(self) -> None:
        self.places: dict[tuple[int, ...], Scopes] = {}  # scopes of every operation that makes contexts
        self.met: set[tuple[int, ...]] = set()  # operations whose contexts have met gates

    def run(self, jaxpr: Any, inputs: Sequence[_Fact], calls: tuple[int, ...], place: Scopes) -> list[_Fact]:
        """Return the facts of the outputs of a trace that is within some calls, and in a place."""
        facts = dict(zip(jaxpr.invars, inputs, strict=True))

        def of(variable: Any) -> _Fact:
            return _Fact() if hasattr(variable, "val") else facts.get(variable, _Fact())

        for eqn in jaxpr.eqns:
            scopes = (entry.name for entry in eqn.source_info.name_stack.stack if hasattr(entry, "name"))
            operands, where = [of(variable) for variable in eqn.invars], (*place, *scopes)
            facts.update(zip(eqn.outvars, self._outputs(eqn, operands, (*calls, id(eqn)), where), strict=True))
        return [of(variable) for variable in jaxpr.outvars]

    def _outputs(self, eqn: Any, operands: list[_Fact], calls: tuple[int, ...], place: Scopes) -> list[_Fact]:
        """Return the facts of an operation's outputs; a loop's body runs until those of its carry stay the same."""
        name, params = eqn.primitive.name, eqn.params
        bodies = params.get("branches") or [params[key] for key in BODIES if key in params][:1]
        bodies = [getattr(body, "jaxpr", body) for body in bodies]
        unused = {"while": params.get("cond_nconsts", 0), "cond": 1}.get(name, 0)  # operands that no body has
        if name == "pallas_call" or not bodies or len(bodies[0].invars) != len(operands) - unused:
            return [self._fact(f"{name} {params.get('name', '')}", operands, calls, place)] * len(eqn.outvars)
        constants, carried = _loop(eqn)
        inputs = operands[unused:]
        while True:
            branches = [self.run(body, inputs, calls, place) for body in bodies]
            facts, end = [_joined(each) for each in zip(*branches, strict=True)], constants + carried
            carry = [_joined(pair) for pair in zip(inputs[constants:end], facts[:carried], strict=True)]
            if carry == inputs[constants:end]:
                return facts
            inputs[constants:end] = carry

    def _fact(self, name: str, operands: list[_Fact], calls: tuple[int, ...], place: Scopes) -> _Fact:
        fact = _joined(operands)
        if any(operand.gated for operand in operands):
            self.met |= fact.contexts
        if fact.batch and re.search("attention|splash|flash", name):  # a kernel
            self.places[calls] = place
            return _Fact(batch=True, contexts=frozenset({calls}))
        if name.startswith(("exp ", "exp2 ", "logistic ")):
            return fact._replace(weights=fact.weights or fact.logits)
        if not name.startswith(("dot_general ", "conv_general_dilated ")):
            return fact
        if not all(operand.batch for operand in operands):
            return fact._replace(logits=False, weights=False)  # a projection
        if not fact.weights:
            return _Fact(batch=True, logits=True)
        self.places[calls] = place
        return _Fact(batch=True, contexts=frozenset({calls}))


def _loop(eqn: Any) -> tuple[int, int]:
    """Return how many constants and how many carried values a loop has, 0 of another operation."""
    params = eqn.params
    if eqn.primitive.name == "while":
        return params["body_nconsts"], len(eqn.outvars)
    if eqn.primitive.name != "scan":
        return 0, 0
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carry = params["ft_in"].unpack()[:2]  # from JAX 0.12 on
    return len(constants), len(carry)
