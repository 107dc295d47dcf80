"""Patience: clients with a limit on how long they retry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tinker
from tinker._http.messages import CONNECT_SECONDS
from tinker._http.retry import SAMPLE, sampling_policy
from tinker._http.transport import SHORTEST_PATIENCE_SECONDS
from tinker.lib.retry_handler import RetryConfig

Connect = Callable[..., tinker.ServiceClient]


@pytest.mark.parametrize(("patience", "tries"), [(0, 1), (2, 3)])
def test_patience(patience: float, tries: int, connect: Connect, wire: Any) -> None:
    """A request is not retried longer than the client's patience, whatever its policy allows."""
    wire.fail("client/config", 503, times=tries)
    rest = connect(patience_seconds=patience).create_rest_client()
    with pytest.raises(tinker.InternalServerError):
        rest.list_sessions().result(10)


@pytest.mark.parametrize("patience", [0, 12])
def test_a_silent_transport(
    connect: Connect, silent_transport: Any, clock: Any, patience: float
) -> None:
    """The client's patience also ends a request on a transport without timeouts."""
    began = clock.now
    service = connect(patience_seconds=patience, transport=silent_transport)
    future = service.create_rest_client().list_sessions()
    assert silent_transport.asked.wait(10)
    longest = max(patience, SHORTEST_PATIENCE_SECONDS)
    clock.advance(longest + CONNECT_SECONDS)
    with pytest.raises(tinker.APITimeoutError, match=f"no response within {longest:g} s"):
        future.result(10)
    assert clock.now - began <= patience + SHORTEST_PATIENCE_SECONDS + CONNECT_SECONDS


@pytest.mark.parametrize(
    ("config", "tries"),
    [(RetryConfig(enable_retry_logic=False), 1), (RetryConfig(progress_timeout=5.0), 3)],
)
def test_retry_configs_of_older_code(
    config: RetryConfig, tries: int, service: tinker.ServiceClient, wire: Any
) -> None:
    """A retry configuration can disable retries of samples, or end them earlier."""
    sampler = service.create_sampling_client(base_model="tinker/toy", retry_config=config)
    sampler.result(10)
    wire.fail("asample", 503, times=tries)
    prompt, params = tinker.ModelInput.from_ints([1]), tinker.SamplingParams(max_tokens=1)
    with pytest.raises(tinker.InternalServerError):
        sampler.sample(prompt, 1, params).result(10)


def test_retry_configs_without_effect() -> None:
    """Without a configuration that changes something, samples follow the retry table."""
    unused = RetryConfig(progress_timeout=5.0, enable_stuck_detection=False)
    for config in (None, RetryConfig(), unused):
        assert sampling_policy(config) == SAMPLE
