"""The lag watch: blocking of the interpreter is detected and logged."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path

import pytest
from simulation.loop import SimulatedLoop

from tinker._loop import NEWS_SECONDS, Clock, LagWatch, LoopThread


def watched(
    lateness: list[float], caplog: pytest.LogCaptureFixture, share: float = 1.0
) -> list[str]:
    """Return the log lines for ticks with these delays, in a process with a processor's share."""
    left, now = list(lateness), [1000.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds + left.pop(0)

    watch = LagWatch(
        Clock(monotonic=lambda: now[0], sleep=sleep), processor_time=lambda: now[0] * share
    )
    with caplog.at_level("WARNING", "tinker"):
        asyncio.run(watch.run(lambda: bool(left)))
    return caplog.messages


@pytest.mark.parametrize(
    ("share", "cause"), [(1.0, "code in this process held"), (0.1, "this process got little")]
)
def test_a_long_hold_is_one_line(
    caplog: pytest.LogCaptureFixture, share: float, cause: str
) -> None:
    """A tick that is seconds late is logged, and blames the machine where it gave little time."""
    (line,) = watched([0.0, 0.3, 3.2, 0.0], caplog, share)
    said = "nothing could be sent or received for 3.2 s, heartbeats included, because "
    assert line.startswith(said + cause)


def test_short_delays_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Short delays of a busy process are not logged."""
    assert watched([1.0] * 500, caplog) == []


def test_holds_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Repeated blocking is logged once a minute, with the longest delay since the last line."""
    lines = watched([3.0, 9.0, 4.0, *[0.0] * int(2 * NEWS_SECONDS), 0.0], caplog)
    assert [line.partition(" s,")[0].rpartition(" ")[2] for line in lines] == ["3.0", "9.0"]


def test_imports_are_not_logged(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a module is being imported, no line advises to compute elsewhere."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "takes_long.py").write_text("import test_lag\nlines = test_lag.during_import()\n")
    monkeypatch.setitem(sys.modules, "test_lag", sys.modules[__name__])
    monkeypatch.setattr(
        sys.modules[__name__], "during_import", lambda: watched([3.0, 0.0], caplog), raising=False
    )
    assert importlib.import_module("takes_long").lines == []
    assert len(watched([3.0, 0.0], caplog)) == 1


def test_the_watch_lasts_as_long_as_other_tasks() -> None:
    """A single task is watched to its end; then the watch ends too."""
    loop = SimulatedLoop(1)
    thread = LoopThread(loop)
    task = thread.task(asyncio.sleep(100.0), "a task")
    thread.watch_lag()
    loop.run_until_complete(asyncio.sleep(50.0))
    assert len(thread._tasks) == 2
    loop.run_until_complete(task)
    loop.run_until_complete(asyncio.sleep(10.0))
    assert len(thread._tasks) == 0
