"""What an exception becomes: a message on the error stream and an exit code.

0 is success, 1 a failure, 2 wrong arguments (click's own), 130 an interrupt.
"""

from __future__ import annotations

import contextlib
import errno
import traceback
from collections.abc import Generator, Sequence
from typing import IO, TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tinker.errors import APIStatusError

INTERRUPTED = 130

# By the names of the classes in tinker.errors, which is imported only for a failure.
_TITLES = {
    "BadRequestError": "Invalid request",
    "AuthenticationError": "Authentication failed",
    "BillingError": "Billing issue",
    "PermissionDeniedError": "Permission denied",
    "NotFoundError": "Resource not found",
    "ConflictError": "Conflict",
    "UnprocessableEntityError": "Invalid data provided",
    "RateLimitError": "Rate limit exceeded",
    "InternalServerError": "Internal server error",
}
_ADVICE = {
    "AuthenticationError": "Check the key: `tinker auth status` says which one is used.",
    "BillingError": "Nothing runs until the account can pay for it.",
    "NotFoundError": "Either it does not exist, or this server cannot do this; `tinker doctor` lists what it can.",
}
_UNSUPPORTED = "This server cannot do this; `tinker doctor` lists what it can."


class CommandFailed(click.ClickException):
    """Ends a command: one line that says what failed, and lines with details."""

    exit_code = 1

    def __init__(self, message: str, *details: str) -> None:
        super().__init__(message)
        self.details = details

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"Error: {self.message}", file=file, err=True)
        for line in self.details:
            click.echo(line, file=file, err=True)


@contextlib.contextmanager
def convert_errors(*, debug: bool = False) -> Generator[None]:
    """Convert every exception of the block into one that click shows and exits with; ``debug`` shows its traceback too."""
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise  # the reader of the output has gone; click ends quietly
        if debug:
            click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
        raise to_failure(error) from error


def to_failure(error: Exception) -> CommandFailed:
    """Convert an exception to the failure of the command."""
    message, details = _describe(error)
    return CommandFailed(message, *details, *getattr(error, "__notes__", ()))


def _describe(error: Exception) -> tuple[str, Sequence[str]]:
    from tinker import errors
    from tinker._http import NO_API

    if isinstance(error, errors.APIError) and NO_API in str(error):
        return str(error).rpartition(" - ")[2], []
    if isinstance(error, errors.APIStatusError):
        return _describe_status(error)
    if isinstance(error, errors.APITimeoutError):
        return "Request timeout", [f"Details: {error}"]
    if isinstance(error, errors.APIConnectionError):
        return "Connection failed", [f"Details: {error}", "Check the network, and TINKER_BASE_URL where it is set."]
    if isinstance(error, errors.RequestFailedError):
        return "The server could not carry out a request", [f"Details: {error}", f"Request: {error.request_id}"]
    if isinstance(error, (errors.TinkerError, ValueError, ImportError, OSError)):
        return str(error) or type(error).__name__, []
    return f"Unexpected error occurred: {type(error).__name__}: {error}", [
        "This is a defect; `tinker --debug ...` shows where."
    ]


def _describe_status(error: APIStatusError) -> tuple[str, Sequence[str]]:
    from tinker._http import ABSENT_STATUSES

    classes = [kind.__name__ for kind in type(error).__mro__]
    title = next((_TITLES[name] for name in classes if name in _TITLES), f"API error (status {error.status_code})")
    advice = next((_ADVICE[name] for name in classes if name in _ADVICE), None)
    if advice is None and error.status_code in ABSENT_STATUSES:
        advice = _UNSUPPORTED
    return title, [f"Details: {error}", *([advice] if advice else [])]
