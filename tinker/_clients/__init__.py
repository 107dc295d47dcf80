"""What the public clients have in common: being ready later than they are made, and methods with a
coroutine twin.
"""

from __future__ import annotations

from tinker._clients.holder import SessionHolder
from tinker._clients.older_arguments import read_older_arguments
from tinker._clients.ready import ReadyClient, name_maker
from tinker._clients.twins import awaiting_twin, twin

__all__ = [
    "ReadyClient",
    "SessionHolder",
    "awaiting_twin",
    "name_maker",
    "read_older_arguments",
    "twin",
]
