"""The tokens of each request, reported to observers with its result, or when its outcome will not be known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from msgspec import structs

from tinker._http import Observers
from tinker.errors import RequestFailedError
from tinker.futures import APIFuture
from tinker.observing import TokensUsed
from tinker.types.model_input import ModelInput, ModelInputChunk
from tinker.types.results import SampleResponse

T = TypeVar("T")


async def meter(
    observers: Observers, future: APIFuture[Any], accepted: TokensUsed, used: Callable[[T], TokensUsed], result: Awaitable[T]
) -> T:
    """Wait for a result and report its use; ``accepted`` is what the server may have used if there is no outcome.

    What failed on the server used nothing.
    """
    try:
        value = await result
    except RequestFailedError:
        raise
    except BaseException:
        observers.notify(structs.replace(accepted, is_confirmed=False), future.progress)
        raise
    observers.notify(used(value), future.progress)
    return value


def training_use(future: APIFuture[Any], inputs: Iterable[ModelInput]) -> TokensUsed:
    """Return what a pass over the inputs uses."""
    trained = sum(count_tokens(one) for one in inputs)
    return TokensUsed(operation=future.operation, base_model=_base_model(future), trained=trained)


def prompt_use(future: APIFuture[Any], prompt: ModelInput, response: SampleResponse | None = None) -> TokensUsed:
    """Return what a sample of the prompt uses: without the response, what it uses before the first token."""
    tokens = count_tokens(prompt)
    cached = 0 if response is None else min(tokens, response.prompt_cache_hit_tokens)
    sampled = 0 if response is None else sum(len(one.tokens) for one in response.sequences)
    return TokensUsed(
        operation=future.operation, base_model=_base_model(future), prefilled=tokens - cached, cached=cached, sampled=sampled
    )


def count_tokens(value: ModelInput) -> int:
    """Count the tokens of an input: those of text, and what images are expected to have."""
    return sum(_chunk_tokens(chunk) for chunk in value.chunks)


def _chunk_tokens(chunk: ModelInputChunk) -> int:
    try:
        return chunk.length
    except ValueError:  # an image that does not say how many
        return 0


def _base_model(future: APIFuture[Any]) -> str | None:
    labels = future.progress.labels
    return None if labels is None else labels.base_model
