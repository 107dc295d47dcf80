"""Tools for tests: a server with scripted faults, a simulated clock, pytest fixtures for both, and the conformance kit.

Test programs that use the client against the toy engine, with simulated network faults and simulated time::

    def test_my_loop(tinker_server, tinker_service):
        tinker_server.fail_next("asample", status=429, headers={"retry-after": "1"}, times=3)
        tinker_server.drop_next("optim_step", applied=True)
        my_loop(tinker_service)

The fixtures (:mod:`tinker.testing.plugin`) are available wherever this package is installed. A scripted fault that does not
happen fails the test.

You can also script the model's output (``script_samples``, ``script_logprobs``, ``script_losses``), so that tests of a reward
function are deterministic.

The conformance kit tests servers. From a shell, run ``tinker conformance --base-url http://localhost:8000``. In a test suite,
each check is one test::

    import pytest
    from tinker.testing import check_ids, verify


    @pytest.mark.parametrize("check_id", check_ids())
    def test_conformance(check_id: str) -> None:
        verify(check_id, "http://localhost:8000")

The kit talks to the server over HTTP, like any client, and makes no assumptions about its implementation.
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


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


if not TYPE_CHECKING:  # type checkers know the names above; with this function they would believe in every name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
