"""Tools for tests: a server with scripted faults, a simulated clock, pytest fixtures for both, and
the conformance kit.

Test programs that use the client against the toy engine, with simulated network faults and
simulated time::

    def test_my_loop(tinker_server, tinker_service):
        tinker_server.fail_next("asample", status=429, headers={"retry-after": "1"}, times=3)
        tinker_server.drop_next("optim_step", applied=True)
        my_loop(tinker_service)

The fixtures (:mod:`tinker.testing.plugin`) are available wherever this package is installed. A
scripted fault that does not happen fails the test.

You can also script the model's output (``script_samples``, ``script_logprobs``, ``script_losses``),
so that tests of a reward function are deterministic.

The conformance kit tests servers. From a shell, run
``tinker conformance --base-url http://localhost:8000``. In a test suite, each check is one test::

    import pytest
    from tinker.testing import check_ids, verify


    @pytest.mark.parametrize("check_id", check_ids())
    def test_conformance(check_id: str) -> None:
        verify(check_id, "http://localhost:8000")

The kit talks to the server over HTTP, like any client, and makes no assumptions about its
implementation.
"""

from typing import TYPE_CHECKING

from tinker._basics.lazy import LazyNames

if TYPE_CHECKING:
    from tinker.testing.clock import SteppedClock as SteppedClock
    from tinker.testing.conformance import Nonconformance as Nonconformance
    from tinker.testing.conformance import check_ids as check_ids
    from tinker.testing.conformance import run as run
    from tinker.testing.conformance import verify as verify
    from tinker.testing.conformance.outcome import Outcome as Outcome
    from tinker.testing.conformance.outcome import Report as Report
    from tinker.testing.conformance.outcome import Row as Row
    from tinker.testing.faults import Fault as Fault
    from tinker.testing.server import FaultyServer as FaultyServer
    from tinker.testing.server import ReceivedRequest as ReceivedRequest
    from tinker.testing.server import ScriptedSample as ScriptedSample
    from tinker.testing.server import toy_server as toy_server
else:
    _names = LazyNames(__name__)
    __getattr__, __dir__ = _names.load, _names.list
