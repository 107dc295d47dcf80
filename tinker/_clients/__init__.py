"""What the public clients have in common: being ready later than they are made, and methods with a coroutine twin."""

from __future__ import annotations

from tinker._clients.ready import ReadyClient

__all__ = ["ReadyClient"]
