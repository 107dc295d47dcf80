"""Count the tokens that a client uses, by model, run and operation, and compute their cost from
your price list.

    usage = tinker.usage.Usage()
    service = tinker.ServiceClient(observers=[usage])
    ...
    prices = {"Qwen/Qwen3-8B": Price(train=0.40, prefill=0.13, sample=0.40)}
    print(usage.total, usage.cost(prices))

The counts come from requests and responses, so they do not require access to the bills of an
organization.
"""

from __future__ import annotations

from tinker.usage.counts import TokenCounts, count_billing, estimate_sampling, estimate_training
from tinker.usage.ledger import Usage, UsageLine
from tinker.usage.prices import ANY_MODEL, Price, load_prices, price_of

__all__ = [
    "ANY_MODEL",
    "Price",
    "TokenCounts",
    "Usage",
    "UsageLine",
    "count_billing",
    "estimate_sampling",
    "estimate_training",
    "load_prices",
    "price_of",
]
