"""Tokens and what they cost, as commands show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from tinker.cli.errors import CommandFailed

if TYPE_CHECKING:
    from tinker.usage import Price, TokenCounts

Command = TypeVar("Command", bound=Callable[..., object])


def prices_option(command: Command) -> Command:
    """Add the option that names a price list to a command."""
    return click.option(
        "--prices",
        "prices_path",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Price list (TOML or JSON): prices per million tokens by model. Default: TINKER_PRICES.",
    )(command)


def read_prices(path: Path | None) -> Mapping[str, Price] | None:
    """Read the price list given, else the one that the environment names. None without one; CommandFailed for a wrong one."""
    from tinker._config import prices_file
    from tinker.usage import load_prices

    chosen = path or prices_file()
    if chosen is None:
        return None
    try:
        return load_prices(chosen)
    except (OSError, ValueError) as error:
        raise CommandFailed(str(error)) from error


def cost_of(prices: Mapping[str, Price] | None, counts: Mapping[str | None, TokenCounts]) -> float | None:
    """Return what the tokens of each model cost; None without prices. CommandFailed for a model without one."""
    from tinker.usage import price_of

    if prices is None:
        return None
    try:
        return sum(price_of(prices, model).cost(tokens) for model, tokens in counts.items())
    except ValueError as error:
        raise CommandFailed(str(error)) from error


def to_value(counts: TokenCounts) -> dict[str, int]:
    """Return tokens as JSON shows them."""
    import attrs

    return attrs.asdict(counts)


def count_properties(counts: TokenCounts, cost: float | None) -> Sequence[tuple[str, str]]:
    """Return tokens and their cost as properties."""
    rows = [
        ("Trained", counts.trained),
        ("Prefilled", counts.prefilled),
        ("Prefilled, cached", counts.cached),
        ("Sampled", counts.sampled),
    ]
    shown = [(f"{name} (tokens)", f"{number:,}") for name, number in rows if number]
    return [*shown, ("Cost", format_cost(cost))]


def format_cost(cost: float | None) -> str:
    """Format a cost, in the currency of the price list.

    >>> format_cost(0.0000123), format_cost(12.3)
    ('0.0000123', '12.30')
    """
    if cost is None:
        return "unknown: give a price list with --prices"
    return f"{cost:.2f}" if cost == 0 or cost >= 0.01 else f"{cost:.3g}" if cost >= 0.0001 else f"{cost:.10f}".rstrip("0")
