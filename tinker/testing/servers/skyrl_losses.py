"""The losses of SkyRL's server: their names and options, and its answers about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tinker.local.engines.inputs import add_sequence_ratios, check_datum, resolve_loss
from tinker.local.engines.losses import LOSSES
from tinker.local.engines.protocol import TrainingExample
from tinker.local.errors import APIProblem, unprocessable
from tinker.types.results import ForwardBackwardOutput
from tinker.types.tensor_data import TensorData

SKYRL_LOSSES: Mapping[str, frozenset[str]] = {
    "cross_entropy": frozenset(),
    "importance_sampling": frozenset(),
    "ppo": frozenset({"clip_low_threshold", "clip_high_threshold", "value_clip"}),
    "gspo": frozenset({"clip_low_threshold", "clip_high_threshold"}),
    "cispo": frozenset({"clip_low_threshold", "clip_high_threshold"}),
    "ppo_critic": frozenset({"value_clip"}),
    "dppo": frozenset({"delta_low", "delta_high"}),
}


def check_loss(loss_fn: str, config: Mapping[str, float | str], data: Sequence[Any]) -> None:
    place = "forward_backward_input"
    allowed = SKYRL_LOSSES.get(loss_fn)
    if allowed is None:
        raise unprocessable(f"{place}.loss_fn", f"Input should be one of {', '.join(SKYRL_LOSSES)}", "literal_error")
    if unknown := sorted(config.keys() - allowed):
        known = f"Allowed keys: {sorted(allowed)}" if allowed else "It accepts none"
        raise unprocessable(place, f"Invalid loss_fn_config keys for loss_fn='{loss_fn}': {unknown}. {known}.")
    for datum in data:
        if any(tensor.sparse_crow_indices is not None for tensor in datum.loss_fn_inputs.values()):
            raise APIProblem(422, "Invalid proto forward_backward body: Sparse loss_fn_input tensors are not supported")


def rewrite_loss_output(
    output: ForwardBackwardOutput, examples: Sequence[TrainingExample], loss_fn: str, config: Mapping[str, float | str]
) -> ForwardBackwardOutput:
    """Rename the metrics, drop ``loss:sum``, and add the loss of every token beside its log-probability."""
    total = output.metrics["loss:sum"]
    metrics = {"total_loss:sum": total, "num_tokens:sum": output.metrics["tokens:sum"]}
    if loss_fn != "cross_entropy":
        metrics["pg_loss:sum"] = total
    form, options = resolve_loss(loss_fn, config)
    fields = [
        {**fields, "elementwise_loss": _elementwise_loss(index, example, fields["logprobs"], loss_fn, form, options)}
        for index, (example, fields) in enumerate(zip(examples, output.loss_fn_outputs, strict=True))
    ]
    return ForwardBackwardOutput("scalar", fields, metrics)


def _elementwise_loss(
    index: int, example: TrainingExample, logprobs: TensorData, loss_fn: str, form: Any, options: Any
) -> TensorData:
    cells = check_datum(index, example, loss_fn, form, vocabulary=2**31, longest=2**31)
    values = logprobs.to_numpy().reshape(cells.weights.shape).astype(np.float64)
    (cells,) = add_sequence_ratios([cells], form, [values])
    inputs = {name: values.astype(np.float64) for name, values in cells.inputs.items()}
    with np.errstate(all="ignore"):  # cells without a weight may hold anything
        terms, _ = LOSSES[loss_fn](np, values, inputs, options)
        weighted = np.where(cells.weights != 0, terms * cells.weights, 0.0)
    return TensorData.from_numpy(weighted.reshape(cells.shape).astype(np.float32))
