"""What a future keeps besides its outcome: how far its request is, whether anybody received its error, what came on the way."""

from __future__ import annotations

from tinker._futures.mailbox import SILENCE_SECONDS, TokenMailbox
from tinker._futures.progress import PRESENT, OperationProgress, Reachability, Subject
from tinker._futures.receipt import Receipt, report_before_others

__all__ = [
    "OperationProgress",
    "PRESENT",
    "Reachability",
    "Receipt",
    "SILENCE_SECONDS",
    "Subject",
    "TokenMailbox",
    "report_before_others",
]
