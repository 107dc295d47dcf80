"""``tinker checkpoint list``, ``search`` and ``info``."""

from __future__ import annotations

from typing import Annotated, Literal

import click

import tinker
from tinker.cli.clients import Listing, fetch_pages, find_run, rest_client, search_pages
from tinker.cli.errors import CommandFailed
from tinker.cli.model_input import find_path
from tinker.cli.options import GlobalOptions, Natural, OffsetOption, Option, command
from tinker.cli.output import (
    Columns,
    format_lora,
    format_size,
    list_metadata,
    show,
    show_items,
    show_properties,
)

_PAGE = 1000
# left out on a narrow terminal; the path has the last two
_OPTIONAL = ("Public", "Checkpoint ID", "Type")
_COLUMNS: Columns[tinker.Checkpoint] = [
    ("Checkpoint ID", lambda checkpoint: checkpoint.checkpoint_id),
    ("Type", lambda checkpoint: checkpoint.checkpoint_type),
    ("Size", lambda checkpoint: format_size(checkpoint.size_bytes)),
    ("Public", lambda checkpoint: checkpoint.public),
    ("Created", lambda checkpoint: checkpoint.time),
    ("Expires", lambda checkpoint: checkpoint.expires_at or "Never"),
    ("Path", lambda checkpoint: checkpoint.tinker_path),
]


@command("tinker checkpoint list --run-id RUN")
def list_command(
    options: GlobalOptions,
    run_id: Annotated[
        str | None,
        Option("Show all checkpoints of this training run, by its ID or name.", metavar="ID"),
    ] = None,
    limit: Annotated[
        Natural, Option("Without --run-id: maximum number to show, newest first; 0 shows all.")
    ] = 20,
    offset: OffsetOption = 0,
) -> None:
    """List the checkpoints of a training run, or the newest of all runs."""
    rest = rest_client(options)

    def page(count: int, start: int) -> tuple[list[tinker.Checkpoint], int | None]:
        answer = rest.list_user_checkpoints(count, start).result()
        return list(
            answer.checkpoints
        ), None if answer.cursor is None else answer.cursor.total_count

    if run_id is None:
        listing = fetch_pages(options, "Fetching checkpoints", page, limit, _PAGE, offset)
        value = listing.to_json("checkpoints")
    else:
        run_id = find_run(rest, run_id)
        found = list(rest.list_checkpoints(run_id).result().checkpoints[offset:])
        listing = Listing(found, len(found))
        value = {"run_id": run_id, **listing.to_json("checkpoints")}
    show(options, value, lambda: _show_listing(listing))


def _show_listing(listing: Listing[tinker.Checkpoint]) -> None:
    show_items(listing.items, _COLUMNS, listing.title("checkpoint"), optional=_OPTIONAL)


def parse_pair(text: str) -> tuple[str, str]:
    """Split KEY=VALUE. Raises BadParameter for other text."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE")
    return key, value


@command("tinker checkpoint search --type training --metadata step=100")
def search(
    options: GlobalOptions,
    metadata: Annotated[
        tuple[str, ...],
        Option("Only checkpoints with this metadata; may be repeated.", metavar="KEY=VALUE"),
    ] = (),
    kind: Annotated[
        Literal["training", "sampler", "external"] | None, Option("Only this kind.", "--type")
    ] = None,
    base_models: Annotated[
        tuple[str, ...],
        Option(
            "Only this base model; repeat to match any of several.", "--base-model", metavar="NAME"
        ),
    ] = (),
    project_ids: Annotated[
        tuple[str, ...],
        Option("Only this project; repeat to match any of several.", "--project-id", metavar="ID"),
    ] = (),
    accessible: Annotated[
        bool, Option("Include checkpoints of others that you can access. Default: your own.")
    ] = False,
    limit: Annotated[Natural, Option("Maximum number to show; 0 shows all.")] = 20,
) -> None:
    """Find checkpoints that match every given condition, newest first."""
    request = tinker.types.CheckpointSearchRequest(
        user_metadata=dict(map(parse_pair, metadata)),
        checkpoint_type=kind,
        base_models=base_models or None,
        project_ids=project_ids or None,
        owner=tinker.types.AccessibleSearchOwner() if accessible else tinker.types.OwnSearchOwner(),
    )
    send = rest_client(options).search_checkpoints
    found = search_pages(
        options, "Searching checkpoints", request, send, lambda page: page.checkpoints, limit
    )
    show(options, {"checkpoints": found}, lambda: _show_listing(Listing(found, len(found))))


@command("tinker checkpoint info tinker://RUN/weights/final")
def info(options: GlobalOptions, checkpoint_path: str) -> None:
    """Show a checkpoint and its adapter."""
    rest = rest_client(options)
    path = find_path(rest, checkpoint_path)
    checkpoint = find_checkpoint(rest, path)
    weights = _find_weights_info(rest, path.tinker_path)
    is_lora, rank = (None, None) if weights is None else (weights.is_lora, weights.lora_rank)
    properties = [
        ("Checkpoint ID", checkpoint.checkpoint_id),
        ("Type", checkpoint.checkpoint_type),
        ("Tinker Path", checkpoint.tinker_path),
        *((name, cell(checkpoint)) for name, cell in _COLUMNS[2:-1]),
        ("Training Run ID", path.training_run_id),
        ("LoRA", format_lora(is_lora, rank)),
        *list_metadata(checkpoint.user_metadata),
    ]
    value = {**checkpoint.model_dump(), "is_lora": is_lora, "lora_rank": rank}
    show_properties(options, value, f"Checkpoint: {checkpoint.checkpoint_id}", properties)


def find_checkpoint(
    rest: tinker.RestClient, path: tinker.ParsedCheckpointTinkerPath
) -> tinker.Checkpoint:
    """Find a checkpoint in the list of its run, as no operation returns a single one."""
    for checkpoint in rest.list_checkpoints(path.training_run_id).result().checkpoints:
        if (
            checkpoint.tinker_path == path.tinker_path
            or checkpoint.checkpoint_id == path.checkpoint_id
        ):
            return checkpoint
    raise CommandFailed(f"Checkpoint not found: {path.tinker_path}")


def _find_weights_info(
    rest: tinker.RestClient, tinker_path: str
) -> tinker.types.WeightsInfoResponse | None:
    """Fetch the adapter's description; None where the server has no such operation."""
    from tinker._http import is_absent

    try:
        return rest.get_weights_info_by_tinker_path(tinker_path).result()
    except tinker.APIStatusError as error:
        if not is_absent(error):
            raise
        return None
