"""``tinker serve`` with the toy engine, in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs


@attrs.frozen
class Served:
    """A server, the first line that it printed, and its URL."""

    process: subprocess.Popen[str]
    first: str
    url: str

    def lines(self, count: int) -> list[str]:
        """Return the next lines that it prints."""
        assert self.process.stdout is not None
        return [self.process.stdout.readline() for _ in range(count)]

    def end(self, sent: signal.Signals = signal.SIGTERM) -> str:
        """Send a signal, wait for the end, and return the log."""
        self.process.send_signal(sent)
        return self.process.communicate(timeout=30)[1]


@contextmanager
def served(*options: str | Path, cwd: Path | None = None, **environment: str) -> Iterator[Served]:
    """Yield a server on a free port; what is still running in the end is killed."""
    command = [sys.executable, "-m", "tinker.cli", "serve", "--engine", "toy", "--port", "0"]
    with subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, **environment},
    ) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            found = re.search(r"https?://[^ )]+", first)
            assert found is not None, process.communicate(timeout=30)
            yield Served(process, first, found[0])
        finally:
            process.kill()
