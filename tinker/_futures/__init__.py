"""What a future keeps besides its outcome: the progress of its request, the receipt of its error, the tokens of a stream."""

from __future__ import annotations

from tinker._futures.progress import CURRENT_OPERATION, EventLabels, OperationProgress, Reachability
from tinker._futures.receipt import Receipt, report_before_others
from tinker._futures.token_queue import SILENCE_SECONDS, TokenQueue

__all__ = [
    "OperationProgress",
    "CURRENT_OPERATION",
    "Reachability",
    "Receipt",
    "SILENCE_SECONDS",
    "EventLabels",
    "TokenQueue",
    "report_before_others",
]
