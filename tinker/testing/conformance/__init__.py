"""The conformance kit: small checks, each of one statement of the contract, run against any server
over HTTP.

``outcome`` has what a check may find, ``checks/`` the checks; ``connection`` sends requests and
reads them; ``context`` is what checks work with; ``report`` shows what a run found. A check is
a function under a decorator; checks run one after another, each within its own time.
"""

from __future__ import annotations

import traceback
import unittest
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from fnmatch import fnmatch
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs
from tinker_wire import CONTRACT_VERSION
from tinker_wire.operations import OPERATIONS

from tinker._http.responses import UNREACHABLE_HINT
from tinker.testing.conformance import outcome
from tinker.testing.conformance.connection import CheckDeadline, Connection, KitClock
from tinker.testing.conformance.context import CheckContext
from tinker.testing.conformance.outcome import KIT, Absent, Blocked, CheckEnd, Outcome, Report, Row

if TYPE_CHECKING:
    import httpx

Body: TypeAlias = "Callable[[CheckContext], None]"

#: The modules of checks, and their themes in the order of a run.
MODULES = ("service", "training", "sampling", "weights")
THEMES = (
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
    theme: str,
    core: bool = False,
    basis: bool = False,
    slow: bool = False,
    destructive: bool = False,
) -> Callable[[Body], Body]:
    """Register a function as the check of these operations of the contract (by operation id).

    The theme is part of its name.
    """
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
        name = f"{theme}.{body.__name__.removeprefix(theme + '_')}"
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
            key=lambda one: (not one.basis, THEMES.index(one.name.partition(".")[0])),
        )
    )


DEADLINE_SECONDS = 60.0
#: Slow checks wait for what a server may hold back: a poll up to 40 s, a missing number for some
#: minutes. What others rest on is asked for first, when servers load and compile.
SLOW_DEADLINE_SECONDS = 300.0
#: How many times as long as the longest basis before it a check may take: a slow server, or a full
#: one, is not a wrong one.
_PACE = 20


class Nonconformance(AssertionError):
    """A check found that the server contradicts the document, or differs from it where that was
    asked for.
    """


def check_ids(*, slow: bool = False, destructive: bool = False) -> tuple[str, ...]:
    """Return the names of the checks, in the order of a run.

    ``slow`` adds those that wait on purpose, minutes each on a server with usual settings;
    ``destructive`` those that take something from the user that was there before (they revoke the
    API key).
    """
    return tuple(
        one.name
        for one in all_checks()
        if (slow or not one.slow) and (destructive or not one.destructive)
    )


def verify(
    check_id: str,
    base_url: str,
    *,
    api_key: str | None = None,
    base_model: str | None = None,
    strict: bool = False,
    deadline_seconds: float | None = None,
    transport: httpx.BaseTransport | None = None,
) -> Row:
    """Run one check as a test: returns when it is supported, and skips the test where the server
    lacks the feature.

    Raises Nonconformance on a contradiction, with ``strict`` also where the server differs;
    unittest.SkipTest (which pytest knows) when it is absent; RuntimeError when the kit itself
    fails; KeyError for a name that no check has. ``base_model`` None takes the first one that the
    server offers for training. ``deadline_seconds`` None is 60 s, 300 s for slow checks, and longer
    on a slow server; the check ends by then.
    """
    found = {one.name: one for one in all_checks()}[check_id]
    with closing(
        Connection(base_url, api_key=api_key, base_model=base_model, transport=transport)
    ) as connection:
        row = run_check(found, connection, deadline_seconds)
    if not Report(server=base_url, contract=CONTRACT_VERSION, checks=(row,)).passed(strict=strict):
        raise Nonconformance(f"{row.check} ({row.statement}): {row.outcome}: {'; '.join(row.how)}")
    if row.blocked_by == KIT:
        raise RuntimeError(row.how[0])
    if row.outcome is Outcome.ABSENT:
        raise unittest.SkipTest("; ".join(row.how))
    return row


def run(
    base_url: str,
    *,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    base_model: str | None = None,
    only: Sequence[str] = ("*",),
    skip: Sequence[str] = (),
    slow: bool = False,
    destructive: bool = False,
    deadline_seconds: float | None = None,
    transport: httpx.BaseTransport | None = None,
    clock: KitClock | None = None,
    told: Callable[[Row], None] = lambda row: None,
    label: str = "",
) -> Report:
    """Run the checks whose names match one of the patterns in ``only`` and none in ``skip``, and
    report what each found.

    ``told`` is called after each check; ``label`` names the server in the report. Other arguments
    as those of :func:`verify` and :func:`check_ids`. Raises ConnectionError when nothing answers at
    the URL. Takes at most as long as the deadlines of its checks together.
    """
    chosen = [one for one in all_checks() if _has_name(one, only)]
    reasons = {
        one.name: "skipped"
        if _has_name(one, skip)
        else _reason_to_skip(one, slow=slow, destructive=destructive)
        for one in chosen
    }
    connection = Connection(
        base_url,
        api_key=api_key,
        headers=headers,
        base_model=base_model,
        transport=transport,
        clock=clock,
    )
    rows: list[Row] = []
    try:
        with closing(connection):
            _reach(connection)
            for one in chosen:
                if reasons[one.name] is None:
                    rows.append(run_check(one, connection, deadline_seconds))
                    told(rows[-1])
    except KeyboardInterrupt:  # what was found until then is told
        done = {row.check for row in rows}
        reasons |= {
            name: reason or "interrupted" for name, reason in reasons.items() if name not in done
        }
    left_out = [
        outcome.LeftOut(
            check=one.name, operations=one.operations, statement=one.statement, reason=reason
        )
        for one in chosen
        if (reason := reasons[one.name]) is not None
    ]
    return Report(
        server=base_url,
        contract=CONTRACT_VERSION,
        checks=tuple(rows),
        left_out=tuple(left_out),
        label=label,
    )


def _has_name(check: Check, patterns: Sequence[str]) -> bool:
    return any(fnmatch(check.name, pattern) for pattern in patterns)


def _reason_to_skip(check: Check, *, slow: bool, destructive: bool) -> str | None:
    return (
        "destructive"
        if check.destructive and not destructive
        else "slow"
        if check.slow and not slow
        else None
    )


def _reach(connection: Connection) -> None:
    try:
        connection.reach(30.0)
    except CheckEnd as error:
        raise ConnectionError(
            f"no server answers at {connection.base_url}: {error}. {UNREACHABLE_HINT}"
        ) from error


def run_check(check: Check, connection: Connection, deadline_seconds: float | None = None) -> Row:
    """Run one check on a connection that is open."""
    least = SLOW_DEADLINE_SECONDS if check.slow or check.basis else DEADLINE_SECONDS
    seconds = deadline_seconds or max(least, _PACE * connection.known.basis_seconds)
    context = CheckContext(
        connection, CheckDeadline(seconds, connection.clock), check=check.name, core=check.core
    )
    began = connection.clock.monotonic()
    end = _run_body(check, context)
    context.close(at_end=end is None)
    by = end.by if isinstance(end, Blocked) else check.name
    # A loss that is not reported says nothing against what needs only the logprobs.
    is_broken = (
        by not in (outcome.LIMITS, KIT)
        and (check.core or not isinstance(end, Absent))
        and type(end) is not outcome.Differs
    )
    if check.basis and end is not None and is_broken:
        connection.known.broken[check.name] = (by, str(end))
    elif check.basis and end is None:
        connection.known.basis_seconds = max(
            connection.known.basis_seconds, connection.clock.monotonic() - began
        )
    observations = (
        context.observations
        if end is None
        else [end.observation(is_core=check.core), *context.observations]
    )
    return Row(
        check=check.name,
        operations=check.operations,
        statement=check.statement,
        outcome=outcome.judge(end, observations),
        observations=tuple(observations),
        blocked_by=end.by if isinstance(end, Blocked) else None,
        seconds=round(connection.clock.monotonic() - began, 3),
    )


def _run_body(check: Check, context: CheckContext) -> CheckEnd | None:
    """Run the check; return why it ended early, if it did."""
    try:
        check.body(context)
    except CheckEnd as end:
        return end
    except Exception as error:  # noqa: BLE001 - any of the kit's own: it judges what servers answer before it uses it
        place = traceback.extract_tb(error.__traceback__)[-1]
        how = (
            f"the check fails in {Path(place.filename).name}, line {place.lineno}, after "
            f"{context.connection.last}; report it"
        )
        return Blocked(how, KIT)
    return None


__all__ = ["Nonconformance", "Outcome", "Report", "Row", "check_ids", "run", "verify"]
