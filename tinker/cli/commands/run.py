"""``tinker run list``, ``info`` and ``usage``."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Annotated, TypeAlias

import click

import tinker
from tinker.cli.clients import fetch_pages, find_run, rest_client
from tinker.cli.costs import cost_of, count_properties, read_prices, to_value
from tinker.cli.errors import CommandFailed
from tinker.cli.options import AccessScopeOption, GlobalOptions, Natural, OffsetOption, Option, PricesOption, command
from tinker.cli.output import format_lora, format_value, list_metadata, progress, show, show_items, show_properties

PAGE = 100
_TRAIN = ":train:"
_LONGEST = datetime.timedelta(days=14)  # what servers answer at once

#: A title, and the cell of one run.
_Column: TypeAlias = "tuple[str, Callable[[tinker.types.TrainingRun], object]]"


def _rank(run: tinker.types.TrainingRun) -> str:
    return f"Rank {run.lora_rank}" if run.is_lora and run.lora_rank is not None else format_value(run.is_lora)


def _name(run: tinker.types.TrainingRun) -> str:
    return (run.user_metadata or {}).get("name", "")


COLUMNS: Mapping[str, _Column] = {
    "id": ("Run ID", lambda run: run.training_run_id),
    "name": ("Name", _name),
    "model": ("Base Model", lambda run: run.base_model),
    "owner": ("Owner", lambda run: run.model_owner),
    "lora": ("LoRA", _rank),
    "updated": ("Last Update", lambda run: run.last_request_time),
    "status": ("Status", lambda run: "Failed" if run.corrupted else "OK"),
    "checkpoint": ("Last Checkpoint", lambda run: run.last_checkpoint and run.last_checkpoint.checkpoint_id),
    "checkpoint_time": ("Checkpoint Time", lambda run: run.last_checkpoint and run.last_checkpoint.time),
}
DEFAULT_COLUMNS = "id,model,lora,updated,status"
_OPTIONAL = ("LoRA", "Status", "Last Update")  # left out on a narrow terminal
_COLUMNS_HELP = f"Comma-separated columns: {', '.join(COLUMNS)}. Default: {DEFAULT_COLUMNS}, and name if a run has one."


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
    rest = rest_client(options)

    def page(count: int, start: int) -> tuple[list[tinker.types.TrainingRun], int | None]:
        answer = rest.list_training_runs(count, start, access_scope).result()
        return list(answer.training_runs), answer.cursor.total_count

    listing = fetch_pages(options, "Fetching training runs", page, limit, PAGE, offset)
    if columns is None and any(map(_name, listing.items)):
        chosen.insert(1, COLUMNS["name"])

    optional = () if columns else _OPTIONAL
    title = listing.title("training run")
    show(options, listing.to_json("runs"), lambda: show_items(listing.items, chosen, title, optional=optional))


def _columns(names: str) -> list[_Column]:
    chosen = [name.strip().lower() for name in names.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in COLUMNS]
    if unknown or not chosen:
        problem = f"Unknown column{'' if len(unknown) == 1 else 's'}: {', '.join(unknown) or 'none given'}"
        raise CommandFailed(problem, f"Available: {', '.join(COLUMNS)}")
    return [COLUMNS[name] for name in chosen]


@command("tinker run info RUN")
def info(options: GlobalOptions, run_id: str, access_scope: AccessScopeOption = "owned") -> None:
    """Show one training run, given by its ID or by its name."""
    rest = rest_client(options)
    run = rest.get_training_run(find_run(rest, run_id), access_scope).result()
    properties = [
        ("Run ID", run.training_run_id),
        ("Base Model", run.base_model),
        ("Owner", run.model_owner),
        ("LoRA", format_lora(run.is_lora, run.lora_rank)),
        ("Last Update", run.last_request_time),
        ("Status", "Failed" if run.corrupted else "OK"),
        *_checkpoint_properties("Last Training Checkpoint", run.last_checkpoint),
        *_checkpoint_properties("Last Sampler Checkpoint", run.last_sampler_checkpoint),
        *list_metadata(run.user_metadata),
    ]
    show_properties(options, run.model_dump(), f"Training Run: {run.training_run_id}", properties)


def _checkpoint_properties(title: str, checkpoint: tinker.types.Checkpoint | None) -> list[tuple[str, object]]:
    if checkpoint is None:
        return []
    return [(title, checkpoint.checkpoint_id), ("  - Time", checkpoint.time), ("  - Path", checkpoint.tinker_path)]


@command("tinker run usage RUN --prices prices.toml")
def usage(
    options: GlobalOptions,
    run_id: str,
    days: Annotated[int, click.IntRange(1, 366), Option("Number of days to look back.")] = 14,
    prices_path: PricesOption = None,
) -> None:
    """Show the tokens that a training run used, and their cost.

    Servers bill sessions, not runs, so this counts all tokens of the run's session, including its samples. Other runs of the
    same session are listed. This needs administrator rights, and the data can be several hours late.
    """
    prices, rest = read_prices(prices_path), rest_client(options)
    run_id = find_run(rest, run_id)
    session_id, is_known, _ = run_id.partition(_TRAIN)
    if not is_known:
        advice = f"A run's ID is <session>{_TRAIN}<number>; `tinker run list` shows them."
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


def _find_others(rest: tinker.RestClient, session_id: str, run_id: str, *, has_usage: bool) -> list[str]:
    """Return the other runs of the session; none if the server has only its usage. CommandFailed without either."""
    try:
        return [other for other in rest.get_session(session_id).result().training_run_ids if other != run_id]
    except tinker.NotFoundError as error:
        if has_usage:
            return []
        advice = "Usage is counted per session, and the server does not know the session of this run, or no longer."
        raise CommandFailed(f"The server has no usage of {run_id}", advice) from error


def _count(
    options: GlobalOptions, rest: tinker.RestClient, session_id: str, days: int
) -> Mapping[str | None, tinker.usage.TokenCounts]:
    """Add up the tokens of the session, in as many requests as the time takes."""
    until = datetime.datetime.now(datetime.UTC).replace(minute=0, second=0, microsecond=0) + datetime.timedelta(hours=1)
    since = until - datetime.timedelta(days=days)
    found: dict[str | None, tinker.usage.TokenCounts] = {}
    with progress(options, "Fetching usage", days) as advance:
        while since < until:
            end = min(until, since + _LONGEST)
            answer = rest.get_billing_usage(since, end).result()
            for model, tokens in tinker.usage.count_billing(answer, session_id=session_id).items():
                found[model] = found.get(model, tinker.usage.TokenCounts()) + tokens
            since = end
            advance(days - (until - since).days)
    return found
