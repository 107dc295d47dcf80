"""A path that older code imports from."""

from __future__ import annotations

from enum import StrEnum

from tinker.observing import QueueStateObserver


class QueueState(StrEnum):
    """Names for what observers are told; each is equal to the word."""

    ACTIVE = "active"
    PAUSED_RATE_LIMIT = "paused_rate_limit"
    PAUSED_CAPACITY = "paused_capacity"
    UNKNOWN = "unknown"


__all__ = ["QueueState", "QueueStateObserver"]
