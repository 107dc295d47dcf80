"""``tinker run``: training runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import click

from tinker.cli.clients import rest_client
from tinker.cli.commands.checkpoint.show import format_lora, format_metadata
from tinker.cli.errors import CommandFailed
from tinker.cli.lazy import Entry, LazyGroup
from tinker.cli.options import ACCESS_SCOPE, OFFSET, GlobalOptions, pass_options
from tinker.cli.output import format_bool, format_timestamp, progress, show, show_properties, show_table
from tinker.cli.paging import fetch_pages

if TYPE_CHECKING:
    from tinker.types import AccessScope, Checkpoint, TrainingRun

PAGE = 100


COMMANDS = {
    "compare": Entry("tinker.cli.commands.run_curves:compare", "Compare the curves of training runs."),
    "info": Entry("tinker.cli.commands.run:info", "Show one training run."),
    "list": Entry("tinker.cli.commands.run:list_runs", "List training runs."),
    "usage": Entry("tinker.cli.commands.run_usage:usage", "Show the tokens that a training run used, and their cost."),
    "watch": Entry("tinker.cli.commands.run_curves:watch", "Follow the curve of a training run."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def run() -> None:
    """List and show training runs."""


#: A title, and the cell of one run.
_Column: TypeAlias = "tuple[str, Callable[[TrainingRun], str]]"


def _lora(run: TrainingRun) -> str:
    return f"Rank {run.lora_rank}" if run.is_lora and run.lora_rank is not None else format_bool(run.is_lora)


def _status(run: TrainingRun) -> str:
    return "Failed" if run.corrupted else "OK"


def _checkpoint(run: TrainingRun) -> str:
    return "N/A" if run.last_checkpoint is None else run.last_checkpoint.checkpoint_id


def _checkpoint_time(run: TrainingRun) -> str:
    return format_timestamp(None if run.last_checkpoint is None else run.last_checkpoint.time)


def _name(run: TrainingRun) -> str:
    return (run.user_metadata or {}).get("name", "")


COLUMNS: Mapping[str, _Column] = {
    "id": ("Run ID", lambda run: run.training_run_id),
    "name": ("Name", _name),
    "model": ("Base Model", lambda run: run.base_model),
    "owner": ("Owner", lambda run: run.model_owner),
    "lora": ("LoRA", _lora),
    "updated": ("Last Update", lambda run: format_timestamp(run.last_request_time)),
    "status": ("Status", _status),
    "checkpoint": ("Last Checkpoint", _checkpoint),
    "checkpoint_time": ("Checkpoint Time", _checkpoint_time),
}
DEFAULT_COLUMNS = "id,model,lora,updated,status"
_SPARED = ("LoRA", "Status", "Last Update")  # of a narrow terminal


@click.command("list")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Maximum number of runs, latest first; 0 shows all.",
)
@click.option(
    "-c",
    "--columns",
    help=f"Comma-separated columns: {', '.join(COLUMNS)}. Default: {DEFAULT_COLUMNS}, and name if a run has one.",
)
@OFFSET
@ACCESS_SCOPE
@pass_options
def list_runs(options: GlobalOptions, limit: int, columns: str | None, offset: int, access_scope: AccessScope) -> None:
    """List training runs."""
    chosen = _columns(columns or DEFAULT_COLUMNS)
    rest = rest_client(options)

    def page(count: int, start: int) -> tuple[list[TrainingRun], int | None]:
        answer = rest.list_training_runs(count, start, access_scope).result()
        return list(answer.training_runs), answer.cursor.total_count

    with progress(options, "Fetching training runs", None) as advance:
        listing = fetch_pages(page, limit, PAGE, advance, offset)

    if columns is None and any(map(_name, listing.items)):
        chosen.insert(1, COLUMNS["name"])

    def table() -> None:
        rows = [[cell(run) for _, cell in chosen] for run in listing.items]
        spared = () if columns else _SPARED
        show_table([title for title, _ in chosen], rows, listing.title("training run"), spared=spared)

    show(options, listing.to_json("runs"), table)


def _columns(names: str) -> list[_Column]:
    chosen = [name.strip().lower() for name in names.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in COLUMNS]
    if unknown or not chosen:
        raise CommandFailed(
            f"Unknown column{'' if len(unknown) == 1 else 's'}: {', '.join(unknown) or 'none given'}",
            f"Available: {', '.join(COLUMNS)}",
        )
    return [COLUMNS[name] for name in chosen]


@click.command()
@click.argument("run_id")
@ACCESS_SCOPE
@pass_options
def info(options: GlobalOptions, run_id: str, access_scope: AccessScope) -> None:
    """Show one training run."""
    run = rest_client(options).get_training_run(run_id, access_scope).result()
    show(options, run.model_dump(), lambda: show_properties(f"Training Run: {run.training_run_id}", _properties(run)))


def _properties(run: TrainingRun) -> list[tuple[str, str]]:
    return [
        ("Run ID", run.training_run_id),
        ("Base Model", run.base_model),
        ("Owner", run.model_owner),
        ("LoRA", format_lora(run.is_lora, run.lora_rank)),
        ("Last Update", format_timestamp(run.last_request_time)),
        ("Status", _status(run)),
        *_last("Last Training Checkpoint", run.last_checkpoint),
        *_last("Last Sampler Checkpoint", run.last_sampler_checkpoint),
        *format_metadata(run.user_metadata).items(),
    ]


def _last(title: str, checkpoint: Checkpoint | None) -> list[tuple[str, str]]:
    if checkpoint is None:
        return []
    return [
        (title, checkpoint.checkpoint_id),
        ("  - Time", format_timestamp(checkpoint.time)),
        ("  - Path", checkpoint.tinker_path),
    ]
