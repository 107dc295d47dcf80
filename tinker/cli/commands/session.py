"""``tinker session list``, ``info`` and ``export-trace``: the sessions in which runs and samplers
are made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tinker
from tinker.cli.clients import Listing, connect, rest_client, search_pages
from tinker.cli.options import AccessScopeOption, GlobalOptions, Natural, NewFile, Option, command
from tinker.cli.output import (
    Columns,
    format_size,
    list_metadata,
    progress,
    say,
    show,
    show_items,
    show_lines,
    show_properties,
)

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
        rest_client(options).search_sessions,
    )
    found = search_pages(
        options, "Fetching sessions", request, send, lambda page: page.sessions, limit
    )
    columns = [
        column
        for column in _COLUMNS
        if column[0] != "Name" or any(one.display_name for one in found)
    ]
    show(
        options,
        {"sessions": found},
        lambda: show_items(found, columns, Listing(found, len(found)).title("session")),
    )


@command("tinker session info SESSION")
def info(options: GlobalOptions, session_id: str) -> None:
    """Show a session, the runs and samplers that were made in it, and its checkpoints."""
    rest = rest_client(options)
    session = rest.get_session(session_id).result()
    request = tinker.types.SessionSearchRequest(
        session_id=session_id, owner=tinker.types.AccessibleSearchOwner()
    )
    found = search_pages(
        options, "Fetching sessions", request, rest.search_sessions, lambda page: page.sessions, 1
    )
    cells = [(name, cell(one)) for one in found for name, cell in _COLUMNS[1:] if cell(one) != ""]
    properties = [
        ("Session ID", session_id),
        *cells,
        ("Training Runs", ", ".join(session.training_run_ids) or "none"),
        ("Samplers", len(session.sampler_ids)),
        *list_metadata(session.user_metadata),
    ]
    value = {
        **(found[0].model_dump() if found else {"session_id": session_id}),
        **session.model_dump(),
    }
    show_properties(options, value, f"Session: {session_id}", properties)


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

    runtime = connect(options)
    say(f"Waiting for the server to write the trace of session {session_id} ...")
    url = tinker.RestClient(runtime).export_session_trace(session_id).result()
    if url_only:
        show(options, {"session_id": session_id, "url": url}, lambda: show_lines(url))
        return
    place = output or Path(f"{session_id.replace('/', '_')}.pftrace")
    with progress(options, "Downloading trace", None, nbytes=True) as advance:
        nbytes = save_url(
            runtime, url, place, lambda done, total: advance(done, total=total)
        ).result()
    value = {"session_id": session_id, "destination": str(place), "file_size_bytes": nbytes}
    properties = {"Session ID": session_id, "Saved to": str(place), "Size": format_size(nbytes)}
    show_properties(options, value, f"Trace Export: {session_id}", properties)
