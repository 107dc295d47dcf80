"""How a server with a journal loses nothing when it is killed: it writes requests down, and repeats them when it starts.

A run begins again with the weights after its last step. Requests behind that step are repeated: those that add to a gradient,
because gradients are nowhere else, and those that have no result. Everything else has its result, and is not done again.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from tinker_wire import models
from tinker_wire.api import service, training, weights
from tinker_wire.operations import OPERATIONS

from tinker.local.call import KNOWN_FAILURE, APICall
from tinker.local.engines import Engine
from tinker.local.errors import APIProblem
from tinker.local.storage.futures import Completion, RequestFailure, split_request_key
from tinker.local.storage.journal import Journal, JournalRequest, JournalResult, JournalRun
from tinker.local.storage.sessions import MAX_CLIENTS, LoadWeights, ModelRecord

if TYPE_CHECKING:
    from tinker.local.state import State

Handlers: TypeAlias = Mapping[str, Callable[["State", APICall], Awaitable[object]]]
log: logging.Logger = logging.getLogger("tinker.local")
_GRADIENT = training.forward_backward.__name__
_CREATIONS = {training.create_model.__name__, weights.load_weights.__name__}
_SAMPLER_SAVE = weights.save_weights_for_sampler.__name__
_SESSION = service.create_session.__name__
_ALWAYS = {training.create_custom_loss.__name__, training.unload_model.__name__}


def do_nothing() -> None:
    """Do nothing."""


def write_down(
    state: State,
    call: APICall,
    subject: str,
    undo: Callable[[], object] = do_nothing,
    *,
    request_id: str | None = None,
    number: int | None = None,
) -> None:
    """Write down a request about ``subject``, where there is a journal, before anything is done that ``undo`` cannot take back.

    Raises APIProblem 500 when it cannot be written down, after ``undo``. Call with the state's lock held.
    """
    if state.journal is None or state.is_recovering:
        return
    request = JournalRequest(
        subject=subject,
        operation=call.name,
        path=msgspec.json.encode(call.path),
        content_type=call.headers.get("content-type", ""),
        content=call.content,
        created_at=state.now(),
        request_id=request_id,
        number=number,
        known_failure=call.known_failure,
    )
    try:
        state.journal.add_request(request)
    except sqlite3.Error as error:
        undo()
        log.error("cannot write the journal: %s; %s is refused", error, call.name)
        detail = f"the server cannot write this request down ({error}), so it was not carried out; send it again"
        raise APIProblem(500, detail) from error


async def recover(state: State, handlers: Handlers) -> None:
    """Bring back what the journal holds. Nothing else may use the state meanwhile."""
    if state.journal is None:
        return
    recovery = _Restart(state, handlers, state.journal)
    state.is_recovering = True
    try:
        await recovery.run()
    finally:
        state.is_recovering, state.repeated = False, set()


class _Restart:
    def __init__(self, state: State, handlers: Handlers, journal: Journal) -> None:
        self._state, self._handlers = state, handlers
        self._requests = journal.requests()
        self._runs = journal.runs()
        self._counts = journal.completion_counts()
        accepted = {one.request_id for one in self._requests}
        results = {one.request_id: one for one in journal.results()}
        for name in [name for name in results if name not in accepted and not self._is_kept(name)]:
            journal.drop_result(name)
            del results[name]
        again = {one.request_id for one in self._requests if self._must_run(one, results)}
        self._results = {name: one for name, one in results.items() if name not in again}
        state.repeated = {name for name in results if name in again}

    async def run(self) -> None:
        for result in self._results.values():
            self._state.futures.restore(result.request_id, result.fingerprint, result.outcome)
        for request in self._requests:
            try:
                await self._repeat(request)
            except APIProblem as problem:
                log.warning("%s of %s could not be repeated: %s", request.operation, request.subject, problem.detail)
        self._restore_completions()
        self._forget_others()
        if self._requests:
            log.info("restored %d runs from before the restart", len(self._runs))

    def _forget_others(self) -> None:
        """Remove the folders of runs that are gone, and find their curves.

        A run whose base model is not served now is not gone: the next server may have it.
        """
        live = {model.model_id for model in self._state.store.models()}
        if self._state.runs is not None:
            self._state.runs.forget_others(live | self._runs.keys())
        if self._state.ledger is not None:
            self._state.former_runs = self._state.ledger.former_runs(live)

    def _is_kept(self, request_id: str) -> bool:
        """Return whether a result without its request counts; of a run only up to its last step: later ones were refused."""
        subject, number = split_request_key(request_id)
        run = self._runs.get(subject)
        return ":train:" not in subject or (run is not None and number is not None and number <= run.number)

    def _must_run(self, request: JournalRequest, results: Mapping[str, JournalResult]) -> bool:
        """Return whether a request is run again though it has a result: its gradient is lost, or the server's own knowledge."""
        if request.operation in _ALWAYS:
            return True
        run = self._runs.get(request.subject)
        result = results.get(request.request_id or "")
        is_behind = request.number is not None and (run is None or request.number > run.number)
        return request.operation == _GRADIENT and is_behind and result is not None and not _is_failure(result)

    async def _repeat(self, request: JournalRequest) -> None:
        if request.operation == _SESSION:
            self._restore_session(request)
            return
        result = self._results.get(request.request_id or "")
        is_creation = request.operation in _CREATIONS and request.number == 0
        if result is None or is_creation or request.number is None:
            await self._handlers[request.operation](self._state, _to_call(request))
        model = self._state.store.find_model(request.subject)
        if result is None or model is None:
            return
        if is_creation:
            await self._restore_run(model, result)
        else:
            await self._pass_over(request, result, model)

    def _restore_session(self, request: JournalRequest) -> None:
        body = msgspec.json.decode(request.content, type=models.CreateSessionRequest)
        with self._state.lock:
            self._state.store.restore_session(request.subject, body, request.created_at)

    async def _restore_run(self, model: ModelRecord, created: JournalResult) -> None:
        """Give a run the weights that are kept, or the error of its creation, with which its requests fail."""
        run = self._runs.get(model.model_id)
        if isinstance(created.outcome, RequestFailure):
            model.creation_error = created.outcome.error
        else:
            model.creation_error = await self._load(model, run)
        with self._state.lock:
            model.queue.start_at(1 if run is None else run.number + 1)

    async def _load(self, model: ModelRecord, run: JournalRun | None) -> str | None:
        """Load the weights of a run; return why that is impossible."""
        runs = self._state.runs
        if run is None or runs is None:
            return "its weights are lost"
        try:
            await self._state.run_in_engine(model.engine_model, lambda engine: runs.load(engine, model, run))
        except APIProblem as problem:
            log.warning("the weights of %s could not be restored: %s", model.model_id, problem.detail)
            return f"its weights are lost: {problem.detail}"
        return None

    async def _pass_over(self, request: JournalRequest, result: JournalResult, model: ModelRecord) -> None:
        """Leave out a request that is done; the sampling session that it made is opened again."""
        assert request.number is not None
        with self._state.lock:
            model.queue.skip(request.number, self._state.clock())
            if isinstance(result.outcome, RequestFailure):
                model.queue.note_failure(request.number, request.operation, result.outcome)
        if request.operation == _SAMPLER_SAVE and not _is_failure(result):
            body = msgspec.json.decode(request.content, type=models.SaveWeightsForSamplerRequest)
            if body.path is None and body.sampling_session_seq_id is not None:
                kept = self._state.snapshots.restore(model.model_id, str(request.number))
                await self._restore_sampler(model, body.sampling_session_seq_id, kept, is_inflight=body.kind == "inflight")

    async def _restore_sampler(self, model: ModelRecord, number: int, kept: LoadWeights, *, is_inflight: bool) -> None:
        state = self._state
        if is_inflight:

            def load(engine: Engine) -> None:
                model.inflight = kept(engine)

            await state.run_in_engine(model.engine_model, load)
        with state.lock:
            weights = model.inflight_weights if is_inflight else kept
            sampler = state.store.new_sampler(model.session, number, model.base_model, model.engine_model, None, weights)
            sampler.requested_name = model.requested_name
            state.store.add_sampler(number, sampler)

    def _restore_completions(self) -> None:
        """Give the clients of samplers their logs, in which they go on where they were."""
        found: dict[str, list[JournalResult]] = defaultdict(list)
        for result in self._results.values():
            sampler_id, number = split_request_key(result.request_id)
            if ":sample:" in sampler_id and number is not None:
                found[f"{sampler_id}:{number // MAX_CLIENTS}"].append(result)
        with self._state.lock:
            for name in found.keys() | self._counts.keys():
                self._restore_log(name, found[name])

    def _restore_log(self, name: str, results: list[JournalResult]) -> None:
        sampler_id, _, client = name.rpartition(":")
        completion_log = self._state.store.sampler(sampler_id).completion_log(int(client))
        known = sorted((one for one in results if one.completion is not None), key=lambda one: one.completion or 0)
        completion_log.restore(self._counts.get(name, 0), [_to_completion(one) for one in known])
        for one in results:
            if one.completion is None:
                completion_log.add(one.request_id, failed=_is_failure(one))


def _to_call(request: JournalRequest) -> APICall:
    known = {} if request.known_failure is None else {KNOWN_FAILURE: str(request.known_failure)}
    return APICall(
        operation=OPERATIONS[request.operation],
        path=msgspec.json.decode(request.path, type=dict[str, str]),
        headers={"content-type": request.content_type, **known},
        content=request.content,
    )


def _to_completion(result: JournalResult) -> Completion:
    return Completion(result.completion or 0, result.request_id, _is_failure(result))


def _is_failure(result: JournalResult) -> bool:
    return isinstance(result.outcome, RequestFailure)
