"""``tinker run list``, ``info`` and ``usage``."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypeAlias

import click

import tinker
from tinker.cli.clients import RESUMED, TRAIN, Listing, connect, fetch_pages, find_run, rest_client
from tinker.cli.costs import (
    cost_of,
    count_properties,
    fetch_usage,
    next_hour,
    read_prices,
    to_value,
)
from tinker.cli.errors import CommandFailed
from tinker.cli.metrics import fetch_progress
from tinker.cli.options import (
    AccessScopeOption,
    GlobalOptions,
    Natural,
    OffsetOption,
    Option,
    PricesOption,
    command,
)
from tinker.cli.output import (
    format_lora,
    format_metric,
    format_value,
    list_metadata,
    show,
    show_items,
    show_properties,
)

PAGE = 100


class _ListedRun(NamedTuple):
    """A run, and what the local server tells of its progress: state, steps and metrics, all missing
    elsewhere.
    """

    run: tinker.types.TrainingRun
    progress: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {**self.run.model_dump(), **self.progress}

    @property
    def name(self) -> str:
        metadata = self.run.user_metadata or {}
        return " ".join(
            [*filter(None, [metadata.get("name")]), *(["(resumed)"] if RESUMED in metadata else [])]
        )

    @property
    def rank(self) -> str:
        known = self.run.is_lora and self.run.lora_rank is not None
        return f"Rank {self.run.lora_rank}" if known else format_value(self.run.is_lora)

    @property
    def loss(self) -> str:
        loss = self.progress.get("metrics", {}).get("loss per token")
        return "" if loss is None else format_metric(loss)

    @property
    def status(self) -> str:
        return "failed" if self.run.corrupted else self.progress.get("state", "ok")


#: A title, and the cell of one run.
_Column: TypeAlias = tuple[str, Callable[[_ListedRun], object]]
COLUMNS: Mapping[str, _Column] = {
    "id": ("Run ID", lambda one: one.run.training_run_id),
    "name": ("Name", lambda one: one.name),
    "model": ("Base Model", lambda one: one.run.base_model),
    "owner": ("Owner", lambda one: one.run.model_owner),
    "lora": ("LoRA", lambda one: one.rank),
    "steps": ("Steps", lambda one: one.progress.get("steps", "")),
    "loss": ("Loss", lambda one: one.loss),
    "updated": ("Last Update", lambda one: one.run.last_request_time),
    "status": ("Status", lambda one: one.status),
    "checkpoint": (
        "Last Checkpoint",
        lambda one: one.run.last_checkpoint and one.run.last_checkpoint.checkpoint_id,
    ),
    "checkpoint_time": (
        "Checkpoint Time",
        lambda one: one.run.last_checkpoint and one.run.last_checkpoint.time,
    ),
}
DEFAULT_COLUMNS = "id, name, model, lora, steps, loss, updated, status"
_IF_KNOWN = ("name", "steps", "loss")  # of the default columns, those shown if a run has one
_OPTIONAL = ("LoRA", "Last Update", "Base Model", "Loss", "Steps")  # left out on a narrow terminal
_COLUMNS_HELP = (
    f"Comma-separated columns: {', '.join(COLUMNS)}. Default: {DEFAULT_COLUMNS}, where "
    "a run has them."
)


@command("tinker run list --limit 5 --columns id,model,updated")
def list_command(
    options: GlobalOptions,
    limit: Annotated[Natural, Option("Maximum number of runs, latest first; 0 shows all.")] = 20,
    columns: Annotated[str | None, Option(_COLUMNS_HELP, "-c", "--columns")] = None,
    offset: OffsetOption = 0,
    access_scope: AccessScopeOption = "owned",
) -> None:
    """List training runs."""
    chosen = _columns(columns or DEFAULT_COLUMNS)
    if columns is not None and options.format == "json":
        raise click.UsageError(
            "--columns cannot be used with --format json, which has every field."
        )
    runtime = connect(options)
    rest = tinker.RestClient(runtime)

    def page(count: int, start: int) -> tuple[list[tinker.types.TrainingRun], int | None]:
        answer = rest.list_training_runs(count, start, access_scope).result()
        return list(answer.training_runs), answer.cursor.total_count

    found = fetch_pages(options, "Fetching training runs", page, limit, PAGE, offset)
    known = fetch_progress(runtime, [run.training_run_id for run in found.items])
    listing = Listing(
        [_ListedRun(run, known[run.training_run_id]) for run in found.items], found.total
    )
    if columns is None:
        unknown = [
            COLUMNS[name] for name in _IF_KNOWN if not any(map(COLUMNS[name][1], listing.items))
        ]
        chosen = [column for column in chosen if column not in unknown]
    optional = () if columns else _OPTIONAL
    value = Listing([one.to_json() for one in listing.items], found.total).to_json("runs")
    show(
        options,
        value,
        lambda: show_items(listing.items, chosen, listing.title("training run"), optional=optional),
    )


def _columns(names: str) -> list[_Column]:
    chosen = [name.strip().lower() for name in names.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in COLUMNS]
    if unknown or not chosen:
        problem = (
            f"Unknown column{'' if len(unknown) == 1 else 's'}: "
            f"{', '.join(unknown) or 'none given'}"
        )
        raise CommandFailed(problem, f"Available: {', '.join(COLUMNS)}")
    return [COLUMNS[name] for name in chosen]


@command("tinker run info RUN")
def info(options: GlobalOptions, run_id: str, access_scope: AccessScopeOption = "owned") -> None:
    """Show one training run, given by its ID or by its name."""
    runtime = connect(options)
    rest = tinker.RestClient(runtime)
    run = rest.get_training_run(find_run(rest, run_id), access_scope).result()
    one = _ListedRun(run, fetch_progress(runtime, [run.training_run_id])[run.training_run_id])
    properties = [
        ("Run ID", run.training_run_id),
        ("Base Model", run.base_model),
        ("Owner", run.model_owner),
        ("LoRA", format_lora(run.is_lora, run.lora_rank)),
        ("Last Update", run.last_request_time),
        ("Status", one.status),
        *((title, cell(one)) for title, cell in (COLUMNS["steps"], COLUMNS["loss"]) if cell(one)),
        *_checkpoint_properties("Last Training Checkpoint", run.last_checkpoint),
        *_checkpoint_properties("Last Sampler Checkpoint", run.last_sampler_checkpoint),
        *list_metadata(run.user_metadata),
    ]
    show_properties(options, one.to_json(), f"Training Run: {run.training_run_id}", properties)


def _checkpoint_properties(
    title: str, checkpoint: tinker.types.Checkpoint | None
) -> list[tuple[str, object]]:
    if checkpoint is None:
        return []
    return [
        (title, checkpoint.checkpoint_id),
        ("  - Time", checkpoint.time),
        ("  - Path", checkpoint.tinker_path),
    ]


@command("tinker run usage RUN --prices prices.toml")
def usage(
    options: GlobalOptions,
    run_id: str,
    days: Annotated[int, click.IntRange(1, 366), Option("Number of days to look back.")] = 14,
    prices_path: PricesOption = None,
) -> None:
    """Show the tokens that a training run used, and their cost.

    Servers bill sessions, not runs, so this counts all tokens of the run's session, including its
    samples. Other runs of the same session are listed. This needs administrator rights, and the
    data can be several hours late.
    """
    prices, rest = read_prices(prices_path), rest_client(options)
    run_id = find_run(rest, run_id)
    session_id, is_known, _ = run_id.partition(TRAIN)
    if not is_known:
        advice = f"A run's ID is <session>{TRAIN}<number>; `tinker run list` shows them."
        raise CommandFailed(f"There is no run {run_id}", advice)
    counts = _count(options, rest, session_id, days)
    others = _find_others(rest, session_id, run_id, has_usage=bool(counts))
    cost = cost_of(prices, counts)
    value = {
        "training_run_id": run_id,
        "session_id": session_id,
        "other_training_run_ids": others,
        "days": days,
        "tokens": {model or "": to_value(tokens) for model, tokens in counts.items()},
        "cost": cost,
    }
    properties = [
        ("Session ID", session_id),
        ("Base Model", ", ".join(model or "unknown" for model in counts) or "N/A"),
        *([("Shared with", ", ".join(others))] if others else []),
        *count_properties(options, sum(counts.values(), tinker.usage.TokenCounts()), cost),
    ]
    show_properties(options, value, f"Usage: {run_id}", properties)


def _find_others(
    rest: tinker.RestClient, session_id: str, run_id: str, *, has_usage: bool
) -> list[str]:
    """Return the other runs of the session; none if the server has only its usage. CommandFailed
    without either.
    """
    try:
        return [
            other
            for other in rest.get_session(session_id).result().training_run_ids
            if other != run_id
        ]
    except tinker.NotFoundError as error:
        if has_usage:
            return []
        advice = (
            "Usage is counted per session, and the server does not know the session "
            "of this run, or no longer."
        )
        raise CommandFailed(f"The server has no usage of {run_id}", advice) from error


def _count(
    options: GlobalOptions, rest: tinker.RestClient, session_id: str, days: int
) -> Mapping[str | None, tinker.usage.TokenCounts]:
    """Add up the tokens of the session."""
    until = next_hour()
    found: dict[str | None, tinker.usage.TokenCounts] = {}
    for answer in fetch_usage(options, rest, until - datetime.timedelta(days=days), until):
        for model, tokens in tinker.usage.count_billing(answer, session_id=session_id).items():
            found[model] = found.get(model, tinker.usage.TokenCounts()) + tokens
    return found
