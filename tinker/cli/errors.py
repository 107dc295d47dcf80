"""What an exception becomes: a message on the error stream and an exit code.

0 is success, 1 a failure, 2 wrong arguments (click's own), 130 an interrupt.
"""

from __future__ import annotations

import contextlib
import errno
import json
import traceback
from collections.abc import Generator, Mapping
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

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
    "AuthenticationError": "Check the key with `tinker auth status`.",
    "BillingError": "Nothing can run until the account has credit.",
    "NotFoundError": "Either the base URL is wrong (--base-url or TINKER_BASE_URL), or this server does not support the "
    "operation; see `tinker doctor`.",
}
_CONNECTION_ADVICE = "Check the network, that the server runs, and its address: --base-url or TINKER_BASE_URL."
_NO_ROUTE = "Not Found"  # what frameworks answer to a path that they do not have; ours names the path behind it
_API = "/api/v1/"
_SHOWN_CHARACTERS = 2000  # of what the server says
# Of these, what the server says is the whole message: it is about what the user gave.
_SELF_EXPLAINING = ("BadRequestError", "UnprocessableEntityError", "NotFoundError")
_UNSUPPORTED = "This server does not support the operation; see `tinker doctor`."


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
def show_failures(params: Mapping[str, Any]) -> Generator[None]:
    """Show the failure of the block as one line of JSON if ``format`` then is JSON; the exit code is the same."""
    try:
        yield
    except click.ClickException as failure:
        if params["format"] != "json":
            raise
        click.echo(json.dumps(_to_record(failure)), err=True)
        raise click.exceptions.Exit(failure.exit_code) from failure


def _to_record(failure: click.ClickException) -> dict[str, object]:
    """Return a failure as plain data: what failed, the class of the error, and lines with details."""
    details = failure.details if isinstance(failure, CommandFailed) else ()
    record = {"error": failure.format_message(), "type": type(failure.__cause__ or failure).__name__}
    return {**record, **({"details": list(details)} if details else {})}


@contextlib.contextmanager
def convert_errors(params: Mapping[str, Any]) -> Generator[None]:
    """Convert every exception of the block into one that click shows and exits with. With ``debug``, show its traceback too."""
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
        if params["debug"]:
            click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
        raise to_failure(error) from error


def to_failure(error: Exception) -> CommandFailed:
    """Convert an exception to the failure of the command: what failed, more about it, and last what to do."""
    message, details, advice = _describe(error)
    notes = () if _explains_absence(error) else getattr(error, "__notes__", ())
    return CommandFailed(message, *details, *notes, *([advice] if advice else []))


def _describe(error: Exception) -> tuple[str, list[str], str | None]:
    from tinker import errors
    from tinker._http import NO_API

    if isinstance(error, errors.APIError) and NO_API in str(error):
        return str(error).rpartition(" - ")[2], [], None
    if isinstance(error, errors.APIStatusError):
        return _describe_status(error)
    if isinstance(error, errors.APITimeoutError):
        return "Request timeout", [f"Details: {error}"], None
    if isinstance(error, errors.APIConnectionError):
        cause, request = str(error.__cause__ or error), error.request
        return cause[:1].upper() + cause[1:], [f"Request: {request.method} {request.url}"], _CONNECTION_ADVICE
    if isinstance(error, errors.RequestFailedError):
        said = _to_line(error.reason)
        if error.category == "user":  # one sentence says what the user can change
            return said, [], None
        return "The request failed on the server", [f"Details: {said}", f"Request: {error.request_id}"], None
    if isinstance(error, (errors.TinkerError, ValueError, ImportError, OSError)):
        return str(error) or type(error).__name__, [], None
    problem = f"Unexpected error: {type(error).__name__}: {error}"
    return problem, [], "This is a bug; `tinker --debug ...` shows the traceback."


def _describe_status(error: APIStatusError) -> tuple[str, list[str], str | None]:
    from tinker._http import ABSENT_STATUSES

    classes = [kind.__name__ for kind in type(error).__mro__]
    title = next((_TITLES[name] for name in classes if name in _TITLES), f"API error (status {error.status_code})")
    unsupported = _UNSUPPORTED if error.status_code in ABSENT_STATUSES else None
    advice = next((_ADVICE[name] for name in classes if name in _ADVICE), unsupported)
    said = say(error)
    if "NotFoundError" in classes and not _explains_absence(error):
        advice = _suspect_address(error) or advice
    elif said != str(error) and any(name in _SELF_EXPLAINING for name in classes):
        return said, [], None
    return title, [f"Details: {said}"], advice


def _explains_absence(error: Exception) -> bool:
    """Return whether the server has said what does not exist; a path that it does not have is no such thing."""
    is_absent = any(kind.__name__ == "NotFoundError" for kind in type(error).__mro__)
    return is_absent and (said := say(error)) != str(error) and said.partition(":")[0] != _NO_ROUTE


def _suspect_address(error: APIStatusError) -> str | None:
    """Return the advice for a base URL with a path, below which the server has nothing; None for one without."""
    base, found, _ = urlsplit(str(error.request.url)).path.partition(_API)
    if not base or not found:
        return None
    return f"The base URL is probably wrong: check its path, {base}, in --base-url or TINKER_BASE_URL."


def say(error: Exception) -> str:
    """Return the sentence in which the server refuses a request, in one line; the text of any other error."""
    from tinker._http import find_explanation

    said = find_explanation(getattr(error, "body", None))
    return str(error) if said is None else _to_line(said)


def _to_line(text: str) -> str:
    """Return text of the server in one line, without what a terminal would obey."""
    line = " ".join(text[:_SHOWN_CHARACTERS].split())
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)
