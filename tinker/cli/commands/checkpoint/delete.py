"""``tinker checkpoint delete``."""

from __future__ import annotations

import concurrent.futures
import datetime
from collections.abc import Sequence
from typing import Annotated

import click

import tinker
from tinker.cli.clients import rest_client
from tinker.cli.errors import CommandFailed, read_message
from tinker.cli.model_input import parse_path
from tinker.cli.options import GlobalOptions, Option, command, parse_time, with_zone
from tinker.cli.output import format_count, format_size, format_timestamp, progress, show_json

_TYPES = {"weights": "training", "sampler_weights": "sampler", "external_weights": "external"}
_ALIASES = {**_TYPES, **{kind: kind for kind in _TYPES.values()}}


@command(
    "tinker checkpoint delete tinker://RUN/weights/final",
    "tinker checkpoint delete --run-id RUN --before 2026-01-31T08:00Z",
)
def delete(
    options: GlobalOptions,
    checkpoint_paths: tuple[str, ...] = (),
    run_id: Annotated[str | None, Option("Delete the checkpoints of this training run.", metavar="ID")] = None,
    checkpoint_type: Annotated[
        str | None, Option("With --run-id: only weights, sampler_weights or external_weights.", "--type", metavar="KIND")
    ] = None,
    before: Annotated[
        str | None, Option("With --run-id: only those created before this time, such as 2026-01-31T08:00Z.", metavar="TIME")
    ] = None,
    after: Annotated[str | None, Option("With --run-id: only those created after this time.", metavar="TIME")] = None,
    yes: Annotated[bool, Option("Delete without asking.", "-y", "--yes")] = False,
) -> None:
    """Permanently delete the given checkpoints, or those of a run that match every condition.

    Times without a zone are UTC. Exits with 1 if a checkpoint could not be deleted; the others are deleted.
    """
    if checkpoint_paths and run_id is not None:
        raise CommandFailed("Give either checkpoint paths or --run-id")
    if run_id is None and (checkpoint_type or before or after):
        raise CommandFailed("--type, --before and --after need --run-id")
    if run_id is None and not checkpoint_paths:
        raise CommandFailed("Nothing to delete", "Give checkpoint paths or --run-id.")
    if run_id is None:
        paths = list(dict.fromkeys(parse_path(path).tinker_path for path in checkpoint_paths))
        rest, lines, size = rest_client(options), paths, None
    else:
        earliest, latest = (None if text is None else parse_time(text) for text in (after, before))
        conditions = _parse_kind(checkpoint_type), latest, earliest
        rest = rest_client(options)
        chosen = [one for one in rest.list_checkpoints(run_id).result().checkpoints if _matches(one, *conditions)]
        paths = [one.tinker_path for one in chosen]
        lines = [f"{one.tinker_path} ({format_size(one.size_bytes)}, created {format_timestamp(one.time)})" for one in chosen]
        size = sum(one.size_bytes or 0 for one in chosen)
    if not paths:
        _show_none_found(options, run_id or "", filtered=bool(checkpoint_type or before or after))
    elif yes or _confirm(lines, size):
        _delete(options, rest, paths)
    else:
        click.echo("Nothing was deleted.", err=True)


def _parse_kind(text: str | None) -> str | None:
    if text is not None and text not in _ALIASES:
        raise CommandFailed(f"Invalid checkpoint type: {text}", f"Valid types: {', '.join(_TYPES)}")
    return None if text is None else _ALIASES[text]


def _matches(
    checkpoint: tinker.Checkpoint, kind: str | None, before: datetime.datetime | None, after: datetime.datetime | None
) -> bool:
    time = with_zone(checkpoint.time)
    return (
        (kind is None or checkpoint.checkpoint_type == kind)
        and (before is None or time < before)
        and (after is None or time > after)
    )


def _show_none_found(options: GlobalOptions, run_id: str, *, filtered: bool) -> None:
    if options.format == "json":
        show_json({"deleted_count": 0, "failed": []}, indent=None)
    else:
        click.echo(f"No checkpoints found for run {run_id}{' matching filters' if filtered else ''}")


def _confirm(lines: Sequence[str], size: int | None) -> bool:
    """Ask the user; CommandFailed when the input ends without an answer."""
    click.echo(f"{format_count(len(lines), 'checkpoint')} would be deleted:", err=True)
    for line in lines:
        click.echo(f"  - {line}", err=True)
    if size is not None:
        click.echo(f"Together: {format_size(size)}", err=True)
    try:
        return click.confirm("This cannot be undone. Delete?", err=True)
    except click.Abort:
        raise CommandFailed("No answer was given, so nothing was deleted", "Use --yes to delete without asking.") from None


def _delete(options: GlobalOptions, rest: tinker.RestClient, paths: Sequence[str]) -> None:
    """Delete concurrently, and report what failed."""
    deletions = {rest.delete_checkpoint_from_tinker_path(path): path for path in paths}
    with progress(options, "Deleting checkpoints", len(paths)) as advance:
        for count, _ in enumerate(concurrent.futures.as_completed(deletions), start=1):
            advance(count)
    errors = {path: deletion.exception() for deletion, path in deletions.items()}
    failed = {path: read_message(error) for path, error in errors.items() if isinstance(error, Exception)}
    deleted = len(paths) - len(failed)
    if options.format == "json":
        records = [{"tinker_path": path, "error": reason} for path, reason in failed.items()]
        show_json({"deleted_count": deleted, "failed": records}, indent=None)
    elif deleted:
        click.echo(f"Deleted {format_count(deleted, 'checkpoint')}")
    if failed:
        problem = f"{format_count(len(failed), 'checkpoint')} could not be deleted"
        raise CommandFailed(problem, *(f"{path}: {reason}" for path, reason in failed.items()))
