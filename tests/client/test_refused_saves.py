"""Saves that the server refuses: they change nothing, so the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tinker

SAVES: dict[str, Callable[[tinker.TrainingClient], Any]] = {
    "save_weights": lambda training: training.save_state("0001"),
    "save_weights_for_sampler": lambda training: training.save_weights_for_sampler("0001"),
    "save_weights_external": lambda training: training.save_weights_external("0001"),
}


@pytest.mark.parametrize("operation", SAVES)
def test_the_run_goes_on(
    wire: Any, training: tinker.TrainingClient, datum: Callable[..., tinker.Datum], operation: str
) -> None:
    """What was called behind a refused save is sent, with the next number, and done."""
    assert SAVES[operation](training).result(10).path
    refused = SAVES[operation](training)
    step = training.forward_backward([datum()], "cross_entropy")
    with pytest.raises(tinker.ConflictError):
        refused.result(10)
    assert step.result(10).metrics
    assert [wire.sent(name)[-1].seq_id for name in (operation, "forward_backward")] == [2, 3]


def test_a_save_of_unknown_fate(wire: Any, training: tinker.TrainingClient, datum: Callable[..., tinker.Datum]) -> None:
    """A save of which nobody knows whether it was taken breaks the order, as its number may be used or not."""
    wire.fail("save_weights", 503, headers={"x-should-retry": "false"})
    with pytest.raises(tinker.InternalServerError):
        training.save_state("0001").result(10)
    with pytest.raises(tinker.InternalServerError):
        training.forward_backward([datum()], "cross_entropy").result(10)
