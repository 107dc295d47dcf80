"""``tinker checkpoint list`` and ``tinker checkpoint info``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from tinker.cli.clients import rest_client
from tinker.cli.commands.checkpoint.paths import parse_path
from tinker.cli.errors import CommandFailed
from tinker.cli.options import OFFSET, GlobalOptions, pass_options
from tinker.cli.output import format_bool, format_size, format_timestamp, progress, show, show_properties, show_table
from tinker.cli.paging import Listing, fetch_pages

if TYPE_CHECKING:
    from tinker.rest_client import RestClient
    from tinker.types import Checkpoint, WeightsInfoResponse
    from tinker.types.paths import ParsedCheckpointTinkerPath

PAGE = 1000
SPARED = ("Public",)  # of a narrow terminal
COLUMNS = ("Checkpoint ID", "Type", "Size", "Public", "Created", "Expires", "Path")


@click.command("list")
@click.option("--run-id", metavar="ID", help="Show all checkpoints of this training run.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Without --run-id: maximum number to show, newest first; 0 shows all.",
)
@OFFSET
@pass_options
def list_checkpoints(options: GlobalOptions, run_id: str | None, limit: int, offset: int) -> None:
    """List the checkpoints of a training run, or the newest of all runs."""
    rest = rest_client(options)
    if run_id is not None:
        found = rest.list_checkpoints(run_id).result().checkpoints
        listing = Listing(found[offset:], len(found[offset:]))
        value = {"run_id": run_id, **listing.to_json("checkpoints")}
    else:
        listing = _fetch_newest(options, rest, limit, offset)
        value = listing.to_json("checkpoints")
    show(options, value, lambda: show_table(COLUMNS, map(row, listing.items), listing.title("checkpoint"), spared=SPARED))


def _fetch_newest(options: GlobalOptions, rest: RestClient, limit: int, offset: int) -> Listing[Checkpoint]:
    def page(count: int, start: int) -> tuple[list[Checkpoint], int | None]:
        answer = rest.list_user_checkpoints(count, start).result()
        return list(answer.checkpoints), None if answer.cursor is None else answer.cursor.total_count

    with progress(options, "Fetching checkpoints", None) as advance:
        return fetch_pages(page, limit, PAGE, advance, offset)


def row(checkpoint: Checkpoint) -> Sequence[str]:
    """Return the cells of one checkpoint."""
    return (
        checkpoint.checkpoint_id,
        checkpoint.checkpoint_type,
        format_size(checkpoint.size_bytes),
        format_bool(checkpoint.public),
        format_timestamp(checkpoint.time),
        _expiry(checkpoint),
        checkpoint.tinker_path,
    )


def _expiry(checkpoint: Checkpoint) -> str:
    return "Never" if checkpoint.expires_at is None else format_timestamp(checkpoint.expires_at)


@click.command()
@click.argument("checkpoint_path")
@pass_options
def info(options: GlobalOptions, checkpoint_path: str) -> None:
    """Show a checkpoint and its adapter."""
    path = parse_path(checkpoint_path)
    rest = rest_client(options)
    checkpoint = _find(rest, path)
    weights = _weights_info(rest, checkpoint_path)
    is_lora = None if weights is None else weights.is_lora
    rank = None if weights is None else weights.lora_rank
    value = {**checkpoint.model_dump(), "is_lora": is_lora, "lora_rank": rank}

    def table() -> None:
        properties = {
            "Checkpoint ID": checkpoint.checkpoint_id,
            "Type": checkpoint.checkpoint_type,
            "Tinker Path": checkpoint.tinker_path,
            "Size": format_size(checkpoint.size_bytes),
            "Public": format_bool(checkpoint.public),
            "Created": format_timestamp(checkpoint.time),
            "Expires": _expiry(checkpoint),
            "Training Run ID": path.training_run_id,
            "LoRA": format_lora(is_lora, rank),
            **format_metadata(checkpoint.user_metadata),
        }
        show_properties(f"Checkpoint: {checkpoint.checkpoint_id}", properties)

    show(options, value, table)


def format_lora(is_lora: bool | None, rank: int | None) -> str:
    """Format as ``Yes (Rank 32)``, or as much as is known."""
    return f"Yes (Rank {rank})" if is_lora and rank is not None else format_bool(is_lora)


def format_metadata(metadata: Mapping[str, str] | None) -> Mapping[str, str]:
    """Format as a heading and a line for each entry; nothing without entries."""
    return {"Metadata": "", **{f"  - {name}": text for name, text in metadata.items()}} if metadata else {}


def _find(rest: RestClient, path: ParsedCheckpointTinkerPath) -> Checkpoint:
    """Find a checkpoint in the list of its run, as no operation returns a single one."""
    for checkpoint in rest.list_checkpoints(path.training_run_id).result().checkpoints:
        if checkpoint.tinker_path == path.tinker_path or checkpoint.checkpoint_id == path.checkpoint_id:
            return checkpoint
    raise CommandFailed(f"Checkpoint not found: {path.tinker_path}")


def _weights_info(rest: RestClient, tinker_path: str) -> WeightsInfoResponse | None:
    """Fetch the adapter's description; None where the server has no such operation."""
    from tinker._http import is_absent
    from tinker.errors import APIStatusError

    try:
        return rest.get_weights_info_by_tinker_path(tinker_path).result()
    except APIStatusError as error:
        if not is_absent(error):
            raise
        return None
