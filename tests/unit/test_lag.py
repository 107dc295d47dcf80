"""Code that holds the interpreter is noticed, and the log says so."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path

import pytest

from tinker._clock import Clock
from tinker._loop import NEWS_SECONDS, LagWatch


def watched(lateness: list[float], caplog: pytest.LogCaptureFixture, share: float = 1.0) -> list[str]:
    """The lines about ticks that come so late, one after the other, in a process that has that share of a processor."""
    left, now = list(lateness), [1000.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds + left.pop(0)

    watch = LagWatch(Clock(monotonic=lambda: now[0], sleep=sleep), processor_time=lambda: now[0] * share)
    with caplog.at_level("WARNING", "tinker"):
        asyncio.run(watch.run(lambda: bool(left)))
    return caplog.messages


def test_a_long_hold_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """A tick that comes seconds late is told with the seconds."""
    (line,) = watched([0.0, 0.3, 3.2, 0.0], caplog)
    assert line.startswith(
        "nothing could be sent or received for 3.2 s, heartbeats included, because code in this process held"
    )


def test_a_process_that_did_not_run_is_not_blamed(caplog: pytest.LogCaptureFixture) -> None:
    """Where the process used little processor time, the line blames the machine, not the user's computations."""
    (line,) = watched([0.0, 3.2, 0.0], caplog, share=0.1)
    assert line.startswith("nothing could be sent or received for 3.2 s, heartbeats included, because this process got little")


def test_little_delays_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    """A busy process is no news."""
    assert watched([1.0] * 500, caplog) == []


def test_holds_are_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Holds one after the other make one line a minute, each with the longest since the last."""
    lines = watched([3.0, 9.0, 4.0, *[0.0] * int(2 * NEWS_SECONDS), 0.0], caplog)
    assert [line.partition(" s,")[0].rpartition(" ")[2] for line in lines] == ["3.0", "9.0"]


def test_imports_are_not_told(caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a module is being imported, however long that takes, nobody is told to compute elsewhere."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "takes_long.py").write_text("import test_lag\nlines = test_lag.during_import()\n")
    monkeypatch.setitem(sys.modules, "test_lag", sys.modules[__name__])
    monkeypatch.setattr(sys.modules[__name__], "during_import", lambda: watched([3.0, 0.0], caplog), raising=False)
    assert importlib.import_module("takes_long").lines == []
    assert len(watched([3.0, 0.0], caplog)) == 1
