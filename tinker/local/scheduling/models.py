"""The requests of one model, in the order of their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from weakref import WeakKeyDictionary

import attrs
from tinker_wire.api import training, weights

from tinker.local.errors import APIProblem, conflict
from tinker.local.scheduling.steps import EngineStep, OpenEngine, PrecedingFailure, log, to_failure
from tinker.local.storage.futures import FutureStore, RequestFailure, RequestResult
from tinker.local.storage.sessions import ModelTask, SmallLoss

#: Operations that change a run: a later request counts on them.
TRAINING = frozenset(one.__name__ for one in (training.forward_backward, training.optim_step, weights.load_weights))


@attrs.frozen
class _Failure:
    """The last request that changes the run and failed by itself."""

    number: int
    operation: str
    reason: str


class ModelQueue:
    """The requests of one model in the order of their numbers, from 0 (its creation) on.

    ``fault`` says why the last one failed; None if it did not.

    A number that is missing holds back the ones behind it for ``gap_seconds`` and is then given up. A small loss is computed
    together with those of its ``peers``, the queues of the engine's models.
    """

    def __init__(
        self, futures: FutureStore, gap_seconds: float, peers: WeakKeyDictionary[ModelQueue, None] | None = None
    ) -> None:
        self._futures, self._gap_seconds = futures, gap_seconds
        self._peers = WeakKeyDictionary[ModelQueue, None]() if peers is None else peers
        self._peers[self] = None
        self._next = 0
        self._waiting: dict[int, ModelTask | _Failure | None] = {}
        self._left_out: set[int] = set()
        self._gap_ends: float | None = None
        self._failure: RequestFailure | None = None
        self._last_step: EngineStep | None = None
        self._running: ModelTask | None = None
        self._last_failure: _Failure | None = None
        self._last_refusal: tuple[int, bytes, APIProblem] | None = None
        self.fault: str | None = None

    @property
    def is_fresh(self) -> bool:
        """Return whether nothing but the model's creation has been submitted."""
        return self._next <= 1 and not self._waiting.keys() - {0}

    def start_at(self, number: int) -> None:
        """Start at this number, as the requests before it are done."""
        self._next = number

    def assign_number(self, number: int | None) -> int:
        """Return the number, or the next free one where it is missing or 0."""
        return number or max(self._next, *(number + 1 for number in self._waiting), 1)

    def require_free(self, number: int, request: bytes = b"") -> None:
        """Raise APIProblem 409 if the number was skipped or used before; for the last refused request, its refusal again."""
        if self._last_refusal is not None and self._last_refusal[:2] == (number, request):
            raise self._last_refusal[2].with_traceback(None)  # its answer was lost
        if number < self._next or number in self._waiting:
            raise conflict(f"seq_id {number} is stale: the next one of this model is {self._next}", "seq_id_used")

    def put(self, number: int, work: ModelTask, now: float) -> None:
        """Queue a request under a free number."""
        self._waiting[number] = work
        self._left_out.discard(number)
        self._update_gap(now)

    def skip(self, number: int, now: float, operation: str = "", failure: RequestFailure | None = None) -> None:
        """Skip this number, whose request a proxy refused, or an earlier process ran, with this failure if it failed."""
        if number >= self._next and number not in self._waiting:
            self._waiting[number] = None if failure is None else _find_cause(number, operation, failure)
            self._update_gap(now)

    def leave_out(self, number: int) -> None:
        """Let a free number hold nothing back: a later request runs without it, unless it comes first."""
        self._left_out.add(number)

    def refuse(self, number: int, request: bytes, problem: APIProblem, now: float) -> None:
        """Skip this number, whose request was refused; ``request`` is its fingerprint."""
        if number >= self._next and number not in self._waiting:
            self._last_refusal = number, request, problem
        self.skip(number, now)

    def take(self, now: float) -> EngineStep | None:
        """Return the next step that may run now."""
        if self._gap_ends is not None and now >= self._gap_ends:
            self._next = min(self._waiting)
        while self._next in self._waiting:
            work = self._waiting.pop(self._next)
            self._next += 1
            self._gap_ends = None
            self._update_gap(now)
            if isinstance(work, _Failure):
                self._last_failure = work
            elif work is not None:
                self._choose(work)
                return partial(self._run, work) if work.small is None else self._join(work, work.small, now)
        return self._end() if self._last_step is not None else None

    def _choose(self, work: ModelTask) -> None:
        self._futures.choose(work.future)
        self._running = work

    def _join(self, first: ModelTask, small: SmallLoss, now: float) -> EngineStep:
        """Return the step of a small loss, with those of other models that come next there and have the same shape."""
        peers = [peer for peer in self._peers if peer is not self]
        ready = [(peer, work) for peer in peers if (work := peer._take_small(small.shape, now)) is not None]

        def run(open_engine: OpenEngine) -> None:
            parts = [(self, first), *ready]
            if ready:
                _expect([work for _, work in parts], open_engine)
            for queue, work in parts:
                queue._run(work, open_engine)
            if ready:
                open_engine().expect_losses([])

        return run

    def _take_small(self, shape: tuple[int, int], now: float) -> ModelTask | None:
        """Take the next request if it is a small loss of this shape."""
        work = self._waiting.get(self._next)
        if not isinstance(work, ModelTask) or work.small is None or work.small.shape != shape:
            return None
        del self._waiting[self._next]
        self._next += 1
        self._update_gap(now)
        self._choose(work)
        return work

    def _run(self, work: ModelTask, open_engine: OpenEngine) -> None:
        self._futures.start(work.future)
        try:
            outcome: RequestResult | RequestFailure = work.run(open_engine())
            self.fault = None
        except Exception as error:  # noqa: BLE001 - whatever an engine raises belongs to this request alone
            outcome = to_failure(error)
            self.fault = outcome.error
            self._last_failure = _find_cause(work.number, work.operation, outcome) or self._last_failure
        self._futures.resolve(work.future, outcome)

    def require_success(self) -> None:
        """Raise PrecedingFailure if the running request follows a failure that its client has not seen."""
        running, failure = self._running, self._last_failure
        if running is None or running.known_failure is None or failure is None:
            return
        if running.known_failure < failure.number < running.number:
            raise PrecedingFailure(failure.operation, failure.reason)

    def next_wake(self) -> float | None:
        """Return when a step may become ready by itself."""
        return self._gap_ends

    def close(self, failure: RequestFailure, last_step: EngineStep) -> None:
        """Run the requests that can run, fail the rest with ``failure``, then take the step ``last_step``."""
        self._failure, self._last_step = failure, last_step

    def _end(self) -> EngineStep | None:
        for work in self._waiting.values():
            if isinstance(work, ModelTask) and self._failure is not None:
                self._futures.resolve(work.future, self._failure)
        self._waiting.clear()
        self._gap_ends = None
        last, self._last_step = self._last_step, None
        return last

    def describe_gap(self) -> str | None:
        """Describe the number that every request here waits for; None when they do not."""
        if self._gap_ends is None:
            return None
        return f"waiting for the request with seq_id {self._next} of this model, which has not arrived"

    def _update_gap(self, now: float) -> None:
        while self._next in self._left_out and max(self._waiting, default=0) > self._next:
            self._left_out.remove(self._next)
            self._next += 1
        if not self._waiting or self._next in self._waiting:
            self._gap_ends = None
        elif self._gap_ends is None:
            self._gap_ends = now + self._gap_seconds


def _expect(tasks: Sequence[ModelTask], open_engine: OpenEngine) -> None:
    """Let the engine prepare small losses; whatever is wrong with one is found again, by itself."""
    try:
        engine = open_engine()
        engine.expect_losses([work.small.expect(engine) for work in tasks if work.small is not None])
    except Exception as error:  # noqa: BLE001
        log.debug("losses are computed one by one: %s", error)


def _find_cause(number: int, operation: str, failure: RequestFailure) -> _Failure | None:
    """Return the failure of a request if later ones depend on it: one that changes the run, and failed by itself."""
    is_cause = operation in TRAINING and failure.failed_operation is None
    return _Failure(number, operation, failure.error) if is_cause else None
