"""Mistakes of a first script: what is said about them, and on whose line."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinker
from tinker.futures import APIFuture, immediate

PROMPT = tinker.ModelInput.from_ints([1, 2])
PARAMS = tinker.SamplingParams(max_tokens=2)
MakeDatum = Callable[..., tinker.Datum]


@pytest.fixture
def sampler(service: tinker.ServiceClient) -> tinker.SamplingClient:
    """A sampler of the toy model."""
    return service.create_sampling_client(base_model="tinker/toy")


# Arguments in the wrong place


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((PROMPT, PARAMS, 1), "num_samples must be an integer, got SamplingParams"),
        ((1, PROMPT, PARAMS), "prompt must be a ModelInput, got int"),
        ((PROMPT, 1, 2), "sampling_params must be a SamplingParams, got int"),
        ((PROMPT, 1, {"max_tokens": 2}), "sampling_params must be a SamplingParams, got dict"),
        ((PROMPT, "1", PARAMS), "num_samples must be an integer, got str"),
        ((PROMPT, 1.5, PARAMS), "num_samples must be an integer, got float"),
        ((PROMPT, True, PARAMS), "num_samples must be an integer, got bool"),
        ((PROMPT, 1, PARAMS, True, 2.0), "topk_prompt_logprobs must be an integer, got float"),
        ((PROMPT, 1, PARAMS, True, 0, 0, None, 0, "2"), "prompt_logprobs_last_n must be an integer, got str"),
    ],
)
def test_arguments_of_sample(sampler: tinker.SamplingClient, wire: Any, arguments: Any, message: str) -> None:
    """Arguments of the wrong type raise from the call, by name, and nothing is sent."""
    with pytest.raises(TypeError, match=message):
        sampler.sample(*arguments)
    assert wire.sent("asample") == []


def test_arguments_of_scores(sampler: tinker.SamplingClient, wire: Any) -> None:
    """A prompt that is none is refused on the line that asks for its log-probabilities."""
    with pytest.raises(TypeError, match="prompt must be a ModelInput, got list"):
        sampler.compute_logprobs([1, 2])  # type: ignore[arg-type]
    assert wire.sent("asample") == []


@pytest.mark.parametrize("load", ["load_state", "load_state_with_optimizer"])
def test_paths_of_states(training: tinker.TrainingClient, wire: Any, load: str) -> None:
    """A path without a scheme is refused on the line of the call, and nothing is sent."""
    with pytest.raises(ValueError, match="my-checkpoint"):
        getattr(training, load)("my-checkpoint")
    assert wire.sent("load_weights") == []


def test_integers_of_numpy(sampler: tinker.SamplingClient) -> None:
    """A number of numpy is an integer."""
    assert len(sampler.sample(PROMPT, np.int64(2), PARAMS).result(10).sequences) == 2  # type: ignore[arg-type]


# Timeouts of the wrong type


@pytest.mark.parametrize("timeout", ["3", [1], {"seconds": 3}, 3j])
@pytest.mark.parametrize("ask", ["result", "exception", "result_async"])
def test_timeouts(timeout: Any, ask: str) -> None:
    """A timeout that is not a number raises from the call, by name, whether or not there is a result."""
    for future in (immediate(1), APIFuture[int]("sample")):
        with pytest.raises(TypeError, match="timeout must be a number of seconds or None, got"):
            asyncio.run(asked(future, ask, timeout))


async def asked(future: APIFuture[int], ask: str, timeout: Any) -> object:
    """What the future answers, by either kind of method."""
    answer = getattr(future, ask)(timeout)
    return await answer if inspect.isawaitable(answer) else answer


def test_timeouts_of_clients(training: tinker.TrainingClient) -> None:
    """A client says so too."""
    with pytest.raises(TypeError, match="timeout must be a number"):
        training.result("3")  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [None, 3, 0.5, np.float32(3), np.int64(3)])
def test_numbers_are_timeouts(timeout: Any) -> None:
    """Every real number is a timeout, and None is none."""
    assert immediate(1).result(timeout) == 1
    assert immediate(1).exception(timeout) is None
    assert asyncio.run(immediate(1).result_async(timeout)) == 1


# A result that was not waited for


def test_attributes_of_results(training: tinker.TrainingClient, datum: MakeDatum) -> None:
    """An attribute that a future does not have is looked for on the result: the error says how to get that."""
    future: Any = training.forward_backward([datum()], "cross_entropy")
    with pytest.raises(AttributeError) as caught:
        _ = future.loss
    assert "'APIFuture' object has no attribute 'loss'" in str(caught.value)
    assert "forward_backward" in str(caught.value)
    assert ".result()" in str(caught.value)
    assert "await" in str(caught.value)
    assert future.result(10).loss > 0


def test_attributes_that_are_looked_for() -> None:
    """`hasattr` and `getattr` with a default work; private names and clients have the usual message."""
    future: Any = immediate(1)
    assert not hasattr(future, "loss")
    assert getattr(future, "loss", 2) == 2
    with pytest.raises(AttributeError) as caught:
        _ = future._anything
    assert "await" not in str(caught.value)


def test_attributes_of_clients(training: Any) -> None:
    """A client has no result to look at."""
    with pytest.raises(AttributeError) as caught:
        _ = training.forward_backwards
    assert "'TrainingClient' object has no attribute 'forward_backwards'" in str(caught.value)
    assert "await" not in str(caught.value)


# Subclasses


@pytest.mark.parametrize(
    "client", [tinker.ServiceClient, tinker.TrainingClient, tinker.SamplingClient, tinker.RestClient, tinker.AdminClient]
)
def test_subclasses_without_init(client: type) -> None:
    """A stand-in that does not call the constructor can be shown, as debuggers and failing tests do."""

    class StandIn(client):
        def __init__(self) -> None:
            pass

    assert client.__name__ in repr(StandIn()) or "StandIn" in repr(StandIn())


def test_futures_without_init() -> None:
    """A future whose constructor was not called has the usual errors for what it lacks."""

    class StandIn(APIFuture[int]):
        def __init__(self) -> None:
            pass

    with pytest.raises(AttributeError, match="operation"):
        _ = StandIn().operation
