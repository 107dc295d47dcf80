"""Refused saves: they change nothing, so the run continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tinker

MakeDatum = Callable[..., tinker.Datum]
SAVES: dict[str, Callable[[tinker.TrainingClient], Any]] = {
    "save_weights": lambda training: training.save_state("0001"),
    "save_weights_for_sampler": lambda training: training.save_weights_for_sampler("0001"),
    "save_weights_external": lambda training: training.save_weights_external("0001"),
}
NO_RETRY = {"x-should-retry": "false"}
pytestmark = pytest.mark.gives_up_soon


@pytest.mark.parametrize("operation", SAVES)
def test_the_run_continues(
    wire: Any, training: tinker.TrainingClient, datum: MakeDatum, operation: str
) -> None:
    """Requests called after a refused save are sent, with the next number, and run."""
    assert SAVES[operation](training).result(10).path
    refused = SAVES[operation](training)
    step = training.forward_backward([datum()], "cross_entropy")
    with pytest.raises(tinker.ConflictError):
        refused.result(10)
    assert step.result(10).metrics
    assert [wire.requests(name)[-1].seq_id for name in (operation, "forward_backward")] == [2, 3]


@pytest.mark.parametrize(
    ("operation", "status", "number"),
    [
        *(("save_weights_external", status, 1) for status in (404, 405, 501)),
        *(("save_weights", status, 1) for status in (403, 429)),
        ("save_weights_for_sampler", 422, 2),
    ],
)
def test_a_save_that_was_not_read(
    wire: Any,
    training: tinker.TrainingClient,
    datum: MakeDatum,
    operation: str,
    status: int,
    number: int,
) -> None:
    """A refused save stops nothing; one that was not read leaves its number to the next request."""
    wire.fail(operation, status, headers=NO_RETRY)
    refused = SAVES[operation](training)
    step = training.forward_backward([datum()], "cross_entropy")
    with pytest.raises(tinker.APIStatusError):
        refused.result(10)
    assert step.result(10).metrics
    assert [wire.requests(name)[-1].seq_id for name in (operation, "forward_backward")] == [
        1,
        number,
    ]


def test_a_sampler_of_a_refused_save(
    wire: Any, training: tinker.TrainingClient, datum: MakeDatum
) -> None:
    """A sampler that cannot be made stops no request of the run."""
    wire.fail("save_weights_for_sampler", 422)
    refused = training.save_weights_and_get_sampling_client()
    assert training.forward_backward([datum()], "cross_entropy").result(10).metrics
    with pytest.raises(tinker.UnprocessableEntityError):
        refused.result(10)


def test_a_save_with_unknown_outcome(
    wire: Any, training: tinker.TrainingClient, datum: MakeDatum
) -> None:
    """A save that may have been accepted stops later requests, until its error is received."""
    wire.fail("save_weights", 503, headers=NO_RETRY)
    unknown = training.save_state("0001")
    step = training.forward_backward([datum()], "cross_entropy")
    with pytest.raises(tinker.PrecedingRequestFailed, match="the save_state before it failed"):
        step.result(10)
    with pytest.raises(tinker.InternalServerError):
        unknown.result(10)
    assert training.forward_backward([datum()], "cross_entropy").result(10).metrics
    assert wire.requests("forward_backward")[-1].seq_id == 2
