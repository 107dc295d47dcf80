"""What a failure becomes: a message on the error stream and an exit code.

0 is success, 1 any failure, 2 a wrong call (click's own), 130 an interrupt.
"""

from __future__ import annotations

import contextlib
import errno
import sys
import traceback
from collections.abc import Generator, Sequence
from typing import IO, Any

import click

INTERRUPTED = 130

_TITLES = {
    400: "Invalid request",
    401: "Authentication failed",
    402: "Billing issue",
    403: "Permission denied",
    404: "Resource not found",
    409: "Conflict",
    422: "Invalid data provided",
    429: "Rate limit exceeded",
}
_ADVICE = {
    401: "Check the key: `tinker auth status` says which one is used.",
    402: "Nothing runs until the account can pay for it.",
    404: "Either it does not exist, or this server cannot do this; `tinker doctor` lists what it can.",
    405: "This server cannot do this; `tinker doctor` lists what it can.",
    501: "This server cannot do this; `tinker doctor` lists what it can.",
}


class Failure(click.ClickException):
    """A command failed: one line that says what, and lines with details."""

    exit_code = 1

    def __init__(self, message: str, *details: str) -> None:
        super().__init__(message)
        self.details = details

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"Error: {self.message}", file=file, err=True)
        for line in self.details:
            click.echo(line, file=file, err=True)


@contextlib.contextmanager
def failures_told() -> Generator[None]:
    """Turn every exception of the block into one that click shows and exits with."""
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise  # whoever reads the output has gone; click ends quietly
        raise failure_of(error) from error


def failure_of(error: Exception) -> Failure:
    """The failure that an exception is."""
    message, details = _described(error)
    return Failure(message, *details, *getattr(error, "__notes__", ()))


def _described(error: Exception) -> tuple[str, Sequence[str]]:
    from tinker import errors

    if isinstance(error, errors.APIStatusError):
        return _status(error)
    if isinstance(error, errors.APITimeoutError):
        return "Request timeout", [f"Details: {error}"]
    if isinstance(error, errors.APIConnectionError):
        return "Connection failed", [f"Details: {error}", "Check the network, and TINKER_BASE_URL where it is set."]
    if isinstance(error, errors.RequestFailedError):
        return "The server could not carry out a request", [f"Details: {error}", f"Request: {error.request_id}"]
    if isinstance(error, (errors.TinkerError, ValueError, ImportError, OSError)):
        return str(error) or type(error).__name__, []
    return f"Unexpected error occurred: {type(error).__name__}: {error}", _traceback(error)


def _status(error: Any) -> tuple[str, Sequence[str]]:
    status: int = error.status_code
    title = _TITLES.get(status, "Internal server error" if status >= 500 else f"API error (status {status})")
    advice = _ADVICE.get(status)
    return title, [f"Details: {error}", *([advice] if advice else [])]


def _traceback(error: Exception) -> Sequence[str]:
    """For whoever looks at the screen, and may report it."""
    return "".join(traceback.format_exception(error)).splitlines() if sys.stderr.isatty() else []
