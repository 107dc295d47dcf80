"""The user's price list and the cost of tokens. The client contains no prices."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import attrs

from tinker._checks import check_field, check_number
from tinker.usage.counts import TokenCounts

MILLION = 1_000_000
ANY_MODEL = "*"
"""The key of the price of every model without a price of its own."""


_PRICE = check_field(check_number)


@attrs.frozen(kw_only=True)
class Price:
    """Prices of a million tokens of one model, in a currency of your choice.

    Attributes:
        train: The price of trained tokens.
        prefill: The price of prompt tokens.
        sample: The price of generated tokens.
        cached: The price of prompt tokens in the server's cache. None means the same price as
            ``prefill``.

    >>> Price(train=0.40, prefill=0.13, sample=0.40).cost(TokenCounts(trained=2_500_000))
    1.0
    """

    train: float = attrs.field(validator=_PRICE)
    prefill: float = attrs.field(validator=_PRICE)
    sample: float = attrs.field(validator=_PRICE)
    cached: float | None = attrs.field(default=None, validator=attrs.validators.optional(_PRICE))

    def cost(self, counts: TokenCounts) -> float:
        """Return the cost of tokens.

        Args:
            counts: The tokens.
        """
        cached = self.prefill if self.cached is None else self.cached
        parts = (
            counts.trained * self.train,
            counts.prefilled * self.prefill,
            counts.cached * cached,
            counts.sampled * self.sample,
        )
        return math.fsum(parts) / MILLION


def price_of(prices: Mapping[str, Price], base_model: str | None) -> Price:
    """Return the price of a model.

    Args:
        prices: The price list, by base model. ``*`` matches every other model.
        base_model: The model. None means an unknown model.

    Raises:
        ValueError: The list has no price for it.
    """
    price = prices.get(base_model or "") or prices.get(ANY_MODEL)
    if price is None:
        known = ", ".join(prices) or "no model"
        raise ValueError(
            f"there is no price for {base_model or 'an unknown model'}; the price list has {known}"
        )
    return price


def load_prices(path: str | Path) -> dict[str, Price]:
    """Read a price list from a file.

    Args:
        path: A TOML file with a table for each model, or a JSON file with an object for each model.
            The fields ``train``, ``prefill``, ``sample`` and, optionally, ``cached`` are prices of
            a million tokens.

    Returns:
        The prices by base model.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not a price list. The message names the model and the price.
    """
    file = Path(path)
    text = file.read_text(encoding="utf-8")
    try:
        values: object = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise ValueError(f"{file} is not a price list: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{file} is not a price list: it must have an object for each model")
    return {
        name: _read_price(file, name, entry)
        for name, entry in cast("dict[str, object]", values).items()
    }


def _read_price(file: Path, name: str, entry: object) -> Price:
    if not isinstance(entry, dict):
        raise ValueError(f"{file}: the price of {name} must have train, prefill and sample")
    try:
        return Price(**cast("dict[str, Any]", entry))
    except (TypeError, ValueError) as error:
        reason = str(error).replace("Price.__init__() ", "")
        raise ValueError(f"{file}: the price of {name}: {reason}") from None
