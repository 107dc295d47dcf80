"""Objects as a value, so that every way on from it can be tried."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeAlias, TypeVar

Event: TypeAlias = tuple[Any, ...]
V = TypeVar("V", bound=Hashable)


class Automaton(Generic[V]):
    """Every view of some parts is one object. They are made anew with each new event, and
    everything happens to them again that has led to the view.

    Events are their methods; ``settle`` goes on until nothing happens without another event,
    ``facts`` returns the fields of the view, and ``end`` leaves nothing behind.
    """

    def __init__(self, make: Callable[[], Any], view: Callable[..., V]) -> None:
        self._make, self._view = make, view
        self._views: dict[tuple[Any, ...], V] = {}
        self._ways: dict[V, tuple[Event, ...]] = {}
        self._after: dict[tuple[V, Event], V] = {}
        self.first = self._find(())

    def after(self, view: V, *event: Any) -> V:
        """Return what an event leads to."""
        found = self._after.get((view, event))
        if found is None:
            found = self._after[view, event] = self._find((*self._ways[view], event))
        return found

    def _find(self, way: tuple[Event, ...]) -> V:
        parts = self._make()
        for name, *arguments in way:
            getattr(parts, name)(*arguments)
            parts.settle()
        facts = parts.facts()
        parts.end()
        if facts not in self._views:
            self._views[facts] = self._view(*facts)
            self._ways[self._views[facts]] = way
        return self._views[facts]
