"""What a program has called, what it has received, and what that says about the run; judged by the
invariants of the model.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import tinker
from simulation.effects import Effects
from tinker.futures import failure_of

CHANGES = "GSL"
SHARES = 8  # tags of one call: each request of a batch has one


class Violation(AssertionError):
    """An invariant does not hold."""


@functools.lru_cache(10_000)
def datum(tag: int) -> tinker.Datum:
    """Return a datum whose first tokens spell its tag, the same each time."""
    tokens = [tag // 1000, tag % 1000, 3]
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens),
        loss_fn_inputs={"target_tokens": [*tokens[1:], 3], "weights": [1.0] * len(tokens)},  # type: ignore[dict-item]
    )


class Unknown:
    """The future of a call that was interrupted, and may have been made or not."""

    operation = "unknown"

    def done(self) -> bool:
        return True

    def cancelled(self) -> bool:
        return True

    async def wait(self) -> None:
        return


class Call:
    """One call of a run: ``kind`` is G(radient), S(tep), L(oad) or V (what changes nothing). A loss
    has ``outputs``.
    """

    def __init__(
        self,
        index: int,
        kind: str,
        future: Any,
        seen: frozenset[int | str],
        path: str = "",
        outputs: int = 0,
    ) -> None:
        self.index, self.kind, self.future, self.seen, self.path = index, kind, future, seen, path
        self.outputs = outputs
        self.is_cancelled = False
        self.is_received = False

    @property
    def error(self) -> BaseException | None:
        return (
            failure_of(self.future) if self.future.done() and not self.future.cancelled() else None
        )

    @property
    def has_succeeded(self) -> bool:
        return self.future.done() and not self.future.cancelled() and self.error is None

    @property
    def is_stopped(self) -> bool:
        return isinstance(self.error, tinker.PrecedingRequestFailed)

    @property
    def cause(self) -> str:
        """Return the failure that it is due to: its own, or that of one that stopped it, which may
        have been cancelled.
        """
        error = self.error.__cause__ if self.is_stopped and self.error is not None else self.error
        return f"{type(error).__name__}: {error}"

    @property
    def is_unknown(self) -> bool:
        """Return whether it ended without its result, so that nobody knows why it has no effect:
        perhaps an earlier failure.
        """
        return self.error is not None and (
            isinstance(self.error, tinker.RefusedResultError) or not self.failed_on_server
        )

    @property
    def failed_on_server(self) -> bool:
        """Return whether the server has run it and it failed, or did not run it because of a
        failure before it.
        """
        return isinstance(self.error, tinker.RequestFailedError) or (
            self.is_stopped and "was not run" in str(self.error)
        )


class Run:
    """One training client and its calls, in order."""

    def __init__(self, client: Any, service: Any) -> None:
        self.client, self.service = client, service
        self.calls: list[Call] = []
        # numbers of calls, and what their failures were due to
        self.received: frozenset[int | str] = frozenset()

    @property
    def model_id(self) -> str | None:
        model = self.client._run.model
        return None if model is None else model.model_id

    @property
    def next_tag(self) -> int:
        """Return the tag of the next call."""
        return SHARES * (len(self.calls) + 1)

    def add(self, kind: str, future: Any, path: str = "", *, outputs: int = 0) -> Call:
        """Note a call. Failures that were received before it are known."""
        call = Call(len(self.calls), kind, future, self.received, path, outputs)
        self.calls.append(call)
        return call

    def receive(self, call: Call) -> None:
        """Receive the outcome of a call, as `result()` does."""
        if (
            call.future.done()
            and not call.future.cancelled()
            and call.future.exception(0) is not None
        ):
            call.is_received = True
            self.received |= {call.index, call.cause, *self._root(call)}

    def _root(self, call: Call) -> Iterator[int]:
        """Return the failure that stopped a call, by what its error says; the first of several that
        read the same.
        """
        error = call.error
        if isinstance(error, tinker.PrecedingRequestFailed):
            said = error.failed_operation, type(error.__cause__), str(error.__cause__)
            for earlier in self.calls[: call.index]:
                is_it = (earlier.future.operation, type(earlier.error), str(earlier.error)) == said
                if is_it and earlier.index not in call.seen:
                    yield earlier.index
                    return

    def causes(self, call: Call) -> frozenset[int | str]:
        """Return the failures of which one is known to everybody who knows why a call has no
        effect.
        """
        found: set[int | str] = {call.index, call.cause, *self._root(call)}
        if call.is_unknown or (call.is_stopped and call.failed_on_server):
            earlier = self.calls[: call.index]
            found |= {one.index for one in earlier if one.failed_on_server or one.is_unknown}
        return frozenset(found)

    def describe(self, effects: Effects | None) -> str:
        """Return every call with its outcome, for the trace."""
        lines = [
            (
                f"{one.index}{one.kind} {one.future!r} {sorted(map(str, one.seen))[:3]} "
                f"{str(one.error)[:90]}"
            )
            for one in self.calls
        ]
        return "\n  ".join([f"{self.model_id}: {effects}", *lines])

    # ------------------------------------------------------------------------------- what must hold

    def check_ended(self) -> None:
        """Every future ends, with the whole result or an error of this package."""
        for call in self.calls:
            if not call.future.done():
                raise Violation(f"every future ends: {call.future!r} does not")
            if call.error is not None and not isinstance(
                call.error, tinker.TinkerError | ValueError
            ):
                raise Violation(f"every error is typed: {call.error!r}")
            if call.outputs and call.has_succeeded:
                result = call.future.result(0)
                if len(result.loss_fn_outputs) != call.outputs:
                    raise Violation(f"results are whole: {call.future!r} has {str(result)[:200]}")

    def check_stops(self) -> None:
        """A call is not sent only if its caller did not know of a failure before it."""
        failures: list[set[int]] = []  # what each earlier failure may be known by
        for call in self.calls:
            if (
                call.is_stopped
                and "was not sent" in str(call.error)
                and all(call.seen & known_by for known_by in failures)
            ):
                raise Violation(
                    f"a call behind known failures is sent: call {call.index}: {call.error}"
                )
            if call.error is not None or call.future.cancelled():
                failures.append({call.index, *self._root(call)})

    def check_effects(self, effects: Effects) -> None:
        """Compare the calls with what took effect on the run, which still lives."""
        loads = [call for call in self.calls if call.kind == "L"]
        if any(not call.has_succeeded and not call.is_stopped for call in loads):
            return  # whether it has taken effect is unknown
        begin = max((call.index + 1 for call in loads if call.has_succeeded), default=0)
        applied = [number // SHARES - 1 for _, number in effects.tags]
        if (
            applied != sorted(applied)
            or len(set(effects.tags)) != len(effects.tags)
            or min(applied, default=begin) < begin
        ):
            raise Violation(f"requests take effect once and in order: {effects.tags}, from {begin}")
        self._check_successes(begin, set(applied))
        self._check_nothing_missing(begin, set(applied))

    def _check_successes(self, begin: int, applied: set[int]) -> None:
        for call in self.calls[begin:]:
            if call.kind in "GS" and call.has_succeeded and call.index not in applied:
                raise Violation(
                    f"success has taken effect: call {call.index} ({call.kind}) has not"
                )

    def _check_nothing_missing(self, begin: int, applied: set[int]) -> None:
        last = max(applied, default=0)
        missing = [
            call
            for call in self.calls[begin:last]
            if call.kind in CHANGES and call.index not in applied
        ]
        for call in missing:
            causes = frozenset[int | str]() if call.future.cancelled() else self.causes(call)
            for later in (self.calls[index] for index in applied if index > call.index and causes):
                if not causes & later.seen:
                    rule = (
                        "a step has its gradient"
                        if later.kind == "S" and call.kind == "G"
                        else "a failure is known first"
                    )
                    raise Violation(
                        f"{rule}: call {later.index} took effect "
                        f"without call {call.index}: {call.error!r}"
                    )
