"""Pytest fixtures, available wherever this package is installed: a faulty local server, a client of
it, and simulated time.

    def test_rate_limits_are_waited_out(tinker_server, tinker_service, tinker_clock):
        tinker_server.fail_next("asample", status=429, headers={"retry-after": "3"}, times=3)
        sampler = tinker_service.create_sampling_client(base_model="tinker/toy")
        assert sampler.sample(prompt, 1, params).result(timeout=30).sequences
        assert tinker_clock.now - 1000 >= 9

A scripted fault that does not happen fails a test that passes otherwise. Loading this module
imports only pytest. A warning tells you if files of another distribution are mixed with those of
this package.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tinker.sampling_client import SamplingClient
    from tinker.service_client import ServiceClient
    from tinker.testing import FaultyServer, SteppedClock
    from tinker.training_client import TrainingClient


def pytest_configure(config: pytest.Config) -> None:
    """Warn once, in the main process, if the installation is mixed with another distribution."""
    from tinker._basics.installation import inspect_installation

    problem = None if hasattr(config, "workerinput") else inspect_installation().problem
    if problem is not None:
        config.issue_config_time_warning(UserWarning(problem), stacklevel=2)


def pytest_report_header() -> str:
    """Name the package in the header of the run, as two packages can be imported as ``tinker``."""
    from tinker._version import DISTRIBUTION_VERSION

    return f"tinker: {DISTRIBUTION_VERSION}"


_HAS_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Note which tests fail: their scripted faults need not have happened."""
    if call.when == "call" and call.excinfo is not None:
        item.stash[_HAS_FAILED] = True


@pytest.fixture
def tinker_clock() -> SteppedClock:
    """Return the simulated clock that the server and its clients use: retries take no real time."""
    from tinker.testing import SteppedClock

    return SteppedClock()


@pytest.fixture
def tinker_server(
    request: pytest.FixtureRequest, tinker_clock: SteppedClock, tmp_path: Path
) -> Iterator[FaultyServer]:
    """Run an in-process toy server with scriptable faults. Calls ``verify()`` after a test that
    passes.

    It serves its model under every name, so that a loop can ask for the model that it is written
    for. ``tinker_server.service()`` creates more clients, each with its own session.
    """
    from tinker.testing import toy_server

    with toy_server(tmp_path / "tinker-server", clock=tinker_clock, any_base_model=True) as server:
        yield server
        if not request.node.stash.get(_HAS_FAILED, False):
            server.verify()


@pytest.fixture
def tinker_service(tinker_server: FaultyServer) -> ServiceClient:
    """Return a service client connected to ``tinker_server``."""
    return tinker_server.service()


@pytest.fixture
def tinker_training(tinker_service: ServiceClient) -> TrainingClient:
    """Return a new training client of rank 4 on ``tinker_server``. Async tests can await it, in any
    event loop.
    """
    return tinker_service.create_lora_training_client("tinker/toy", rank=4, seed=0)


@pytest.fixture
def tinker_sampler(tinker_service: ServiceClient) -> SamplingClient:
    """Return a sampling client for the base model of ``tinker_server``."""
    return tinker_service.create_sampling_client(base_model="tinker/toy")


@pytest.fixture
def tinker_url(tmp_path: Path) -> Iterator[str]:
    """Yield the base URL of a toy server on a local port, in real time and without faults."""
    from tinker.testing import toy_server

    with (
        toy_server(tmp_path / "tinker-server-on-port", any_base_model=True) as server,
        server.on_port() as url,
    ):
        yield url
