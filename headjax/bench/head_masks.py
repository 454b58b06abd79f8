"""Head gates in a PyTorch model, for comparisons: the gradient of a loss in them by autograd."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any


@contextlib.contextmanager
def gated(projections: Sequence[Any], gates: Any) -> Iterator[None]:
    """While open, every head's context is multiplied by its gate before the output projection.

    Args:
        projections: each attention's output projection, a `torch.nn.Module` whose input `[batch, query, width]` is the
            heads' contexts side by side.
        gates: `[layers, batch, query, heads]`, or 1 in place of `query`; a tensor.
    """

    def hook(layer: int) -> Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]:
        def multiply(module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            heads = inputs[0].unflatten(-1, (gates.shape[-1], -1))
            return (heads * gates[layer][..., None]).flatten(-2), *inputs[1:]

        return multiply

    handles = [module.register_forward_pre_hook(hook(layer)) for layer, module in enumerate(projections)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def torch_gate_gradient(
    projections: Sequence[Any], shape: tuple[int, int, int], loss: Callable[[], Any]
) -> tuple[Any, Any]:
    """The summed loss of a batch and its gradient in the gates, from one forward and one backward.

    Examples do not see each other, so that the gradient of the sum holds every example's own.

    Args:
        projections: see `gated`.
        shape: `(batch, query, heads)` of the gates; a query of 1 sums over positions.
        loss: computes the summed loss with the gated model.

    Returns:
        The loss, a scalar, and `[layers, batch, query, heads]`.
    """
    import torch

    gates = torch.ones(len(projections), *shape, requires_grad=True)
    with gated(projections, gates):
        total = loss()
    (gradient,) = torch.autograd.grad(total, gates)
    return total.detach(), gradient
