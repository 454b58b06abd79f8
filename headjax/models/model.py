"""The base of the families' models: config, history, tokenizer and files beside the weights; calls; directories."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from headjax.core.errors import DataError, HeadjaxError, ParameterError
from headjax.core.kind import own_copy
from headjax.core.modules import IgnoredStatic, arrays, bind, settings, weights_of
from headjax.core.serialize import kind_of
from headjax.core.tensors import Params
from headjax.mesh.mesh import explicit_mesh, spread_by_example
from headjax.models.config import DECLARED, HEAD_STACKS, Batch, Loss, ModelConfig, Output, declared_model, head_stack_at
from headjax.models.directory import ModelFolder, save
from headjax.models.inputs import device_batch
from headjax.models.walk import LayerBlock, NextStack, blocks_of
from headjax.nn.block import Compute, ForwardOptions, Probe, ProbeFunction, State
from headjax.version import __version__


def history_entry(action: str, **details: Any) -> dict[str, Any]:
    """Return an entry of a model's history: the action, its details (JSON data), the versions of headjax and JAX."""
    return {"action": action, **details, "versions": {"headjax": __version__, "jax": jax.__version__}}


class Model(nnx.Module):
    """A model: a config, and the `flax.nnx` modules that it describes, with their arrays.

    `model(batch)` is `finish(stack(embed(batch)))`. Each family is a subclass (`Decoder`, `Encoder`, `EncoderDecoder`,
    `Vision`), and `Model(config, ...)` makes a model of the config's family. Every transformation of Flax takes it.
    headjax's own functions leave the model that they are given as it is, and return another one.

        >>> model = headjax.demo_model()
        >>> batch = headjax.text_batch(model.tokenizer, ["for name in names:"])
        >>> model(batch).logits.shape
        (1, 8, 2048)
        >>> print(model)
        Model: decoder, width 128, output tied
          heads: decoder 32 in 4 layers
          parameters: 1,088,256 (float32)
          tokenizer: yes; history: import

    Attributes:
        config: the architecture.
        deterministic: whether calls drop nothing, whatever `rngs` they are given; `eval()` and `train()` set it.
    """

    config: Any

    def __init_subclass__(cls, config: type[ModelConfig] | None = None, **options: Any) -> None:
        """Make `Model(config)` return models of a family, for configs of this class."""
        super().__init_subclass__(**options)
        if config is not None:
            config.model_class = cls

    def __new__(cls, config: ModelConfig | None = None, *args: Any, **options: Any) -> Self:
        """Return a model of the config's family, not yet initialised."""
        return super().__new__(cls if config is None or cls is not Model else config.model_class)

    def __init__(
        self,
        config: ModelConfig,
        params: Mapping[str, Any] | None = None,
        history: tuple[Mapping[str, Any], ...] = (),
        tokenizer: Any = None,
        files: Mapping[str, bytes] | None = None,
        *,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        """Put arrays into the family's modules, which its own `__init__` has declared by shape: given or fresh ones.

        Args:
            config: the architecture.
            params: nested dict of arrays, as `config.tensors()` declares them; parts that are missing are left out.
            history: changes made to it, oldest first.
            tokenizer: its tokenizer, if it has one.
            files: other files of the Hugging Face directory that it came from, by name (`README.md`).
            rngs: draws parameters where none are given, each by its path from one key of the stream `params`.

        Raises:
            HeadjaxError: neither `params` nor `rngs`.
        """
        if params is None:
            if rngs is None:
                raise HeadjaxError("rngs: a model needs `params`, or `rngs` to draw them, such as nnx.Rngs(0)")
            params = config.initialize(rngs.params())
        self.config, self.deterministic = config, False
        self.beside = IgnoredStatic({"history": tuple(history), "tokenizer": tokenizer, "files": dict(files or {})})
        if params is DECLARED:
            return
        for name, part in weights_of(self).items():
            if name in params:
                bind(part, params[name])
            else:
                delattr(self, name)

    @property
    def params(self) -> Params:
        """The arrays as a nested dict, in a model whose parts are those of its config.

        Raises:
            ParameterError: another module, or a variable more, has been put into the model: it computes with that, but
                its config does not describe it.
        """
        check_parts(self)
        return arrays(self)

    @property
    def history(self) -> tuple[Mapping[str, Any], ...]:
        """Changes made to the model, oldest first."""
        return tuple(self.beside.value["history"])

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer, or None."""
        return self.beside.value["tokenizer"]

    @property
    def files(self) -> Mapping[str, bytes]:
        """Files that came with the model, which an export gives back: its model card, how it reads images and chats."""
        return dict(self.beside.value["files"])

    def __call__(
        self,
        batch: Batch,
        *,
        attention: bool = False,
        probe: ProbeFunction | None = None,
        compute: Compute = Compute(),
        rngs: nnx.Rngs | None = None,
        deterministic: bool | None = None,
    ) -> Output:
        """Compute the forward pass, jitted.

        On a mesh with explicit axes (`jax.make_mesh`) the results lie by example as the batch does.
        """
        if attention and probe is not None:
            raise DataError("attention: ask for attention probabilities or for a probe, not for both")
        still = self.deterministic if deterministic is None else deterministic
        key = None if rngs is None or still else rngs.dropout()
        arrays = device_batch(self.config, batch)
        # Within a trace nothing is compiled apart, so that whoever traces a gated copy sees all of its calls.
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((self, arrays)))
        run = _forward.__wrapped__ if traced else _forward  # type: ignore[attr-defined]
        output: Output = run(self, arrays, key, probabilities if attention else probe, compute)
        return output._replace(attention=output.probes, probes=None) if attention else output

    def forward(self, batch: Batch, options: ForwardOptions = ForwardOptions()) -> Output:
        """Compute the forward pass in the caller's own program: `embed`, the layers of the stack, `finish`."""
        model, compute, key = options.compute.cast(self), options.compute, options.key
        (name,) = self.config.STACKS
        state, reports = getattr(model, name)(model.embed(batch, compute, key), options.of_stack(0))
        return model.finish(state, compute, key)._replace(probes=probes_of(**{name: reports}))

    def embed(self, batch: Batch, compute: Compute = Compute(), key: jax.Array | None = None) -> State:
        """Return the state that enters the first layer; the key draws dropout."""
        raise NotImplementedError

    def finish(self, state: State, compute: Compute = Compute(), key: jax.Array | None = None) -> Output:
        """Return the model's output, from the state after the last layer; the key draws dropout."""
        raise NotImplementedError

    def device_batch(self, batch: Batch) -> dict[str, jax.Array]:
        """Return a batch's arrays as JAX arrays, checked to be tokens, classes and positions of the model."""
        return device_batch(self.config, batch)

    def loss(self, batch: Batch, *, compute: Compute = Compute()) -> Loss:
        """Return the losses of a batch's examples, in nats: sums over their targets, and numbers of targets.

        Nothing is dropped, and label smoothing is off.
        """
        return self.losses(self(batch, compute=compute, deterministic=True), batch, smoothed=False)

    def losses(self, output: Output, batch: Batch, *, smoothed: bool = True) -> Loss:
        """Return the losses of the batch's labels, with the label smoothing of training or without."""
        config = self.config if smoothed else self.config.for_evaluation()
        losses: Loss = config.task.loss(output, batch)
        return losses

    def valid_tokens(self, batch: Batch) -> jax.Array | None:
        """Return which positions of the last stack are no padding, `[batch, length or 1]` bool; None where all are."""
        mask = batch.get("attention_mask")
        return None if mask is None else jnp.asarray(mask).astype(bool)

    def count_tokens(self, batch: Batch) -> jax.Array:
        """Count the tokens of a batch that the model reads, without padding; to be traced."""
        if batch.get("attention_mask") is not None:
            return jnp.asarray(batch["attention_mask"]).astype(bool).sum()
        return jnp.asarray(jnp.size(batch["input_ids"]))

    def blocks(self) -> list[LayerBlock | NextStack]:
        """Return the blocks in the order of computation."""
        return list(blocks_of(self))

    def named_sites(self, sites: Sequence[Any]) -> list[Any]:
        """Return sites (`headjax.AttentionSite`) with heads named by head stack, layer and original number."""
        named, ours = {site.path: site for site in sites}, list[str]()
        for head_stack, attentions in self.config.attentions().items():
            stack, slot = HEAD_STACKS[head_stack]
            for group in self.config.stacks()[stack].groups:
                path = f"{stack}.{group.name}.{slot}"
                ours.append(path)
                if path in named:
                    ids = tuple(head for layer in attentions[group.start : group.stop] for head in layer.ids)
                    names = ids if len(ids) == group.count * named[path].heads else None
                    place = {
                        "first": (head_stack, group.start),
                        "layers": group.count,
                        "tied": group.shared and group.count > 1,
                    }
                    named[path] = dataclasses.replace(named[path], ids=names, **place)
        return [named[path] for path in sorted(named, key=[*ours, *named].index)]

    def __repr__(self) -> str:
        """Describe the model in at most five lines; its `config` and `params` print whole."""
        types = ", ".join(sorted({str(array.dtype) for array in jax.tree.leaves(arrays(self))}))
        counts = {name: sum(layer.num_heads for layer in of) for name, of in self.config.attentions().items()}
        layers = {name: len(of) for name, of in self.config.attentions().items()}
        heads = ", ".join(f"{name} {count} in {layers[name]} layers" for name, count in counts.items())
        history = ", ".join(str(entry.get("action", "?")) for entry in self.history[-5:])
        return (
            f"Model: {kind_of(self.config)}, width {self.config.width}{self.config.output_description()}\n"
            f"  heads: {heads}\n"
            f"  parameters: {self.num_parameters:,}{f' ({types})' if types else ', none loaded'}\n"
            f"  tokenizer: {'none' if self.tokenizer is None else 'yes'}{history and f'; history: {history}'}"
        )

    __str__ = __repr__

    @property
    def num_parameters(self) -> int:
        """Number of parameters."""
        return sum(array.size for array in jax.tree.leaves(nnx.state(self, nnx.Param)))

    def replace(self, **changes: Any) -> Model:
        """Return a model of the same arrays with another `config`, `params`, `history`, `tokenizer` or `files`."""
        about = {name: changes.pop(name, value) for name, value in self.beside.value.items()}
        if not changes:
            model: Model = own_copy(self)
            model.beside = IgnoredStatic(about)
            return model
        config, stacks = changes.get("config", self.config), self.config.stacks()
        if "params" in changes or config.stacks() != stacks:
            model = Model(config, changes.get("params", self.params), **about)
        else:
            parts = weights_of(self)
            model = Model(config, {name: arrays(part) for name, part in parts.items() if name not in stacks}, **about)
            for name in stacks.keys() & parts.keys():  # as they are, with whatever has been put into them
                setattr(model, name, own_copy(parts[name]))
        model.deterministic = self.deterministic
        return model

    def unstacked(self, compute: Compute = Compute()) -> Self:
        """Return the model in the type to compute in, the arrays of each layer by themselves.

        Calls are faster then, of small batches most (one text of a 12-layer encoder takes two thirds of the time on a
        CPU): a scan, and a slice of stacked arrays, copy a layer's weights before they are used. Generation does this
        itself. What is so already is not copied.

            >>> model = headjax.demo_model()
            >>> len(model.unstacked().decoder.layers_0_3)
            4
        """
        casts = any(array.dtype != compute.type for array in jax.tree.leaves(nnx.state(self, nnx.Param)))
        model: Self = jax.tree.map(lambda array: array, _cast(compute, self) if casts else self)
        for name, stack in model.config.stacks().items():
            module = getattr(model, name)
            for group in filter(module.is_stacked, stack.groups):
                setattr(module, group.name, nnx.List(group.unstacked(getattr(module, group.name))))
        return model

    def with_entry(self, action: str, **details: Any) -> Model:
        return self.replace(history=(*self.history, history_entry(action, **details)))

    def save(self, path: str | Path) -> None:
        """Write a model directory; it appears under its name only once it is complete.

        Among several processes, the one that calls this writes, without the others; it has the parameters whole.

            >>> headjax.demo_model().save(folder / "model")
            >>> sorted(path.name for path in (folder / "model").iterdir())
            ['checksums.json', 'config.json', 'files', 'history.json', 'params', 'tokenizer']

        Raises:
            CheckpointError: the path exists and is not a model directory, or holds files that headjax did not write.
            ParameterError: the parameters are not those the config declares, or not finite.
        """
        save(path, self.config, self.params, self.history, self.tokenizer, self.files)


def load(path: str | Path, *, mesh: Mesh | None = None) -> Model:
    """Read a model directory, strictly.

        >>> headjax.demo_model().save(folder / "model")
        >>> headjax.load(folder / "model").config.width
        128

    Args:
        path: the directory.
        mesh: place the parameters on this mesh by the sharding rules; None is one device of this process.

    Raises:
        CheckpointError: not a model directory, or files that cannot be read.
        DamagedError: a file is not as it was written.
        ConfigError: a config that describes no model, or arrays that cannot fit into memory.
        ParameterError: a missing, extra or wrongly shaped array; the message names its path.
    """
    return Model(*ModelFolder(path).read(mesh))


_cast = jax.jit(Compute.cast, static_argnums=0)


def check_parts(model: Model) -> None:
    """Raise `ParameterError` for the first part of a model that is not of the kind that its config describes."""
    _check_weights(weights_of(model), weights_of(declared_model(model.config)), "")


def _check_weights(parts: Mapping[str, Any], expected: Mapping[str, Any], path: str) -> None:
    for name, part in parts.items():
        where = f"{path}/{name}".strip("/")
        declared: Any = expected.get(name)
        if isinstance(part, nnx.List) and declared is not None:  # layers by themselves, as generation reads them
            for number, layer in enumerate(part):
                _check_weights(weights_of(layer), weights_of(declared), f"{where}/{number}")
        elif isinstance(part, nnx.Module) and type(part) is type(declared) and settings(part) == settings(declared):
            _check_weights(weights_of(part), weights_of(declared), where)
        elif not isinstance(part, nnx.Variable) or declared is None:
            kind = f"a {type(declared).__name__}" if declared is not None else "nothing"
            is_here = "has gates" if kind[2:] == type(part).__name__ else f"is a {type(part).__name__}"
            raise ParameterError(
                f"{where}: {is_here}, where the config describes {kind}; the model computes with it, but cannot be "
                "written or rewritten so: change layers with headjax.map_attention, and give gates last"
            )


def probes_of(**reports: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]] | None:
    """Return the results of a probe by head stack, from the reports of the layers by stack; None without a probe."""
    results = {
        head_stack_at(stack, slot): [layer[slot] for layer in layers]
        for stack, layers in reports.items()
        for slot in (layers[0] if layers else ())
    }
    return results or None


def probabilities(probe: Probe) -> jax.Array | None:
    """Return a layer's attention probabilities `[batch, heads, query, key]`."""
    return probe.attended.probabilities


@functools.partial(jax.jit, static_argnames=("probe", "compute"))
def _forward(model: Model, batch: Any, key: Any, probe: ProbeFunction | None, compute: Compute) -> Output:
    if not batch or explicit_mesh(model, batch) is None:
        return model.forward(batch, ForwardOptions(key, probe, compute))
    run = functools.partial(_forward.__wrapped__, probe=probe, compute=compute)  # type: ignore[attr-defined]
    return spread_by_example(run, next(iter(batch.values())), model, batch, key)
