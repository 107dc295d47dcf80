"""Lists that come in pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from tinker.cli.output import Advance

T = TypeVar("T")


class Listing(NamedTuple, Generic[T]):
    """The fetched items of a list, and the length of the whole list."""

    items: list[T]
    total: int

    def to_json(self, name: str) -> dict[str, object]:
        """Return the items under a name, how many they are, and how many there are in all."""
        return {name: self.items, "shown": len(self.items), "total": self.total}

    def title(self, what: str) -> str:
        """Say how many items there are, and how many more."""
        count, hidden = len(self.items), self.total - len(self.items)
        more = f" ({hidden} more; use --limit to see them)" if hidden > 0 else ""
        return f"{count} {what}{'' if count == 1 else 's'}{more}"


#: Limit and offset to a page of the list and, where the server says it, the length of the whole list.
FetchPage = Callable[[int, int], tuple[list[T], int | None]]


def fetch_pages(fetch: FetchPage[T], limit: int, page: int, advance: Advance, offset: int = 0) -> Listing[T]:
    """Fetch ``limit`` items, all for 0, after the first ``offset``. ``advance`` is called as they come."""
    items: list[T] = []
    total: int | None = None
    while not limit or len(items) < limit:
        count = min(page, limit - len(items)) if limit else page
        new, known = fetch(count, offset + len(items))
        total = None if known is None else max(0, known - offset)
        items += new[:count]
        advance(len(items), total=min(total, limit) if total is not None and limit else total)
        if len(new) < count or (total is not None and len(items) >= total):
            break
    return Listing(items, max(total or 0, len(items)))
