"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker._older import QueueState
from tinker.observing import QueueStateObserver

__all__ = ["QueueState", "QueueStateObserver"]
