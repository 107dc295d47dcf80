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

import json
import logging
import math
import threading
import tomllib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

import attrs
from tinker_wire import models

from tinker._basics.checks import check_field, check_number
from tinker._basics.events import Event, TokensUsed
from tinker._basics.shown import ShownAsTable
from tinker._futures import EventLabels
from tinker.errors import RequestFailedError, TinkerError
from tinker.types.model_input import Datum, ModelInput, ModelInputChunk
from tinker.types.results import SampleResponse

if TYPE_CHECKING:
    from tinker._http.observers import Observers
    from tinker._loop import TaskScope

logger: logging.Logger = logging.getLogger("tinker")
T = TypeVar("T")


@attrs.frozen(kw_only=True)
class TokenCounts:
    """Token counts by billing category. You can add them.

    Attributes:
        trained: Tokens processed by ``forward`` or ``forward_backward``.
        prefilled: Prompt tokens that the server had to process.
        cached: Prompt tokens that the server found in its cache.
        sampled: Tokens that the server generated.

    >>> TokenCounts(prefilled=10, sampled=4) + TokenCounts(trained=100, sampled=1)
    TokenCounts(trained=100, prefilled=10, cached=0, sampled=5)
    """

    trained: int = 0
    prefilled: int = 0
    cached: int = 0
    sampled: int = 0

    @property
    def total(self) -> int:
        """Return the total number of tokens."""
        return self.trained + self.prefilled + self.cached + self.sampled

    def __add__(self, other: TokenCounts) -> TokenCounts:
        return TokenCounts(
            trained=self.trained + other.trained,
            prefilled=self.prefilled + other.prefilled,
            cached=self.cached + other.cached,
            sampled=self.sampled + other.sampled,
        )


def estimate_training(data: Sequence[Datum], *, passes: int = 1) -> TokenCounts:
    """Estimate the tokens that training on data will use.

    Args:
        data: The datums.
        passes: How often each datum is sent. ``forward_backward_custom`` with your own function
            sends it twice.

    Returns:
        The counts. Images count as their ``expected_tokens``.

    Raises:
        ValueError: ``passes`` is below 0.

    >>> import tinker
    >>> tokens = tinker.ModelInput.from_ints([1, 2, 3])
    >>> datum = tinker.Datum(model_input=tokens, loss_fn_inputs={"target_tokens": [2, 3, 4]})
    >>> estimate_training([datum, datum], passes=3).trained
    18
    """
    if passes < 0:
        raise ValueError(f"passes must be at least 0, got {passes}")
    return TokenCounts(trained=passes * sum(count_tokens(datum.model_input) for datum in data))


def estimate_sampling(
    prompts: Iterable[ModelInput], *, max_tokens: int, num_samples: int = 1
) -> TokenCounts:
    """Estimate the maximum number of tokens that sampling will use.

    Args:
        prompts: The prompts, one for each call of ``sample``.
        max_tokens: The maximum number of tokens of a sample. Samples that end earlier use fewer.
        num_samples: The number of samples of each prompt.

    Returns:
        The counts, assuming that the server has no prompt in its cache.

    Raises:
        ValueError: A number is below 0.

    >>> import tinker
    >>> estimate_sampling([tinker.ModelInput.from_ints([1, 2, 3])], max_tokens=10, num_samples=4)
    TokenCounts(trained=0, prefilled=3, cached=0, sampled=40)
    """
    for name, value in (("max_tokens", max_tokens), ("num_samples", num_samples)):
        if value < 0:
            raise ValueError(f"{name} must be at least 0, got {value}")
    lengths = list(map(count_tokens, prompts))
    return TokenCounts(prefilled=sum(lengths), sampled=len(lengths) * num_samples * max_tokens)


def count_billing(
    usage: models.BillingUsageResponse, *, session_id: str | None = None
) -> dict[str | None, TokenCounts]:
    """Count the tokens of a bill by base model.

    Args:
        usage: The response of ``AdminClient.get_billing_usage``.
        session_id: The session to count. None counts all sessions.

    Returns:
        The counts of each base model.
    """
    found: dict[str | None, TokenCounts] = defaultdict(TokenCounts)
    for event in usage.data:
        if (
            session_id in (None, event.session_id)
            and (counts := _counts_of(event.event_info)) is not None
        ):
            found[event.base_model] += counts
    return dict(found)


def _counts_of(info: models.BillingEventInfo) -> TokenCounts | None:
    match info:
        case models.TrainingBillingEvent():
            return TokenCounts(trained=info.token_count)
        case models.SamplingPrefillBillingEvent(cached=True):
            return TokenCounts(cached=info.token_count)
        case models.SamplingPrefillBillingEvent():
            return TokenCounts(prefilled=info.token_count)
        case models.SamplingSampleBillingEvent():
            return TokenCounts(sampled=info.token_count)
        case _:
            return None


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
        raise ValueError(
            f"{file}: the price of {name}: {error}".replace("Price.__init__() ", "")
        ) from None


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


def count_tokens(value: ModelInput) -> int:
    """Count the tokens of an input: those of text, and what images are expected to have."""
    return sum(_chunk_tokens(chunk) for chunk in value.chunks)


def _chunk_tokens(chunk: ModelInputChunk) -> int:
    try:
        return chunk.length
    except ValueError:  # an image that does not say how many
        return 0


class TokenMeter:
    """Tells the observers of a client what one operation uses."""

    def __init__(
        self, observers: Observers, tasks: TaskScope, operation: str, labels: EventLabels | None
    ) -> None:
        self._observers, self._tasks, self._operation = observers, tasks, operation
        self._labels = labels or EventLabels()

    async def identify(self, find: Callable[[], Coroutine[Any, Any, str]]) -> None:
        """Learn the base model; it stays unknown if the server does not report it."""
        if self._labels.base_model is not None:
            return
        name = f"base model of {self._labels.sampling_session_id}"
        try:
            self._labels.base_model = await self._tasks.share(name, find)
        except (TinkerError, LookupError) as error:
            logger.debug("could not find the %s: %s", name, error)

    async def follow(self, inputs: Iterable[ModelInput], result: Awaitable[T]) -> T:
        """Wait for a result and tell what it used, or what the server may have used if there is no
        outcome. What failed on the server used nothing.
        """
        try:
            value = await result
        except RequestFailedError:
            raise
        except BaseException:
            self.note(inputs, is_confirmed=False)
            raise
        if isinstance(value, SampleResponse):
            sampled = sum(len(one.tokens) for one in value.sequences)
            self.note(inputs, cached=value.prompt_cache_hit_tokens, sampled=sampled)
        else:
            self.note(inputs)
        return value

    def note(
        self,
        inputs: Iterable[ModelInput],
        *,
        cached: int = 0,
        sampled: int = 0,
        is_confirmed: bool = True,
    ) -> None:
        """Tell what a use of inputs, by a run or a sampler, comes to."""
        tokens = sum(map(count_tokens, inputs))
        trained = tokens if self._labels.sampling_session_id is None else 0
        cached = min(tokens, cached)
        self._observers.notify(
            TokensUsed(
                operation=self._operation,
                base_model=self._labels.base_model,
                trained=trained,
                prefilled=tokens - trained - cached,
                cached=cached,
                sampled=sampled,
                is_confirmed=is_confirmed,
            )
        )


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
