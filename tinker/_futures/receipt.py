"""Whether the user has received the error of a future. An error that nobody received is logged,
once: at exit at the latest.
"""

from __future__ import annotations

import atexit
import logging
import weakref
from collections.abc import Callable
from pathlib import Path

import msgspec

from tinker._loop import loop_thread

logger = logging.getLogger("tinker")
_PACKAGE = str(Path(__file__).parents[1])


class Receipt(msgspec.Struct, eq=False, weakref=True):
    """The actions to take when the user receives the error of one future. May be used from any
    thread.
    """

    _actions: tuple[Callable[[], object], ...] = ()
    _unseen: _Unseen | None = None
    _is_of_another: bool = False
    #: The operations that were not carried out because of the error.
    stopped: list[str] = []
    is_received: bool = False

    def expect(self, operation: str, error: BaseException) -> None:
        """Log ``error`` at the end, unless it is received or passed on before, or another future
        logs it.
        """
        if self._unseen is None and not self._is_of_another:
            self._unseen = _Unseen(operation, error, self.stopped)

    def add_action(self, action: Callable[[], object]) -> None:
        """Call ``action()`` when the user receives the error. Add it before the future is done."""
        self._actions += (action,)

    def share(self, receive: Callable[[], object]) -> None:
        """Note that this future fails with the error of another, which logs it. Receiving this
        calls ``receive()``.
        """
        self._is_of_another = True
        self.add_action(receive)

    def mark_received(self) -> None:
        """Note that the user has the error, if only that of an operation that
        failed because of it.
        """
        self.is_received = True
        self.mark_passed_on()
        for action in self._actions:
            action()

    def mark_passed_on(self) -> None:
        """Note that another future fails with the error, so that this one has nothing to log."""
        if self._unseen is not None:
            self._unseen.dismiss()


class _Unseen:
    """A failure that nobody has received yet; logged when it is garbage-collected, or at exit."""

    def __init__(self, operation: str, error: BaseException, stopped: list[str]) -> None:
        self._operation, self._stopped = operation or "an operation", stopped
        self._text: str | None = (f"{type(error).__name__}: {error}".splitlines() or [""])[0]
        _all_unseen.add(self)

    def dismiss(self) -> None:
        self._text = None

    def report(self) -> None:
        text, self._text = self._text, None
        if text is not None:
            if count := len(self._stopped):
                text += f"; {count} later request{'s' if count > 1 else ''} of the run did not run"
            logger.error("%s failed, and its error was never retrieved: %s", self._operation, text)

    def __del__(self) -> None:
        self.report()


_all_unseen: weakref.WeakSet[_Unseen] = weakref.WeakSet()


def report_before_others() -> None:
    """Report before the exit functions that were registered until now, which may end what requests
    still need.
    """
    atexit.unregister(_report_at_exit)
    atexit.register(_report_at_exit)


def _report_at_exit() -> None:
    """Log unfinished requests and unseen errors."""
    thread = loop_thread()
    thread.log_unfinished("when the program ended")
    for unseen in tuple(_all_unseen):
        unseen.report()
    thread.end_reports()
    logger.addFilter(_is_of_user)


def _is_of_user(record: logging.LogRecord) -> bool:
    """Return whether other code made the record: what fails in this package from here on fails
    because the program ends.
    """
    return not record.pathname.startswith(_PACKAGE)


report_before_others()
