"""Errors of commands: their message on the error stream, and their exit code.

0 is success, 1 a failure, 2 wrong arguments (click's own), 130 an interrupt.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import logging
import traceback
from collections.abc import Generator, Mapping
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from tinker._shown import clean

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
    "NotFoundError": "Either the base URL is wrong (--base-url or TINKER_BASE_URL), or this "
    "server does not support the "
    "operation; see `tinker doctor`.",
}
_CONNECTION_ADVICE = (
    "Check the network, that the server runs, and its address: --base-url or TINKER_BASE_URL."
)
_NO_ROUTE = "Not Found"  # the default of web frameworks for an unknown path; ours adds the path
_API = "/api/v1/"
_SHOWN_CHARACTERS = 2000  # of a message from the server
# The message from the server is enough for these: it names the user's mistake.
_SELF_EXPLAINING = ("BadRequestError", "UnprocessableEntityError", "NotFoundError")
_UNSUPPORTED = "This server does not support the operation; see `tinker doctor`."


class CommandFailed(click.ClickException):
    """A failed command: one line with the problem, then lines with details."""

    exit_code = 1

    def __init__(self, message: str, *details: str) -> None:
        super().__init__(message)
        self.details = details

    def show(self, file: IO[Any] | None = None) -> None:
        for line in (f"Error: {self.message}", *self.details):
            click.echo(clean(line), file=file, err=True)


@contextlib.contextmanager
def show_failures(params: Mapping[str, Any]) -> Generator[None]:
    """Print a failure in this block as one line of JSON with ``--format json``. The exit code does
    not change.
    """
    try:
        yield
    except click.ClickException as failure:
        if params["format"] != "json":
            raise
        click.echo(json.dumps(_to_record(failure)), err=True)
        raise click.exceptions.Exit(failure.exit_code) from failure


def _to_record(failure: click.ClickException) -> dict[str, object]:
    """Convert a failure to plain data: the problem, the class of the error, and the lines with
    details.
    """
    record: dict[str, object] = {
        "error": failure.format_message(),
        "type": type(failure.__cause__ or failure).__name__,
    }
    return record | (
        {"details": list(failure.details)}
        if isinstance(failure, CommandFailed) and failure.details
        else {}
    )


@contextlib.contextmanager
def convert_errors(params: Mapping[str, Any]) -> Generator[None]:
    """Convert every exception in this block to one that click handles. With ``--debug``, print its
    traceback first.
    """
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)
        # no warning about the requests that this ends
        atexit.register(logging.disable, logging.WARNING)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise  # the reader closed the pipe; click exits silently
        if params["debug"]:
            click.echo(
                clean("".join(traceback.format_exception(error)), lines=True), err=True, nl=False
            )
        raise to_failure(error) from error


def to_failure(error: Exception) -> CommandFailed:
    """Convert an exception to a failure of the command: the problem, details, and advice at the
    end.
    """
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
        return (
            cause[:1].upper() + cause[1:],
            [f"Request: {request.method} {request.url}"],
            _CONNECTION_ADVICE,
        )
    if isinstance(error, errors.RequestFailedError):
        message = clean(error.reason[:_SHOWN_CHARACTERS])
        if error.category == "user":  # the message names what the user can change
            return message, [], None
        return (
            "The request failed on the server",
            [f"Details: {message}", f"Request: {error.request_id}"],
            None,
        )
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}", [], None
    if isinstance(error, (errors.TinkerError, ValueError, ImportError, OSError)):
        return str(error) or type(error).__name__, [], None
    problem = f"Unexpected error: {type(error).__name__}: {error}"
    return problem, [], "This is a bug; `tinker --debug ...` shows the traceback."


def _describe_status(error: APIStatusError) -> tuple[str, list[str], str | None]:
    from tinker._http import ABSENT_STATUSES

    classes = [kind.__name__ for kind in type(error).__mro__]
    title = next(
        (_TITLES[name] for name in classes if name in _TITLES),
        f"API error (status {error.status_code})",
    )
    unsupported = _UNSUPPORTED if error.status_code in ABSENT_STATUSES else None
    advice = next((_ADVICE[name] for name in classes if name in _ADVICE), unsupported)
    message = read_message(error)
    if "AuthenticationError" in classes and not _has_key(error):
        return "The server requires an API key", [], "Set TINKER_API_KEY to the key of this server."
    if "NotFoundError" in classes and not _explains_absence(error):
        advice = _suspect_address(error) or advice
    elif message != str(error) and any(name in _SELF_EXPLAINING for name in classes):
        return message, [], None
    return title, [f"Details: {message}"], advice


def _has_key(error: APIStatusError) -> bool:
    """Return whether the settings have a credential for the server. Without one, no command gets to
    the hosted service.
    """
    from tinker._config import load_config

    config = load_config(base_url=str(error.request.url).partition(_API)[0])
    return config.is_hosted or (config.api_key or config.credential_cmd) is not None


def _explains_absence(error: Exception) -> bool:
    """Return whether the server names the missing object. A missing route does not count."""
    is_absent = any(kind.__name__ == "NotFoundError" for kind in type(error).__mro__)
    return (
        is_absent
        and (message := read_message(error)) != str(error)
        and message.partition(":")[0] != _NO_ROUTE
    )


def _suspect_address(error: APIStatusError) -> str | None:
    """Return advice on the path of the base URL; None if the URL has no path."""
    base, found, _ = urlsplit(str(error.request.url)).path.partition(_API)
    if not base or not found:
        return None
    return (
        f"The base URL is probably wrong: check its path, {base}, in --base-url or TINKER_BASE_URL."
    )


def read_message(error: Exception) -> str:
    """Return the message of an error in one line: that of the server if it sent one."""
    from tinker._http import find_explanation

    message = find_explanation(getattr(error, "body", None))
    return str(error) if message is None else clean(message[:_SHOWN_CHARACTERS])
