"""Tokens and their cost, as commands show them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path

import tinker
from tinker.cli.clients import config_of
from tinker.cli.options import GlobalOptions
from tinker.cli.output import progress

_LONGEST = datetime.timedelta(days=14)  # what servers answer at once


def next_hour() -> datetime.datetime:
    """Return the end of the current hour; usage is counted by the hour."""
    now = datetime.datetime.now(datetime.UTC)
    return now.replace(minute=0, second=0, microsecond=0) + datetime.timedelta(hours=1)


def fetch_usage(
    options: GlobalOptions,
    client: tinker.RestClient | tinker.AdminClient,
    since: datetime.datetime,
    until: datetime.datetime,
) -> list[tinker.types.BillingUsageResponse]:
    """Fetch the usage from ``since`` until before ``until``, in as many requests as
    the time takes.
    """
    answers: list[tinker.types.BillingUsageResponse] = []
    whole = (until - since).days
    with progress(options, "Fetching usage", whole) as advance:
        while not answers or since < until:
            end = min(until, since + _LONGEST)
            answers.append(client.get_billing_usage(since, end).result())
            since = end
            advance(whole - (until - since).days)
    return answers


def read_prices(path: Path | None) -> Mapping[str, tinker.usage.Price] | None:
    """Read the price list given, else the one that the environment names. None without one;
    ValueError for a wrong one.
    """
    from tinker._config import prices_file

    chosen = path or prices_file()
    return None if chosen is None else tinker.usage.load_prices(chosen)


def cost_of(
    prices: Mapping[str, tinker.usage.Price] | None,
    counts: Mapping[str | None, tinker.usage.TokenCounts],
) -> float | None:
    """Return what the tokens of each model cost; None without prices. ValueError for a model
    without one.
    """
    if prices is None:
        return None
    return sum(
        tinker.usage.price_of(prices, model).cost(tokens) for model, tokens in counts.items()
    )


def to_value(counts: tinker.usage.TokenCounts) -> dict[str, int]:
    """Return tokens as JSON shows them."""
    import attrs

    return attrs.asdict(counts)


def count_properties(
    options: GlobalOptions, counts: tinker.usage.TokenCounts, cost: float | None
) -> Sequence[tuple[str, str]]:
    """Return tokens and their cost as properties; the hosted service alone has a cost without
    prices, which is unknown.
    """
    rows = [
        ("Trained", counts.trained),
        ("Prefilled", counts.prefilled),
        ("Prefilled, cached", counts.cached),
        ("Sampled", counts.sampled),
    ]
    shown = [(f"{name} (tokens)", f"{number:,}") for name, number in rows if number]
    return (
        shown
        if cost is None and not config_of(options).is_hosted
        else [*shown, ("Cost", format_cost(cost))]
    )


def format_cost(cost: float | None) -> str:
    """Format a cost, in the currency of the price list.

    >>> format_cost(0.0000123), format_cost(12.3)
    ('0.0000123', '12.30')
    """
    if cost is None:
        return "unknown: give a price list with --prices"
    return (
        f"{cost:.2f}"
        if cost == 0 or cost >= 0.01
        else f"{cost:.3g}"
        if cost >= 0.0001
        else f"{cost:.10f}".rstrip("0")
    )
