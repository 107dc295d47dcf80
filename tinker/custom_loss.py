"""Define your own losses for ``TrainingClient.forward_backward_custom``.

There are three kinds. The gradient of a function of torch tensors is computed by torch. A function
wrapped in :func:`with_gradients` computes its own gradient, with numpy, JAX or any other library. A
loss per datum that ``ServiceClient.create_custom_loss`` has traced can be computed by servers that
support it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, TypeAlias

import attrs
import msgspec
from tinker_wire.models import CustomLossInput

from tinker.types._values import np
from tinker.types.model_input import Datum

if TYPE_CHECKING:
    import torch
    import torch.fx
    from numpy.typing import NDArray

    Tensor: TypeAlias = torch.Tensor
else:
    Tensor = Any  # torch need not be there

CustomLossFn: TypeAlias = Callable[[list[Datum], list[Tensor]], tuple[Tensor, dict[str, float]]]
"""From the datums and, for each, its log-probabilities: the loss, and metrics to report."""

PerDatumLossFn: TypeAlias = Callable[Concatenate[Tensor, ...], tuple[Tensor, Mapping[str, Tensor]]]
"""From the log-probabilities of one datum and further loss inputs: its loss, and metrics
``custom/<name>:sum`` or ``:mean``.
"""

Gradients: TypeAlias = Sequence[Any]
GradientLossFn: TypeAlias = Callable[
    [list[Datum], list["NDArray[np.float32]"]],
    tuple[float, Gradients] | tuple[float, Gradients, Mapping[str, float]],
]
"""From the datums and, for each, its log-probabilities: the loss, its gradient by them, and perhaps
metrics.
"""


@attrs.frozen
class LossWithGradients:
    """A loss that computes its own gradient; made by :func:`with_gradients`.

    Attributes:
        fn: The wrapped function.
        check: A function of the data that raises an error if the loss cannot use the data. It is
            called before anything is sent. Optional.
    """

    fn: GradientLossFn
    check: Callable[[list[Datum]], object] | None = None


def with_gradients(fn: GradientLossFn) -> LossWithGradients:
    """Wrap a loss function that computes its own gradient, for ``forward_backward_custom``. Can be
    used as a decorator.

    Neither torch nor JAX is needed.

    Args:
        fn: ``fn(data, logprobs)`` receives the datums and, for each, a float32 array in the shape
            of its ``target_tokens``. It returns the loss and one array of the same shape for each
            datum, the derivative of the loss by each log-probability. A third item, a mapping of
            metrics, is reported with the result.

    Returns:
        The wrapped loss.

    >>> @with_gradients
    ... def negative_log_likelihood(data, logprobs):
    ...     loss = -sum(part.sum() for part in logprobs)
    ...     return loss, [-np.ones_like(part) for part in logprobs]

    With JAX, for a function ``loss(logprobs)`` of a list of arrays:

        @with_gradients
        def loss_in_jax(data, logprobs):
            parts = [jnp.asarray(part) for part in logprobs]
            return jax.value_and_grad(loss)(parts)
    """
    return LossWithGradients(fn)


@dataclass(frozen=True)
class LossHandle:
    """Handle of a traced loss in one session, from ``ServiceClient.create_custom_loss``, for
    ``forward_backward_custom``.

    Attributes:
        name: The name of the traced function.
        inputs: The parameters of the traced function, ``logprobs`` first, with their numbers of
            dimensions.
        session_id: The session that the loss belongs to.
        graph: The traced function.
        loss_id: The server's id of the loss; None if the client computes it.
    """

    name: str
    inputs: tuple[CustomLossInput, ...]
    session_id: str
    graph: torch.fx.GraphModule = field(repr=False, compare=False)
    loss_id: str | None = None

    @property
    def key(self) -> str:
        """Return a digest of the loss's code and inputs. Equal losses have equal digests."""
        return loss_key(self.graph, self.inputs)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Return the names that a datum's ``loss_fn_inputs`` must contain in addition to
        ``target_tokens``.
        """
        return tuple(one.name for one in self.inputs[1:])


def loss_key(graph: torch.fx.GraphModule, inputs: Sequence[CustomLossInput]) -> str:
    """Return the digest of a traced loss."""
    return hashlib.sha256(graph.code.encode() + msgspec.json.encode(list(inputs))).hexdigest()
