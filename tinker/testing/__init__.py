"""Tools for tests: a server with scripted faults, a clock, pytest fixtures of both, and the conformance kit.

Programs that use the client are tested against the toy engine, on a wire on which anything can go wrong, in simulated time::

    def test_my_loop(tinker_server, tinker_service):
        tinker_server.fail_next("asample", status=429, headers={"retry-after": "1"}, times=3)
        tinker_server.drop_next("optim_step", applied=True)
        my_loop(tinker_service)

The fixtures (:mod:`tinker.testing.plugin`) are there wherever this package is installed; a scripted fault that does not happen
fails the test.

What the model says can be scripted too (``script_samples``, ``script_logprobs``, ``script_losses``), so that the code of a
reward is tested without chance.

Servers are tested by the conformance kit. From a shell it is ``tinker conformance --base-url http://localhost:8000``. In a
test suite each check is one test::

    import pytest
    from tinker.testing import check_ids, verify


    @pytest.mark.parametrize("check_id", check_ids())
    def test_conformance(check_id: str) -> None:
        verify(check_id, "http://localhost:8000")

It speaks to the server as any client would, over HTTP, and nothing in it knows which server that is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinker.testing.clock import SteppedClock
    from tinker.testing.conformance import Nonconformance, Outcome, Report, Row, check_ids, run, verify
    from tinker.testing.faults import Fault
    from tinker.testing.script import ScriptedSample
    from tinker.testing.server import FaultyServer, ReceivedRequest, toy_server

# Imported when first used: pytest loads the plugin of this package in every run.
_HOMES = {
    "ReceivedRequest": "server",
    "Fault": "faults",
    "FaultyServer": "server",
    "Nonconformance": "conformance",
    "Outcome": "conformance",
    "Report": "conformance",
    "Row": "conformance",
    "ScriptedSample": "script",
    "SteppedClock": "clock",
    "check_ids": "conformance",
    "run": "conformance",
    "toy_server": "server",
    "verify": "conformance",
}

__all__ = [
    "ReceivedRequest",
    "Fault",
    "FaultyServer",
    "Nonconformance",
    "Outcome",
    "Report",
    "Row",
    "ScriptedSample",
    "SteppedClock",
    "check_ids",
    "run",
    "toy_server",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
