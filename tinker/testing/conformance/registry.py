"""The checks: functions under a decorator. Module and function name a check, its docstring states
what must hold.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

import attrs
from tinker_wire.operations import OPERATIONS

if TYPE_CHECKING:
    from tinker.testing.conformance.context import CheckContext

Body: TypeAlias = "Callable[[CheckContext], None]"

#: The modules of checks in the order of a run.
MODULES = (
    "service",
    "sessions",
    "training",
    "losses",
    "wires",
    "sequence",
    "futures",
    "sampling",
    "weights",
    "uploads",
    "errors",
    "admin",
)


@attrs.frozen(kw_only=True)
class Check:
    """One check. ``operations`` is what it is about, which others it needs is not listed;
    ``statement`` is what must hold.

    ``core``: no server may lack it, so a refusal is a contradiction. ``basis``: others rest on it,
    so it runs before them, and where it ends early they are blocked by it. ``slow``: waits on
    purpose, for as long as a server may hold something back. ``destructive``: takes something from
    the user that was there before.
    """

    name: str
    operations: tuple[str, ...]
    statement: str
    body: Body = attrs.field(repr=False)
    core: bool = False
    basis: bool = False
    slow: bool = False
    destructive: bool = False

    def __str__(self) -> str:
        return self.name


_registered: dict[str, Check] = {}


def check(
    *operations: str,
    core: bool = False,
    basis: bool = False,
    slow: bool = False,
    destructive: bool = False,
) -> Callable[[Body], Body]:
    """Register a function as the check of these operations of the contract (by operation id)."""
    unknown = set(operations) - OPERATIONS.keys()
    if unknown or not operations:
        raise ValueError(
            "a check names operations of the contract; it has no "
            f"{', '.join(sorted(unknown)) or 'nothing'}"
        )

    make = partial(
        Check, operations=operations, core=core, basis=basis, slow=slow, destructive=destructive
    )

    def register(body: Body) -> Body:
        name = f"{body.__module__.rpartition('.')[2]}.{body.__name__}"
        _registered[name] = make(
            name=name, statement=" ".join((body.__doc__ or "").split()), body=body
        )
        return body

    return register


@cache
def all_checks() -> tuple[Check, ...]:
    """Return every check, in the order of a run: first those on which others rest."""
    for module in MODULES:
        import_module(f"{__package__}.checks.{module}")
    return tuple(
        sorted(
            _registered.values(),
            key=lambda one: (not one.basis, MODULES.index(one.name.partition(".")[0])),
        )
    )
