"""Objects as a value, so that every way on from it can be tried."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

Event: TypeAlias = tuple[Any, ...]
V = TypeVar("V", bound=Hashable)


class Parts(Protocol[V]):
    """What events happen to; its methods have their names."""

    def facts(self) -> tuple[Any, ...]:
        """Return the fields of a view, which decide what every later event leads to."""
        ...

    def settle(self) -> None:
        """Go on until nothing happens without another event."""
        ...

    def end(self) -> None:
        """Leave nothing behind."""
        ...


class Automaton(Generic[V]):
    """Every view of some parts is one object. They are made anew with each new event, and
    everything happens to them again that has led to the view.
    """

    def __init__(self, make: Callable[[], Parts[V]], view: Callable[..., V]) -> None:
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
