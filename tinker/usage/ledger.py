"""The tokens of clients, counted as they are used."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import attrs

from tinker._shown import ShownAsTable
from tinker.observing import Event, TokensUsed
from tinker.usage.counts import TokenCounts
from tinker.usage.prices import Price, price_of

UsageKeyName: TypeAlias = Literal["base_model", "training_run_id", "session_id", "operation"]


@attrs.frozen(kw_only=True)
class UsageLine:
    """The tokens that one operation used, for one model and run.

    Attributes:
        base_model: The base model; None if it is not known.
        training_run_id: The run that was trained, or whose weights were sampled from; None for a
            base model.
        session_id: The session.
        operation: The name of the method.
        requests: The number of requests whose result arrived.
        tokens: The tokens of these requests.
        unconfirmed: The tokens of accepted requests whose outcome is not known, such as cancelled
            requests.
    """

    base_model: str | None
    training_run_id: str | None
    session_id: str | None
    operation: str
    requests: int = 0
    tokens: TokenCounts = attrs.field(factory=TokenCounts)
    unconfirmed: TokenCounts = attrs.field(factory=TokenCounts)

    @property
    def cells(self) -> Sequence[str]:
        """Return the line as text, one for each column of a table."""
        counts = self.tokens
        numbers = (
            self.requests,
            counts.trained,
            counts.prefilled,
            counts.cached,
            counts.sampled,
            self.unconfirmed.total,
        )
        return (
            self.base_model or "?",
            self.training_run_id or "-",
            self.operation,
            *(f"{number:,}" for number in numbers),
        )


class Usage(ShownAsTable):
    """Observer that counts the tokens that clients use.

    Pass it to ``ServiceClient(observers=[...])`` or ``add_observer``; it may observe several
    clients. It is shown as a table by rich and in notebooks.

    >>> import tinker
    >>> usage = Usage()
    >>> service = tinker.ServiceClient(base_url="local://toy", observers=[usage])
    >>> sampler = service.create_sampling_client(base_model="tinker/toy")
    >>> prompt = tinker.ModelInput.from_ints([1, 2, 3])
    >>> scores = sampler.compute_logprobs(prompt).result(timeout=30)
    >>> usage.total
    TokenCounts(trained=0, prefilled=3, cached=0, sampled=1)
    >>> usage.cost({"tinker/toy": Price(train=3, prefill=1, sample=2)})
    5e-06
    """

    _title = "Tokens"
    _columns = (
        "Model",
        "Run",
        "Operation",
        "Requests",
        "Trained",
        "Prefilled",
        "Cached",
        "Sampled",
        "Unconfirmed",
    )

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[tuple[str | None, ...], UsageLine] = {}

    def __call__(self, event: Event) -> None:
        """Count the tokens of one event."""
        if not isinstance(event, TokensUsed):
            return
        counts = TokenCounts(
            trained=event.trained,
            prefilled=event.prefilled,
            cached=event.cached,
            sampled=event.sampled,
        )
        key = (event.base_model, event.training_run_id, event.session_id, event.operation)
        with self._lock:
            line = self._lines.get(key) or UsageLine(
                base_model=event.base_model,
                training_run_id=event.training_run_id,
                session_id=event.session_id,
                operation=event.operation,
            )
            if event.is_confirmed:
                self._lines[key] = attrs.evolve(
                    line, requests=line.requests + 1, tokens=line.tokens + counts
                )
            else:
                self._lines[key] = attrs.evolve(line, unconfirmed=line.unconfirmed + counts)

    def lines(self) -> tuple[UsageLine, ...]:
        """Return the usage so far, by model, run and operation, in the order of first use."""
        with self._lock:
            return tuple(self._lines.values())

    def reset(self) -> None:
        """Count from zero again."""
        with self._lock:
            self._lines.clear()

    @property
    def total(self) -> TokenCounts:
        """Return the tokens of all requests whose result arrived."""
        return sum((line.tokens for line in self.lines()), TokenCounts())

    @property
    def unconfirmed(self) -> TokenCounts:
        """Return the tokens of requests whose outcome is not known. They may be billed."""
        return sum((line.unconfirmed for line in self.lines()), TokenCounts())

    def by(self, name: UsageKeyName) -> dict[str | None, TokenCounts]:
        """Group the tokens by an attribute of :class:`UsageLine`.

        Args:
            name: ``base_model``, ``training_run_id``, ``session_id`` or ``operation``.

        Raises:
            ValueError: The name is not one of these.
        """
        if name not in ("base_model", "training_run_id", "session_id", "operation"):
            raise ValueError(
                f"name must be base_model, training_run_id, session_id or operation, got {name!r}"
            )
        found: dict[str | None, TokenCounts] = defaultdict(TokenCounts)
        for line in self.lines():
            found[getattr(line, name)] += line.tokens
        return dict(found)

    def cost(self, prices: Mapping[str, Price]) -> float:
        """Return the cost of the tokens according to a price list.

        Args:
            prices: The price of each base model. ``*`` matches every other model.

        Raises:
            ValueError: A model that was used has no price.
        """
        return sum(
            price_of(prices, model).cost(counts) for model, counts in self.by("base_model").items()
        )

    def __repr__(self) -> str:
        return f"<Usage {self.total}>"

    def _rows(self) -> Iterator[Sequence[str]]:
        return (line.cells for line in self.lines())
