"""Losses of one's own, for ``TrainingClient.forward_backward_custom``.

Three kinds. A function of torch tensors, whose gradient torch computes. A function that computes its gradient itself, wrapped
in :func:`with_gradients`: for numpy, JAX, or anything else. A loss per datum that ``ServiceClient.create_custom_loss`` has
traced, which some servers compute themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, TypeAlias

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray
from tinker_wire.models import CustomLossInput

from tinker.types.datum import Datum

if TYPE_CHECKING:
    import torch
    import torch.fx

    Tensor: TypeAlias = torch.Tensor
else:
    Tensor = Any  # torch need not be there

CustomLossFn: TypeAlias = Callable[[list[Datum], list[Tensor]], tuple[Tensor, dict[str, float]]]
"""From the datums and, for each, its log-probabilities: the loss, and metrics to report."""

PerDatumLossFn: TypeAlias = Callable[Concatenate[Tensor, ...], tuple[Tensor, Mapping[str, Tensor]]]
"""From the log-probabilities of one datum and further loss inputs: its loss, and metrics ``custom/<name>:sum`` or ``:mean``."""

Gradients: TypeAlias = Sequence[Any]
GradientLossFn: TypeAlias = Callable[
    [list[Datum], list[NDArray[np.float32]]],
    tuple[float, Gradients] | tuple[float, Gradients, Mapping[str, float]],
]
"""From the datums and, for each, its log-probabilities: the loss, its gradient by them, and perhaps metrics."""


@attrs.frozen
class LossWithGradients:
    """A loss that computes its own gradient; made by :func:`with_gradients`."""

    fn: GradientLossFn


def with_gradients(fn: GradientLossFn) -> LossWithGradients:
    """A loss whose gradient is not torch's business, for ``forward_backward_custom``; may be used as a decorator.

    ``fn(data, logprobs)`` gets float32 arrays, in the order and shape of each datum's ``target_tokens``, and returns the loss
    and one array for each datum, of its shape: the derivative of the loss by each log-probability. A third item, a mapping of
    metrics, is reported with the result. Neither torch nor JAX is needed:

    >>> @with_gradients
    ... def negative_log_likelihood(data, logprobs):
    ...     loss = -sum(part.sum() for part in logprobs)
    ...     return loss, [-np.ones_like(part) for part in logprobs]

    With JAX, of a function ``loss(logprobs)`` of a list of arrays:

        with_gradients(lambda data, logprobs: jax.value_and_grad(loss)([jnp.asarray(part) for part in logprobs]))
    """
    return LossWithGradients(fn)


@dataclass(frozen=True)
class LossHandle:
    """A traced loss of one session; made by ``ServiceClient.create_custom_loss``, used with ``forward_backward_custom``.

    ``inputs`` are the traced function's parameters, ``logprobs`` first, with their numbers of dimensions. ``loss_id`` is the
    server's name for the loss; None where the client computes it.
    """

    name: str
    inputs: tuple[CustomLossInput, ...]
    session_id: str
    graph: torch.fx.GraphModule = field(repr=False, compare=False)
    loss_id: str | None = None

    @property
    def key(self) -> str:
        """The same for the same loss: a digest of its code and inputs."""
        return loss_key(self.graph, self.inputs)

    @property
    def input_names(self) -> tuple[str, ...]:
        """What a datum's ``loss_fn_inputs`` must hold besides ``target_tokens``."""
        return tuple(one.name for one in self.inputs[1:])


def loss_key(graph: torch.fx.GraphModule, inputs: Sequence[CustomLossInput]) -> str:
    """The digest of a traced loss."""
    return hashlib.sha256(graph.code.encode() + msgspec.json.encode(list(inputs))).hexdigest()
