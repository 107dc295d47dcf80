"""Token counts by kind: tokens used, tokens of a bill, and estimates for a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import attrs
from tinker_wire import models

from tinker._session import count_tokens
from tinker.types.datum import Datum
from tinker.types.model_input import ModelInput


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
    lengths = [count_tokens(prompt) for prompt in prompts]
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
