"""What the public clients have in common: being ready later than they are made, and methods with a coroutine twin."""

from __future__ import annotations

from tinker._clients.holder import SessionHolder
from tinker._clients.older_arguments import read_older_arguments
from tinker._clients.ready import ReadyClient, name_maker
from tinker._clients.twins import awaiting_twin_of, twin_of

__all__ = ["ReadyClient", "SessionHolder", "awaiting_twin_of", "name_maker", "read_older_arguments", "twin_of"]
