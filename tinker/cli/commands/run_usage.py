"""``tinker run usage``: the tokens of the session that a training run belongs to, and what they cost."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tinker.cli.clients import rest_client
from tinker.cli.costs import cost_of, count_properties, prices_option, read_prices, to_value
from tinker.cli.errors import CommandFailed
from tinker.cli.options import GlobalOptions, pass_options
from tinker.cli.output import progress, show, show_properties

if TYPE_CHECKING:
    from tinker.rest_client import RestClient
    from tinker.usage import TokenCounts

_TRAIN = ":train:"
_LONGEST = datetime.timedelta(days=14)  # what servers answer at once


@click.command()
@click.argument("run_id")
@click.option("--days", type=click.IntRange(min=1, max=366), default=14, show_default=True, help="Number of days to look back.")
@prices_option
@pass_options
def usage(options: GlobalOptions, run_id: str, days: int, prices_path: Path | None) -> None:
    """Show the tokens that a training run used, and their cost.

    Servers bill sessions, not runs, so this counts all tokens of the run's session, including its samples. Other runs of the
    same session are listed. This needs administrator rights, and the data can be several hours late.
    """
    prices, rest = read_prices(prices_path), rest_client(options)
    session_id = _session_of(run_id)
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
    show(options, value, lambda: show_properties(f"Usage: {run_id}", _properties(session_id, others, counts, cost)))


def _session_of(run_id: str) -> str:
    session_id, found, _ = run_id.partition(_TRAIN)
    if not found:
        raise CommandFailed(f"The session of {run_id} is not known", f"A run's ID is <session>{_TRAIN}<number>.")
    return session_id


def _find_others(rest: RestClient, session_id: str, run_id: str, *, has_usage: bool) -> list[str]:
    """Return the other runs of the session; none if the server has only its usage. CommandFailed without either."""
    from tinker.errors import NotFoundError

    try:
        return [other for other in rest.get_session(session_id).result().training_run_ids if other != run_id]
    except NotFoundError as error:
        if has_usage:
            return []
        advice = "Usage is counted per session, and the server does not know the session of this run, or no longer."
        raise CommandFailed(f"The server has no usage of {run_id}", advice) from error


def _count(options: GlobalOptions, rest: RestClient, session_id: str, days: int) -> Mapping[str | None, TokenCounts]:
    """Add up the tokens of the session, in as many requests as the time takes."""
    from tinker.usage import TokenCounts, count_billing

    until = datetime.datetime.now(datetime.UTC).replace(minute=0, second=0, microsecond=0) + datetime.timedelta(hours=1)
    since = until - datetime.timedelta(days=days)
    found: dict[str | None, TokenCounts] = {}
    with progress(options, "Fetching usage", days) as advance:
        while since < until:
            end = min(until, since + _LONGEST)
            answer = rest.get_billing_usage(since, end).result()
            for model, tokens in count_billing(answer, session_id=session_id).items():
                found[model] = found.get(model, TokenCounts()) + tokens
            since = end
            advance(days - (until - since).days)
    return found


def _properties(
    session_id: str, others: list[str], counts: Mapping[str | None, TokenCounts], cost: float | None
) -> list[tuple[str, str]]:
    from tinker.usage import TokenCounts

    total = sum(counts.values(), TokenCounts())
    shared = [("Shared with", ", ".join(others))] if others else []
    models = ", ".join(model or "unknown" for model in counts) or "N/A"
    return [("Session ID", session_id), ("Base Model", models), *shared, *count_properties(total, cost)]
