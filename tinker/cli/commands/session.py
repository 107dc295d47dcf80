"""``tinker session``: what the server knows about a session."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click

import tinker
from tinker.cli.clients import connect
from tinker.cli.options import GlobalOptions, Option, command
from tinker.cli.output import format_size, progress, show, show_properties


@command
def export_trace(
    options: GlobalOptions,
    session_id: str,
    output: Annotated[
        Path | None,
        click.Path(dir_okay=False, path_type=Path),
        Option("Where to save the trace. Default: SESSION_ID.pftrace in the current folder.", "-o", "--output", metavar="FILE"),
    ] = None,
    url_only: Annotated[bool, Option("Only print the signed URL, which is valid for about an hour.")] = False,
) -> None:
    """Save a trace of the requests of a session: when each waited and ran. Open it in https://ui.perfetto.dev."""
    from tinker._checkpoints import save_url

    runtime = connect(options)
    click.echo(f"Waiting for the server to write the trace of session {session_id} ...", err=True)
    url = tinker.RestClient(runtime).export_session_trace(session_id).result()
    if url_only:
        show(options, {"session_id": session_id, "url": url}, lambda: click.echo(url))
        return
    place = output or Path(f"{session_id.replace('/', '_')}.pftrace")
    with progress(options, "Downloading trace", None, nbytes=True) as advance:
        nbytes = save_url(runtime, url, place, lambda done, total: advance(done, total=total)).result()
    value = {"session_id": session_id, "destination": str(place), "file_size_bytes": nbytes}
    properties = {"Session ID": session_id, "Saved to": str(place), "Size": format_size(nbytes)}
    show(options, value, lambda: show_properties(f"Trace Export: {session_id}", properties))
