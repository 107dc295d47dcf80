"""How a server with a journal loses nothing when it is killed: when it starts again, it repeats the
requests in its journal.

A run begins again with the weights after its last step. Requests behind that step are repeated:
those that add to a gradient, because gradients are nowhere else, and those that have no result.
Everything else has its result, and is not done again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import msgspec
from tinker_wire import models
from tinker_wire.api import service, training, weights
from tinker_wire.operations import OPERATIONS

from tinker.local.call import KNOWN_FAILURE, APICall
from tinker.local.errors import APIProblem
from tinker.local.state import State
from tinker.local.storage.futures import RequestFailure, split_request_key
from tinker.local.storage.journal import REQUESTS, RESULTS, RUNS, JournalRequest, JournalResult
from tinker.local.storage.records import find_former_runs
from tinker.local.storage.sessions import MAX_CLIENTS, LoadWeights, ModelRecord

Handlers: TypeAlias = Mapping[str, Callable[[State, APICall], Awaitable[object]]]
log: logging.Logger = logging.getLogger("tinker.local")
_CREATIONS = {training.create_model.__name__, weights.load_weights.__name__}
_ALWAYS = {training.create_custom_loss.__name__, training.unload_model.__name__}


async def recover(state: State, handlers: Handlers) -> None:
    """Restore the state from the journal. Nothing else may use the state meanwhile."""
    if not state.journal.is_kept:
        return
    restart = _Restart(state, handlers)
    state.repeating = restart.again
    try:
        await restart.run()
    finally:
        state.repeating = None


class _Restart:
    """One recovery: the requests of the journal in their order, and ``again``, those repeated
    though they have a result.
    """

    def __init__(self, state: State, handlers: Handlers) -> None:
        self._state, self._handlers = state, handlers
        journal = state.journal
        self._requests = journal.read(REQUESTS)
        self._runs = {run.model_id: run for run in journal.read(RUNS)}
        results = journal.read(RESULTS)
        self._lost = self._find_lost(results)
        self._requests = [one for one in self._requests if one.subject not in self._lost]
        accepted = {one.request_id for one in self._requests}
        self._results: dict[str, JournalResult] = {}
        for result in results:
            if split_request_key(result.request_id)[0] in self._lost or not _is_readable(result):
                continue
            if result.request_id in accepted or self._is_final(result.request_id):
                self._results[result.request_id] = result
            else:
                journal.drop_result(result.request_id)
        self.again: frozenset[str] = frozenset(
            one.request_id
            for one in self._requests
            if one.request_id in self._results and self._must_repeat(one)
        )

    def _find_lost(self, results: list[JournalResult]) -> set[str]:
        """Return the runs of which something cannot be read; without it they would continue with
        other weights.
        """
        unreadable = {
            split_request_key(name)[0] for name in self._state.journal.unreadable
        } | self._state.journal.unreadable
        unreadable |= {
            split_request_key(one.request_id)[0] for one in results if not _is_readable(one)
        }
        unreadable |= {one.subject for one in self._requests if not self._can_repeat(one)}
        lost = {name for name in unreadable if ":train:" in name}
        for name in sorted(lost):
            log.error(
                "the run %s is lost: what the journal says of it cannot be "
                "read; its checkpoints stay",
                name,
            )
        return lost

    def _can_repeat(self, request: JournalRequest) -> bool:
        try:
            _to_call(request)
        except (KeyError, ValueError):
            return False
        return request.operation in self._handlers

    async def run(self) -> None:
        """Restore results, then repeat or pass over each request."""
        for name in self.again:
            del self._results[name]
        for result in self._results.values():
            self._state.futures.restore(result.request_id, result.fingerprint, result.outcome)
        for request in self._requests:
            try:
                await self._repeat(request)
            except (APIProblem, KeyError, ValueError) as problem:
                log.warning(
                    "%s of %s could not be repeated: %s",
                    request.operation,
                    request.subject,
                    problem,
                )
        self._announce_samples()
        self._forget_others()
        if self._requests:
            log.info("restored %d runs from before the restart", len(self._runs))

    def _forget_others(self) -> None:
        """Remove the folders of runs that are gone, and find their curves.

        A run whose base model is not served now is not gone: the next server may have it.
        """
        with self._state.lock() as shared:
            live = {model.model_id for model in shared.store.models()}
            shared.former_runs[:] = find_former_runs(self._state.journal, live)
        self._state.runs.forget_others(live | self._runs.keys() | self._lost)

    def _is_final(self, request_id: str) -> bool:
        """Return whether a result without its request counts; of a run only up to its last step:
        later ones were refused.
        """
        subject, number = split_request_key(request_id)
        return ":train:" not in subject or (
            number is not None and not self._is_behind(subject, number)
        )

    def _is_behind(self, model_id: str, number: int) -> bool:
        """Return whether a request comes after the last saved step of a run."""
        return model_id not in self._runs or number > self._runs[model_id].number

    def _must_repeat(self, request: JournalRequest) -> bool:
        """Return whether a request with a result is repeated, because its gradient or the server's
        state is lost.
        """
        if request.operation in _ALWAYS:
            return True
        is_gradient = (
            request.operation == training.forward_backward.__name__ and request.number is not None
        )
        if not is_gradient or request.request_id is None or request.number is None:
            return False
        return (
            self._is_behind(request.subject, request.number)
            and not self._results[request.request_id].is_failure
        )

    async def _repeat(self, request: JournalRequest) -> None:
        if request.operation == service.create_session.__name__:
            body = msgspec.json.decode(request.content, type=models.CreateSessionRequest)
            with self._state.lock() as shared:
                shared.store.restore_session(request.subject, body, request.created_at)
            return
        result = self._results.get(request.request_id or "")
        is_creation = request.operation in _CREATIONS and request.number == 0
        if result is None or is_creation or request.number is None:
            await self._handlers[request.operation](self._state, _to_call(request))
        with self._state.lock() as shared:
            model = shared.store.find_model(request.subject)
        if result is None or model is None or request.number is None:
            return
        if is_creation:
            await self._restore_run(model, result)
        else:
            self._pass_over(request, request.number, result, model)

    async def _restore_run(self, model: ModelRecord, created: JournalResult) -> None:
        """Load the saved weights of a run, or set the creation error with which its
        requests fail.
        """
        outcome, run = created.outcome, self._runs.get(model.model_id)
        model.creation_error = (
            outcome.error if isinstance(outcome, RequestFailure) else await self._load(model)
        )
        with self._state.lock():
            model.queue.start_at(1 if run is None else run.number + 1)

    async def _load(self, model: ModelRecord) -> str | None:
        """Load the weights of a run; return why that is impossible."""
        run = self._runs.get(model.model_id)
        if run is None:
            return "its weights are lost"
        try:
            await self._state.run_in_engine(
                model.engine_model, lambda engine: self._state.runs.load(engine, model, run)
            )
        except APIProblem as problem:
            log.warning(
                "the weights of %s could not be restored: %s", model.model_id, problem.detail
            )
            return f"its weights are lost: {problem.detail}"
        return None

    def _pass_over(
        self, request: JournalRequest, number: int, result: JournalResult, model: ModelRecord
    ) -> None:
        """Leave out a request that is done; the sampling session that it made is opened again."""
        outcome = result.outcome
        with self._state.lock():
            failure = outcome if isinstance(outcome, RequestFailure) else None
            model.queue.skip(number, self._state.clock(), request.operation, failure)
        if (
            isinstance(outcome, models.SaveWeightsForSamplerResponseInternal)
            and outcome.sampling_session_id is not None
        ):
            body = msgspec.json.decode(request.content, type=models.SaveWeightsForSamplerRequest)
            kept = self._state.snapshots.restore(model.model_id, str(number))
            if body.sampling_session_seq_id is not None:
                self._restore_sampler(
                    model, body.sampling_session_seq_id, kept, is_inflight=body.kind == "inflight"
                )

    def _restore_sampler(
        self, model: ModelRecord, number: int, kept: LoadWeights, *, is_inflight: bool
    ) -> None:
        if is_inflight:
            model.inflight = kept
        with self._state.lock() as shared:
            sampler = shared.store.new_sampler(
                model.session, number, model.base_model, model.engine_model
            )
            sampler.requested_name, sampler.weights = (
                model.requested_name,
                model.inflight_weights if is_inflight else kept,
            )
            shared.store.add_sampler(number, sampler)

    def _announce_samples(self) -> None:
        """Announce the samples that their clients have not fetched yet; cursors of earlier
        processes are behind all of them.
        """
        with self._state.lock() as shared:
            for result in self._results.values():
                sampler_id, number = split_request_key(result.request_id)
                if ":sample:" in sampler_id and number is not None:
                    log_of_client = shared.store.sampler(sampler_id).completion_log(
                        number // MAX_CLIENTS
                    )
                    log_of_client.add(result.request_id, failed=result.is_failure)


def _is_readable(result: JournalResult) -> bool:
    try:
        result.outcome  # noqa: B018
    except Exception:  # noqa: BLE001 - whatever another version, or a damaged file, has put there
        return False
    return True


def _to_call(request: JournalRequest) -> APICall:
    known = {} if request.known_failure is None else {KNOWN_FAILURE: str(request.known_failure)}
    return APICall(
        operation=OPERATIONS[request.operation],
        path=msgspec.json.decode(request.path, type=dict[str, str]),
        headers={"content-type": request.content_type, **known},
        content=request.content,
    )
