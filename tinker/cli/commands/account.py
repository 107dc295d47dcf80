"""``tinker auth``, ``billing`` and ``session``: the credential, what was used, and sessions."""

from __future__ import annotations

import csv
import getpass
import io
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar
from urllib.parse import urlencode

import click

import tinker
from tinker.cli import clients, reading
from tinker.cli import output as terminal
from tinker.cli.clients import Listing, send
from tinker.cli.options import (
    AccessScopeOption,
    GlobalOptions,
    Natural,
    NewFile,
    Option,
    command,
)
from tinker.cli.output import Columns, CommandFailed
from tinker.cli.reading import STANDARD_INPUT

if TYPE_CHECKING:
    from tinker_wire.runtime import Request

T = TypeVar("T")


@command("tinker auth login", "echo $KEY | tinker auth login")
def login(options: GlobalOptions) -> None:
    """Store an API key of the hosted service on this machine. Clients use it by default.

    Prints where to create a key and asks for it without showing it. You can also pipe the key in.
    """
    from tinker_wire.api import auth as api

    from tinker._http import auth
    from tinker.types.results import CONSOLE

    config = _load_hosted_config(options)
    if auth.default_key(config.credentials_file) is not None:
        raise CommandFailed(
            "Already logged in", "To replace the stored key, run `tinker auth logout` first."
        )
    query = urlencode({"new_key": "true", "key_name": f"tinker-cli-{platform.node()}"})
    click.echo(f"Create an API Key: {_link(f'{CONSOLE}/keys?{query}')}\n", err=True)
    key = _read_key()
    answer = _send_with_key(options, key, api.get_api_key())
    stored = auth.StoredKey(
        key=key, name=answer.name, note=answer.note, details=answer.details.model_dump()
    )
    auth.store_default(config.credentials_file, str(answer.key_id), stored)
    whose = f"{answer.details.user_details.email} ({answer.details.org_details.name})"
    terminal.show_lines(
        f"Logged in as {whose}. The key {answer.name!r} is stored, and used by default."
    )


def _load_hosted_config(options: GlobalOptions) -> tinker.Config:
    """Load the settings; CommandFailed for another server, as a stored key goes to the hosted
    service only.
    """
    config = clients.config_of(options)
    if not config.is_hosted:
        where = f"The server is {config.base_url}; set TINKER_API_KEY for it."
        raise CommandFailed("Keys are stored for the hosted service only", where)
    return config


def _link(url: str) -> str:
    """Format as a link to click on, where the terminal can."""
    return f"\x1b]8;;{url}\x1b\\{url}\x1b]8;;\x1b\\" if sys.stderr.isatty() else url


def _read_key() -> str:
    is_terminal = sys.stdin.isatty()
    key = (
        getpass.getpass("Paste your API key: ", stream=sys.stderr)
        if is_terminal
        else reading.read_text(STANDARD_INPUT).partition("\n")[0]
    )
    if not key.strip():
        raise CommandFailed("No key was given, so nothing was stored")
    return key.strip()


def _send_with_key(options: GlobalOptions, key: str, request: Request[T]) -> T:
    """Send a request under this key; the runtime never asks for the settings, so the key is not
    exchanged for a token.
    """
    from tinker._http.auth import Credential
    from tinker._http.retry import REST

    return send(clients.connect(options, key), request, REST, Credential(key))


@command("tinker auth logout")
def logout(options: GlobalOptions) -> None:
    """Remove the stored key. A key that was created for this machine is revoked, too; any other key
    stays valid elsewhere.
    """
    from tinker_wire.api import auth as api

    from tinker._http import auth
    from tinker.types.results import CONSOLE

    config = _load_hosted_config(options)
    entry = auth.default_key(config.credentials_file)
    if entry is None:
        raise CommandFailed("No key is stored", "To store one, run `tinker auth login`.")
    key_id, stored = entry
    refusal: tinker.TinkerError | None = None
    if stored.type == "generated":
        try:
            _send_with_key(options, stored.key, api.delete_api_key())
        except tinker.TinkerError as error:
            refusal = error
    auth.remove_default(config.credentials_file)
    name = stored.name or key_id
    if stored.type == "generated" and refusal is None:
        click.echo(f"The key {name!r} is removed and revoked.")
        return
    click.echo(
        f"The key {name!r} is removed from this machine. It is still valid; delete it at "
        f"{_link(f'{CONSOLE}/keys/{key_id}')}"
    )
    if stored.organization is not None:
        terminal.show_lines(f"Its organization: {stored.organization}")
    if refusal is not None:
        raise CommandFailed("The key could not be revoked", terminal.read_message(refusal))


@command("tinker auth status", "tinker -f json auth status")
def status(options: GlobalOptions) -> None:
    """Show whether a credential is set and accepted. Exits with 1 if not.

    Servers other than the hosted service may not need a credential.
    """
    from tinker.auth import tinker_has_credentials

    has = tinker_has_credentials()
    failure: CommandFailed | tinker.TinkerError | None = None
    try:
        clients.rest_client(options).get_server_capabilities().result()
    except (CommandFailed, tinker.TinkerError) as error:
        failure = error
    value = {"credentials_available": has, "tinker_accessible": failure is None}
    text = (
        f"Credentials available: {'yes' if has else 'no'}\nTinker accessible: "
        f"{'yes' if failure is None else 'no'}"
    )
    terminal.show(options, value, lambda: click.echo(text))
    if failure is not None:
        raise failure


@command("tinker auth whoami")
def whoami(options: GlobalOptions) -> None:
    """Show the user and the organization of the credential, if the server reports them."""
    identity = clients.rest_client(options).whoami().result()
    value = {"user_urn": identity.user_urn, "org_urn": identity.org_urn, "email": identity.email}
    properties = {
        "User": identity.user_urn,
        "Organization": identity.org_urn,
        "Email": identity.email,
    }
    terminal.show_properties(options, value, "Credential", properties)


_UsageRow: TypeAlias = Mapping[str, Any]

_COST = "estimated_cost_usd"
_TOKEN_RATE = "effective_rate_usd_per_million_tokens"  # noqa: S105  (a price)
_STORAGE_RATE = "effective_rate_usd_per_gigabyte_month"
_STORED: Columns[tinker.types.CurrentCheckpointStorageUsageItem] = [
    ("Project", lambda one: one.project_id),
    ("User", lambda one: one.user_email or one.user_name or one.org_user_urn),
    ("Checkpoints", lambda one: one.checkpoint_count),
    ("Size (GB)", lambda one: f"{one.size_gigabytes:,.4f}"),
    ("Cost per Month (USD)", lambda one: one.estimated_monthly_cost_usd),
]
_CSVPath: TypeAlias = Annotated[str | None, click.Path(dir_okay=False, allow_dash=True)]
_CSVFile: TypeAlias = Annotated[
    _CSVPath, Option("Write the rows as CSV to this file; - is standard output.", "--csv")
]


@command(
    "tinker billing usage",
    "tinker billing usage 2026-01-01T00:00Z 2026-01-08T00:00Z --csv usage.csv",
)
def usage(
    options: GlobalOptions,
    starting_on: str | None = None,
    ending_before: str | None = None,
    csv_path: _CSVFile = None,
    sessions_csv_path: Annotated[
        _CSVPath,
        Option("Also write the metadata of the sessions as CSV to this file.", "--sessions-csv"),
    ] = None,
    rows: Annotated[bool, Option("Show every row instead of the sums.")] = False,
) -> None:
    """Show the hourly usage from STARTING_ON until before ENDING_BEFORE: by default, this month
    until now.

    Both are full hours, such as 2026-07-13, 2026-07-13T08:00Z or yesterday, of UTC without a time
    zone. The sums are by kind of usage and model; there is one row per hour, kind, model, session
    and user. Costs are estimates before credits, not invoices: up to cost_data_through (in the JSON
    output) they use invoiced rates, after it the price list. An unknown cost is `null` in JSON and
    empty in CSV. The data can be several hours late.
    """
    month = reading.parse_time("today").replace(day=1)
    since, until = (
        default if text is None else reading.parse_time(text)
        for text, default in ((starting_on, month), (ending_before, clients.next_hour()))
    )
    answers = [
        answer.model_dump(mode="json")
        for answer in clients.fetch_usage(options, clients.admin_client(options), since, until)
    ]
    value: dict[str, Any] = {
        **answers[-1],
        "data": [event for answer in answers for event in answer["data"]],
        "sessions": {
            name: facts for answer in answers for name, facts in answer["sessions"].items()
        },
    }
    events = [_flatten(event) for event in value["data"]]
    if csv_path is not None:
        _write_csv(csv_path, _names(events), events)
    if sessions_csv_path is not None:
        metadata = {
            name: session.get("user_metadata") for name, session in value["sessions"].items()
        }
        found = [
            {"session_id": name, "user_metadata": json.dumps(one) if one else ""}
            for name, one in metadata.items()
        ]
        _write_csv(sessions_csv_path, ("session_id", "user_metadata"), found)
    if csv_path is None and sessions_csv_path is None:
        title = terminal.format_count(len(events), "hourly usage row")
        terminal.show(
            options, value, lambda: _show_rows(events, title) if rows else _show_sums(events, title)
        )


def _show_sums(rows: Sequence[_UsageRow], title: str) -> None:
    """Print the sums by kind and model, and the total."""
    groups: dict[tuple[str, str], list[_UsageRow]] = {}
    for row in rows:
        groups.setdefault(
            (str(row["type"]), terminal.format_value(row.get("base_model"))), []
        ).append(row)
    lines = [(*names, *_sum_up(group)) for names, group in sorted(groups.items())]
    terminal.show_table(
        ("Kind", "Base Model", "Tokens", "GB hours", "Cost (USD)"),
        [*lines, ("Total", "", *_sum_up(rows))],
        title,
    )


def _sum_up(rows: Sequence[_UsageRow]) -> tuple[str, str, str]:
    """Return the tokens, the storage and the cost; costs that are not known make it
    a lower bound.
    """
    tokens, hours, cost = (
        sum(row.get(name) or 0 for row in rows) for name in ("token_count", "gigabyte_hours", _COST)
    )
    is_unknown = any(row.get(_COST) is None for row in rows if _COST in _unknown_costs(row))
    return f"{tokens:,.0f}", f"{hours:,.2f}", f"{'at least ' if is_unknown else ''}{cost:,.4f}"


@command("tinker billing checkpoint-storage", "tinker billing checkpoint-storage --csv storage.csv")
def checkpoint_storage(
    options: GlobalOptions,
    project_id: Annotated[str | None, Option("Only this project.", metavar="ID")] = None,
    csv_path: _CSVFile = None,
) -> None:
    """Show the storage that the organization's checkpoints use now, by project and user, and its
    monthly cost.

    A month is 720 hours at today's price, before credits. The data can be an hour or two late.
    """
    answer = clients.admin_client(options).get_current_checkpoint_storage_usage(project_id).result()
    value, price = answer.model_dump(mode="json"), answer.effective_rate_usd_per_gigabyte_month
    if csv_path is not None:
        rows: list[_UsageRow] = [{_STORAGE_RATE: price, **item} for item in value["data"]]
        _write_csv(csv_path, _names(rows), rows)
        return
    title = (
        "Checkpoint storage now, at "
        f"{'an unknown price' if price is None else f'{price:g} USD per GB and month'}"
    )
    terminal.show(options, value, lambda: terminal.show_items(answer.data, _STORED, title))


def _flatten(event: Mapping[str, Any]) -> _UsageRow:
    """Lift the fields that belong to one kind of event to the top."""
    return {
        **{name: value for name, value in event.items() if name != "event_info"},
        **event["event_info"],
    }


def _names(rows: Sequence[_UsageRow]) -> list[str]:
    """List every field, in the order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _write_csv(file: str, names: Sequence[str], rows: Sequence[_UsageRow]) -> None:
    lines = io.StringIO(newline="")
    csv.writer(lines).writerows([names, *([row.get(name, "") for name in names] for row in rows)])
    if file == "-":
        terminal.write_data(lines.getvalue())
    else:
        Path(file).write_text(lines.getvalue(), encoding="utf-8", newline="")


def _show_rows(rows: Sequence[_UsageRow], title: str) -> None:
    names = _names(rows)
    terminal.show_table(
        names or ["(nothing)"], [[_cell(row, name) for name in names] for row in rows], title
    )


def _cell(row: _UsageRow, name: str) -> str:
    value = row.get(name)
    return str(value) if value is not None else "null" if name in _unknown_costs(row) else ""


def _unknown_costs(row: _UsageRow) -> Sequence[str]:
    """Name the costs that a row of this kind has, so that None means an unknown cost."""
    match row.get("type"):
        case "training" | "sampling_prefill" | "sampling_sample":
            return (_COST, _TOKEN_RATE)
        case "storage":
            return (_COST, _STORAGE_RATE)
        case _:
            return ()


_COLUMNS: Columns[tinker.types.SessionSummary] = [
    ("Session ID", lambda session: session.session_id),
    ("Name", lambda session: session.display_name or ""),
    ("Created", lambda session: session.created_at),
    ("Status", lambda session: _describe_status(session.status)),
    ("Checkpoints", lambda session: session.checkpoints_count),
]


def _describe_status(status: object) -> str | None:
    """Return how a session stands, or the reason for which its client finished it, in the words of
    the server.
    """
    shown = status.reason if isinstance(status, tinker.types.ClientSessionFinished) else status
    return getattr(shown, "type", None)


@command("tinker session list --limit 5")
def list_command(
    options: GlobalOptions,
    limit: Annotated[
        Natural, Option("Maximum number of sessions, newest first; 0 shows all.")
    ] = 20,
    access_scope: AccessScopeOption = "owned",
) -> None:
    """List sessions: one for each program that used the server. `tinker run list` has the runs of
    them all.
    """
    owner = (
        tinker.types.OwnSearchOwner()
        if access_scope == "owned"
        else tinker.types.AccessibleSearchOwner()
    )
    request, send = (
        tinker.types.SessionSearchRequest(owner=owner),
        clients.rest_client(options).search_sessions,
    )
    found = clients.search_pages(
        options, "Fetching sessions", request, send, lambda page: page.sessions, limit
    )
    columns = [
        column
        for column in _COLUMNS
        if column[0] != "Name" or any(one.display_name for one in found)
    ]
    terminal.show(
        options,
        {"sessions": found},
        lambda: terminal.show_items(found, columns, Listing(found, len(found)).title("session")),
    )


@command("tinker session info SESSION")
def info(options: GlobalOptions, session_id: str) -> None:
    """Show a session, the runs and samplers that were made in it, and its checkpoints."""
    rest = clients.rest_client(options)
    session = rest.get_session(session_id).result()
    request = tinker.types.SessionSearchRequest(
        session_id=session_id, owner=tinker.types.AccessibleSearchOwner()
    )
    found = clients.search_pages(
        options, "Fetching sessions", request, rest.search_sessions, lambda page: page.sessions, 1
    )
    cells = [(name, cell(one)) for one in found for name, cell in _COLUMNS[1:] if cell(one) != ""]
    properties = [
        ("Session ID", session_id),
        *cells,
        ("Training Runs", ", ".join(session.training_run_ids) or "none"),
        ("Samplers", len(session.sampler_ids)),
        *terminal.list_metadata(session.user_metadata),
    ]
    value = {
        **(found[0].model_dump() if found else {"session_id": session_id}),
        **session.model_dump(),
    }
    terminal.show_properties(options, value, f"Session: {session_id}", properties)


@command("tinker session export-trace SESSION --output trace.pftrace")
def export_trace(
    options: GlobalOptions,
    session_id: str,
    output: Annotated[
        NewFile | None,
        Option(
            "Where to save the trace. Default: SESSION_ID.pftrace in the current folder.",
            "-o",
            "--output",
        ),
    ] = None,
    url_only: Annotated[
        bool, Option("Only print the signed URL, which is valid for about an hour.")
    ] = False,
) -> None:
    """Save a trace of the requests of a session: when each waited and ran. Open it in
    https://ui.perfetto.dev.
    """
    from tinker._checkpoints import save_url

    runtime = clients.connect(options)
    terminal.say(f"Waiting for the server to write the trace of session {session_id} ...")
    url = tinker.RestClient(runtime).export_session_trace(session_id).result()
    if url_only:
        terminal.show(
            options, {"session_id": session_id, "url": url}, lambda: terminal.show_lines(url)
        )
        return
    place = output or Path(f"{session_id.replace('/', '_')}.pftrace")
    with terminal.progress(options, "Downloading trace", None, nbytes=True) as advance:
        nbytes = save_url(
            runtime, url, place, lambda done, total: advance(done, total=total)
        ).result()
    value = {"session_id": session_id, "destination": str(place), "file_size_bytes": nbytes}
    properties = {
        "Session ID": session_id,
        "Saved to": str(place),
        "Size": terminal.format_size(nbytes),
    }
    terminal.show_properties(options, value, f"Trace Export: {session_id}", properties)
