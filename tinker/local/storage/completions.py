"""The completed samples of one client, in order, for ``retrieve_futures``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import attrs

from tinker.local.storage.notifier import Notifier

MAX_COMPLETIONS = 20_000  # completions that no client asks for; their results are not kept that long either


@attrs.frozen
class Completion:
    """The request that completed; ``number`` is 1 for the first one."""

    number: int
    request_id: str
    failed: bool


class CompletionLog:
    """The completions of one client. Guarded by the lock of the state."""

    def __init__(self) -> None:
        self._completions: deque[Completion] = deque(maxlen=MAX_COMPLETIONS)
        self._count = 0
        self._notifier = Notifier()

    @property
    def cursor(self) -> int:
        """Return the number of the last one."""
        return self._count

    def restore(self, count: int, completions: Iterable[Completion]) -> None:
        """Take over what an earlier process of this server counted, and what nobody has asked for yet."""
        self._count = count
        self._completions.extend(completions)

    def add(self, request_id: str, *, failed: bool) -> None:
        """Add a completed request."""
        self._count += 1
        self._completions.append(Completion(self._count, request_id, failed))
        self._notifier.notify_all()

    def after(self, cursor: int) -> list[Completion]:
        """Return those behind a cursor. The ones up to it are forgotten."""
        while self._completions and self._completions[0].number <= cursor:
            self._completions.popleft()
        return list(self._completions)

    async def wait(self, cursor: int, seconds: float) -> None:
        """Wait until there is one behind the cursor, at most for ``seconds``."""
        await self._notifier.wait(lambda: self._count > cursor, seconds)
