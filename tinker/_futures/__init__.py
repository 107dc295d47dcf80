"""What a future keeps besides its outcome: how far its request has come, and whether anybody has received its error."""

from __future__ import annotations

from tinker._futures.progress import PRESENT, OperationProgress, Subject
from tinker._futures.receipt import Receipt

__all__ = ["OperationProgress", "PRESENT", "Receipt", "Subject"]
