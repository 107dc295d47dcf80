"""The data that checks send, which any vocabulary has, and the numbers that they
read from results.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, TypeAlias

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray
from tinker_wire import models

from tinker.testing.conformance.decoding import MISCOUNT, WIDTH
from tinker.testing.conformance.outcome import Absent, Contradiction
from tinker.types.datum import Datum
from tinker.types.model_input import ModelInput
from tinker.types.results import ForwardBackwardOutput

Floats: TypeAlias = NDArray[np.float64]

ADAM = models.AdamParams(learning_rate=0.01)
#: The adapter of a model that is created without another one. Adapters with the same seed begin
#: equal.
LORA = models.LoraConfig(rank=8, seed=11)
#: The prompt of every sample.
PROMPT = (5, 6, 7, 8)


def read_body(name: str) -> dict[str, Any]:
    """Return a body of `bodies.json`, which lacks the ids."""
    content = files("tinker.testing.conformance").joinpath("bodies.json").read_bytes()
    return msgspec.json.decode(content, type=dict[str, dict[str, Any]])[name]


def datum(
    tokens: Sequence[int] = (5, 6, 7, 8), targets: Sequence[int] | None = None, **inputs: Any
) -> Datum:
    """Return a datum whose target at each position is the next token, unless ``targets`` are given.

    As in the data of most programs, each token has the weight 1.0; other ``inputs`` replace the
    weights.
    """
    wanted = [*tokens[1:], tokens[0]] if targets is None else list(targets)
    return Datum(
        ModelInput.from_ints(list(tokens)),
        {"target_tokens": wanted, **(inputs or {"weights": [1.0] * len(wanted)})},
    )


def without_weight(one: Datum) -> Datum:
    """Return the datum with weights of 0, whose gradient is zero."""
    return attrs.evolve(
        one, loss_fn_inputs={**one.loss_fn_inputs, "weights": [0.0] * one.model_input.length}
    )


ONE, OTHER = datum((5, 6, 7, 8)), datum((9, 10, 11))
DATA = (ONE, OTHER)
PROMPT_DATUM = datum(PROMPT[:-1], PROMPT[1:])


def logprobs_of(
    output: ForwardBackwardOutput, data: Sequence[Datum] = DATA, operation: str = "forward_backward"
) -> Floats:
    """Return the ``logprobs`` of a result in one row. Contradiction unless there is a finite one
    for each target.
    """
    about = (operation, "ForwardBackwardOutput")
    rows: list[Floats] = []
    for fields in output.loss_fn_outputs:
        if "logprobs" not in fields:
            raise Absent(f"loss_fn_outputs hold {', '.join(fields) or 'nothing'}, but no logprobs")
        rows.append(np.asarray(fields["logprobs"].to_numpy(), np.float64).reshape(-1))
    found, wanted = (
        [len(row) for row in rows],
        [one.loss_fn_inputs["target_tokens"].to_numpy().size for one in data],
    )
    if found != wanted:
        is_other_order, is_wide = (
            sorted(found) == sorted(wanted),
            found == [2 * count for count in wanted],
        )
        cause = "order of outputs" if is_other_order else WIDTH if is_wide else MISCOUNT
        raise Contradiction(f"for {wanted} targets there are {found} logprobs", cause, *about)
    joined = np.concatenate(rows)
    if not np.isfinite(joined).all() or (joined > 1e-3).any():
        told = f"log-probabilities are finite and not positive, these are not: {joined.tolist()}"
        raise Contradiction(told, "" if np.isfinite(joined).all() else WIDTH, *about)
    return joined


def distance(one: Floats, other: Floats) -> float:
    """Return the largest difference."""
    return float(np.max(np.abs(one - other)))


def effect(before: Floats, after: Floats) -> float:
    """Return how far training moved the logprobs. Contradiction if a gradient and a step moved
    nothing.
    """
    moved = distance(before, after)
    if moved < 1e-5:
        told = "a loss with a gradient and a step with a rate changed nothing: the step is lost"
        raise Contradiction(told, cause="lost step", operation="optim_step")
    return moved


def are_near(one: Floats, other: Floats, moved: float) -> bool:
    """Return whether a model equals the one that was saved and loaded; saves may be rounded to half
    precision.
    """
    return distance(one, other) <= min(0.25 * moved + 0.05, 0.5 * moved) + 1e-5


def are_alike(one: Floats, other: Floats, moved: float) -> bool:
    """Return whether two results of training that moved them by ``moved`` are equal, but for
    rounding.
    """
    return distance(one, other) <= 0.05 * moved + 1e-5


def are_close(one: float, other: float) -> bool:
    """Return whether two losses are equal, but for rounding."""
    return abs(one - other) <= 1e-3 * (1 + abs(one))


def in_utc(time: datetime.datetime) -> datetime.datetime:
    """Return a time that may lack its zone, which is told elsewhere."""
    return time if time.tzinfo else time.replace(tzinfo=datetime.UTC)
