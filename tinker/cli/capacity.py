"""How much a model takes at once."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple


class Capacity(NamedTuple):
    """The most tokens that a model takes; None where its server does not say so, and nothing is too long."""

    model: str
    tokens: int | None

    def is_exceeded(self, count: int) -> bool:
        """Return whether so many tokens are too many."""
        return 0 < (self.tokens or 0) < count

    def __str__(self) -> str:
        return f"{self.model} takes {self.tokens:,}"


@contextmanager
def silence_length_warnings() -> Generator[None]:
    """Keep transformers from warning of long texts; readers who know the capacity of the model say it with the line."""
    log = logging.getLogger("transformers.tokenization_utils_base")

    def is_other(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("Token indices sequence length is longer")

    log.addFilter(is_other)
    try:
        yield
    finally:
        log.removeFilter(is_other)
