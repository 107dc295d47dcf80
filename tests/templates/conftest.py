"""The counts of the chats, at the end of a run."""

from __future__ import annotations

import pytest

from templates.tally import describe


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what came of the chats."""
    if lines := describe():
        terminalreporter.section("chats")
        for line in lines:
            terminalreporter.line(line)
