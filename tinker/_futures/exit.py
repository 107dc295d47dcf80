"""What the log says when the program ends: what nobody waited for and what nobody looked at, and nothing after that."""

from __future__ import annotations

import atexit
import logging
import sys
from pathlib import Path

from tinker._futures.receipt import report_all_unseen
from tinker._loop import loop_thread


def report_before_others() -> None:
    """Report before the functions that were registered until now, which may end what requests still need."""
    atexit.unregister(_report)
    atexit.register(_report)


def _report() -> None:
    thread = loop_thread()
    if getattr(sys, "last_value", None) is None:  # else a traceback says why nobody waited
        thread.log_unfinished("when the program ended")
    report_all_unseen()
    thread.end_reports()
    logging.getLogger("tinker").addFilter(_is_of_others)


_PACKAGE = str(Path(__file__).parents[1])


def _is_of_others(record: logging.LogRecord) -> bool:
    """Return whether other code made the record; what fails in this package from here on fails because the program ends."""
    return not record.pathname.startswith(_PACKAGE)


report_before_others()
