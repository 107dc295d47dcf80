"""``tinker session``: what the server knows about a session."""

from __future__ import annotations

from pathlib import Path

import click

from tinker.cli.clients import connect
from tinker.cli.lazy import Entry, LazyGroup
from tinker.cli.options import GlobalOptions, pass_options
from tinker.cli.output import format_size, progress, show, show_properties

COMMANDS = {"export-trace": Entry("tinker.cli.commands.session:export_trace", "Save what ran when, to look at in Perfetto.")}


@click.group(cls=LazyGroup, entries=COMMANDS)
def session() -> None:
    """Inspect sessions."""


@click.command("export-trace")
@click.argument("session_id")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where to save the trace. Default: SESSION_ID.pftrace in the current folder.",
)
@click.option("--url-only", is_flag=True, help="Only print the signed URL, which is valid for about an hour.")
@pass_options
def export_trace(options: GlobalOptions, session_id: str, output: Path | None, url_only: bool) -> None:
    """Save a trace of the requests of a session: when each waited and ran. Open it in https://ui.perfetto.dev."""
    from tinker._checkpoints import save_url
    from tinker.rest_client import RestClient

    runtime = connect(options)
    click.echo(f"Waiting for the server to write the trace of session {session_id} ...", err=True)
    url = RestClient(runtime).export_session_trace(session_id).result()
    if url_only:
        show(options, {"session_id": session_id, "url": url}, lambda: click.echo(url))
        return
    place = output or Path(f"{session_id.replace('/', '_')}.pftrace")
    with progress(options, "Downloading trace", None, nbytes=True) as advance:
        nbytes = save_url(runtime, url, place, lambda done, total: advance(done, total=total)).result()
    value = {"session_id": session_id, "destination": str(place), "file_size_bytes": nbytes}
    properties = {"Session ID": session_id, "Saved to": str(place), "Size": format_size(nbytes)}
    show(options, value, lambda: show_properties(f"Trace Export: {session_id}", properties))
