"""``tinker billing``: what was used."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import click

import tinker
from tinker.cli.clients import admin_client
from tinker.cli.costs import fetch_usage, next_hour
from tinker.cli.options import GlobalOptions, Option, command, parse_time
from tinker.cli.output import (
    Columns,
    format_count,
    format_value,
    show,
    show_items,
    show_table,
    write_data,
)

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
    month = parse_time("today").replace(day=1)
    since, until = (
        default if text is None else parse_time(text)
        for text, default in ((starting_on, month), (ending_before, next_hour()))
    )
    answers = [
        answer.model_dump(mode="json")
        for answer in fetch_usage(options, admin_client(options), since, until)
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
        title = format_count(len(events), "hourly usage row")
        show(
            options, value, lambda: _show_rows(events, title) if rows else _show_sums(events, title)
        )


def _show_sums(rows: Sequence[_UsageRow], title: str) -> None:
    """Print the sums by kind and model, and the total."""
    groups: dict[tuple[str, str], list[_UsageRow]] = {}
    for row in rows:
        groups.setdefault((str(row["type"]), format_value(row.get("base_model"))), []).append(row)
    lines = [(*names, *_sum_up(group)) for names, group in sorted(groups.items())]
    show_table(
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
    answer = admin_client(options).get_current_checkpoint_storage_usage(project_id).result()
    value, price = answer.model_dump(mode="json"), answer.effective_rate_usd_per_gigabyte_month
    if csv_path is not None:
        rows: list[_UsageRow] = [{_STORAGE_RATE: price, **item} for item in value["data"]]
        _write_csv(csv_path, _names(rows), rows)
        return
    title = (
        "Checkpoint storage now, at "
        f"{'an unknown price' if price is None else f'{price:g} USD per GB and month'}"
    )
    show(options, value, lambda: show_items(answer.data, _STORED, title))


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
        write_data(lines.getvalue())
    else:
        Path(file).write_text(lines.getvalue(), encoding="utf-8", newline="")


def _show_rows(rows: Sequence[_UsageRow], title: str) -> None:
    names = _names(rows)
    show_table(
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
