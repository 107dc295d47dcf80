"""Clients for commands, with the short patience of an interactive user, and paged lists."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

import click

import tinker
from tinker.cli.errors import CommandFailed
from tinker.cli.options import GlobalOptions
from tinker.cli.output import format_count, progress, say

T = TypeVar("T")
Search = TypeVar(
    "Search", "tinker.types.CheckpointSearchRequest", "tinker.types.SessionSearchRequest"
)
Found = TypeVar(
    "Found", "tinker.types.CheckpointSearchResponse", "tinker.types.SessionSearchResponse"
)

if TYPE_CHECKING:
    from tinker_wire.models import ClientSessionFinishReasonType
    from tinker_wire.runtime import Request

    from tinker._http import Credential, Policy
    from tinker._runtime import Runtime

CLOSE_SECONDS = 2.0
# in the metadata of a run of `tinker train --resume`: the ID of the run that it continues
RESUMED = "resumed"
TRAIN = ":train:"  # in the ID of a run, between the session and a number
_SEARCH_PAGE = 200
_SEARCHED_RUNS = 100

# The clients are imported on use, so that the help of commands is quick.


def config_of(options: GlobalOptions, api_key: str | None = None) -> tinker.Config:
    """Load the settings. ``api_key`` None means the one of the environment. ValueError for an
    invalid base URL.
    """
    from tinker._config import load_config

    return load_config(
        base_url=options.base_url, api_key=api_key, patience_seconds=options.short_patience
    )


def check_credential(config: tinker.Config) -> None:
    """Raise CommandFailed if the server is the hosted service and there is no credential."""
    from tinker._http import credentials

    given = config.api_key or config.credential_cmd
    if (
        config.is_hosted
        and given is None
        and credentials.default_key(config.credentials_file) is None
    ):
        raise CommandFailed(
            "No credential for the hosted service",
            "Run `tinker auth login`, or set TINKER_API_KEY.",
            "Without an account, use the local server: tinker --base-url local:// ...",
        )


def connect(options: GlobalOptions, api_key: str | None = None) -> Runtime:
    """Open connections without a session, closed when the command ends. CommandFailed if a key is
    needed and missing.
    """
    from tinker._runtime import open_runtime
    from tinker._session import Description

    check_credential(config := config_of(options, api_key))
    runtime = open_runtime(config, Description(user_metadata={}), observers=_observers(options))
    click.get_current_context().call_on_close(partial(_close, runtime))
    _set_retries_logged(False)
    return runtime


def _observers(options: GlobalOptions) -> list[tinker.observing.Observer]:
    """Return the observer that reports when a server in this process loads its model, which can
    take long.
    """
    # Shared by all clients of the command.
    reported: set[str] = click.get_current_context().meta.setdefault("tinker.loading", set())

    def report_loading(event: tinker.observing.Event) -> None:
        if isinstance(event, tinker.observing.ModelLoading) and event.what not in reported:
            reported.add(event.what)
            say(f"Loading {event.what} ...")

    return [report_loading] if options.format == "table" else []


def _set_retries_logged(logged: bool) -> None:
    """Log retries or not. A command that retries for seconds only reports them in its error."""
    log = logging.getLogger("tinker")
    log.removeFilter(_is_no_retry)
    if not logged:
        log.addFilter(_is_no_retry)
        click.get_current_context().call_on_close(partial(log.removeFilter, _is_no_retry))


def _is_no_retry(record: logging.LogRecord) -> bool:
    return record.funcName != "report_retry"  # of tinker/_http/observers.py


def _close(runtime: Runtime) -> None:
    from tinker._runtime import run

    with suppress(TimeoutError):
        run(runtime, "close", _close_connections, runtime).result(CLOSE_SECONDS)


async def _close_connections(_: tinker.APIFuture[None], runtime: Runtime) -> None:
    await runtime.transport.engine.aclose()


def send(
    runtime: Runtime, request: Request[T], policy: Policy, credential: Credential | None = None
) -> T:
    """Send a request that no client has a method for, and return the decoded response."""
    from tinker._runtime import run

    async def ask(_: tinker.APIFuture[T]) -> T:
        return (await runtime.transport.send(request, policy, credential=credential)).value

    return run(runtime, request.operation, ask).result()


def rest_client(options: GlobalOptions) -> tinker.RestClient:
    """Make a client for runs, checkpoints and sessions."""
    return tinker.RestClient(connect(options))


def admin_client(options: GlobalOptions) -> tinker.AdminClient:
    """Make a client for the administration of an organization."""
    return tinker.AdminClient(connect(options))


@contextmanager
def service_client(
    options: GlobalOptions, *, interactive: bool = False, reports: bool = False
) -> Generator[tinker.ServiceClient]:
    """Open a session for the block. Closing it takes at most two seconds.

    Requests are retried for ``--patience`` seconds; without it for minutes, as in a script, or if
    ``interactive`` for ten seconds. With ``reports``, a server on this machine gets telemetry,
    unless ``TINKER_TELEMETRY`` says something else.
    """
    from tinker._config import is_loopback, is_telemetry_unset

    check_credential(config := config_of(options))
    is_wanted = (
        reports and is_telemetry_unset() and is_loopback(urlsplit(config.base_url).hostname or "")
    )
    observers = _observers(options)
    service = tinker.ServiceClient(
        {"made_by": "tinker cli"},
        base_url=options.base_url,
        patience_seconds=options.short_patience if interactive else options.patience_seconds,
        observers=observers,
        telemetry=is_wanted or None,
    )
    _set_retries_logged(not interactive)
    reason: ClientSessionFinishReasonType = "interrupted"
    try:
        yield service
        reason = "success"
    except Exception:
        reason = "errored"
        raise
    finally:
        with suppress(TimeoutError, tinker.TinkerError):
            service.close(reason).result(CLOSE_SECONDS)


def find_run(rest: tinker.RestClient, text: str) -> str:
    """Return the ID of the latest run with this name, of the only one whose ID has it as its
    beginning, or else the text.

    Several runs of the name are reported.
    """
    if ":" in text:
        return text
    with suppress(tinker.APIStatusError):  # a server without the list takes IDs
        runs = rest.list_training_runs(_SEARCHED_RUNS).result().training_runs
        found = [
            run.training_run_id for run in runs if (run.user_metadata or {}).get("name") == text
        ]
        if len(found) > 1:
            say(f"{len(found)} runs are named {text!r}; this is the latest")
        begun = [
            run.training_run_id
            for run in runs
            if len(text) > 3 and run.training_run_id.startswith(text)
        ]
        return found[0] if found else begun[0] if len(begun) == 1 else text
    return text


class Listing(NamedTuple, Generic[T]):
    """The fetched items of a list, and the length of the whole list."""

    items: list[T]
    total: int

    def to_json(self, name: str) -> dict[str, object]:
        """Return the items under a name, their number, and the total."""
        return {name: self.items, "shown": len(self.items), "total": self.total}

    def title(self, what: str) -> str:
        """Return the number of items as a title, with the number of those not shown."""
        hidden = self.total - len(self.items)
        more = f" ({hidden} more; use --limit to see them)" if hidden > 0 else ""
        return f"{format_count(len(self.items), what)}{more}"


#: Fetches a page by limit and offset, with the length of the whole list if the server reports it.
FetchPage = Callable[[int, int], tuple[list[T], int | None]]


def fetch_pages(
    options: GlobalOptions,
    description: str,
    fetch: FetchPage[T],
    limit: int,
    page: int,
    offset: int = 0,
) -> Listing[T]:
    """Fetch ``limit`` items, all for 0, after the first ``offset``, and show the progress."""
    items: list[T] = []
    total: int | None = None
    with progress(options, description, None) as advance:
        while not limit or len(items) < limit:
            count = min(page, limit - len(items)) if limit else page
            new, known = fetch(count, offset + len(items))
            total = None if known is None else max(0, known - offset)
            items += new[:count]
            advance(len(items), total=min(total, limit) if total is not None and limit else total)
            if len(new) < count or (total is not None and len(items) >= total):
                break
    return Listing(items, max(total or 0, len(items)))


def search_pages(
    options: GlobalOptions,
    description: str,
    request: Search,
    send: Callable[[Search], tinker.APIFuture[Found]],
    items: Callable[[Found], Sequence[T]],
    limit: int,
) -> list[T]:
    """Search for ``limit`` items, for all with 0, page by page, and show the progress."""
    found: list[T] = []
    with progress(options, description, None) as advance, warnings.catch_warnings():
        # that the operation may change is for those who write programs
        warnings.simplefilter("ignore")
        while not limit or len(found) < limit:
            count = min(_SEARCH_PAGE, limit - len(found)) if limit else _SEARCH_PAGE
            page = send(request.model_copy(update={"limit": count})).result()
            found += items(page)[:count]
            advance(len(found))
            if page.next_cursor is None:
                break
            request = request.model_copy(update={"cursor": page.next_cursor})
        else:
            say("There are more; use --limit to see them.")
    return found
