"""What the log says when the program ends: what nobody waited for and what nobody looked at, and nothing after that."""

from __future__ import annotations

import atexit
import logging
import sys

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
    logging.getLogger("tinker").disabled = True  # what fails from here on fails because the program ends


report_before_others()
