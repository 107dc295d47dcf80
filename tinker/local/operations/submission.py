"""Idempotent submission: a request of a model becomes one future by its number, in the order of the
numbers.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Callable, Generator
from functools import partial

import msgspec
import numpy as np
from tinker_wire import models
from tinker_wire.api import training, weights

from tinker._wire import proto
from tinker.local.call import APICall
from tinker.local.engines.protocol import Engine
from tinker.local.errors import APIProblem
from tinker.local.scheduling.queues import ModelQueue, log
from tinker.local.state import State
from tinker.local.storage.futures import RequestResult, ServerFuture, do_nothing, request_key
from tinker.local.storage.journal import FILE, FOLDER, JournalRequest
from tinker.local.storage.sessions import ModelRecord, ModelTask, SmallLoss
from tinker.local.storage.snapshots import KeptRuns
from tinker.types.model_input import EncodedTextChunk

#: Operations after which the weights of a run are others than before.
CHANGES = frozenset(
    one.__name__ for one in (training.create_model, training.optim_step, weights.load_weights)
)
_canonical_json = msgspec.json.Encoder(order="sorted")


def fingerprint(request: msgspec.Struct) -> bytes:
    """Compute a digest that is the same for the same request, however it was written."""
    content = _canonical_json.encode((type(request).__name__, request))
    return hashlib.blake2b(content, digest_size=16).digest()


def fingerprint_protobuf(call: proto.ForwardBackwardCall) -> bytes:
    """Compute a :func:`fingerprint` of a protobuf request, whose maps have no order."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(_canonical_json.encode((call.loss_fn, call.loss_fn_config, call.forward_only)))
    for datum in call.data:
        for chunk in datum.model_input.chunks:
            digest.update(
                chunk.array.data if isinstance(chunk, EncodedTextChunk) else repr(chunk).encode()
            )
        digest.update(repr((datum.model_input_spans, datum.loss_fn_input_spans)).encode())
        for name, tensor in sorted(datum.loss_fn_inputs.items()):
            indices = (tensor.sparse_crow_indices, tensor.sparse_col_indices)
            digest.update(_canonical_json.encode((name, tensor.dtype, tensor.shape, indices)))
            digest.update(np.ascontiguousarray(tensor.values).data)
    return digest.digest()


def write_down(
    state: State,
    call: APICall,
    subject: str,
    undo: Callable[[], object] = do_nothing,
    *,
    request_id: str | None = None,
    number: int | None = None,
) -> None:
    """Write a request about ``subject`` into the journal before anything is done that ``undo``
    cannot take back.

    Raises APIProblem 500 when it cannot be written, after ``undo``.
    """
    if state.repeating is not None or not state.journal.is_kept:
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
        # SQLite would go on writing
        if not (file := state.settings.data_dir / FOLDER / FILE).exists():
            raise sqlite3.OperationalError(
                f"{file} was removed while the server ran; start the server again"
            )
        state.journal.add_request(request)
    except sqlite3.Error as error:
        undo()
        log.error("cannot write the journal: %s; %s is refused", error, call.name)
        detail = (
            f"the server cannot write this request down ({error}), so it was not "
            "carried out; send it again"
        )
        raise APIProblem(500, detail, code="seq_id_free") from error


def enqueue_idempotent(
    state: State,
    call: APICall,
    model: ModelRecord,
    number: int,
    request_fingerprint: bytes,
    run: Callable[[Engine], RequestResult],
    *,
    operation: str | None = None,
    small: Callable[[], SmallLoss | None] = do_nothing,
    check: Callable[[], None] = do_nothing,
    prepare: Callable[[], None] = do_nothing,
    undo: Callable[[], None] = do_nothing,
) -> models.UntypedAPIFuture:
    """Queue request ``number`` of a model and return its future. ``operation`` is the call's where
    it is not another one.

    The same request again answers the same future; another one under its number is APIProblem 409.
    ``check``, which has no effects, and ``prepare`` are called for a new request only; when they
    raise APIProblem, the number counts as used up, and ``check`` refuses the same request again, in
    whatever form. A request that cannot be written down is refused, its number stays free, and
    ``undo`` takes back what ``prepare`` did. ``small`` returns how the request may share a pass
    with others.
    """
    state.require_open()
    operation = operation or call.name
    model.last_request_at = state.now()
    key = request_key(model.model_id, number)
    request_id = state.futures.find_request_id(key, request_fingerprint)
    if request_id is None:
        future = ServerFuture(
            key,
            request_fingerprint,
            span=model.session.new_span(operation, model.model_id),
            session=model.session,
            engine_model=model.engine_model,
            progress=model.queue.describe_gap,
        )
        request_id = state.futures.open(future).request_id
        is_ordered = state.settings.profile.ordered  # where it is not, numbers order nothing
        position = number if number == 0 or is_ordered else model.queue.assign_number(None)
        if key in (state.repeating or ()):
            run = _repeat(state, run)
        if state.journal.is_kept and operation in CHANGES:
            run = _keep_after(state.runs, model, number, future, run)
        with _forget_if_refused(state, future):
            _prepare(state, model.queue, position, request_fingerprint, check, prepare)
            known_failure = call.known_failure if is_ordered else None
            free = partial(_free, model.queue, position, known_failure, undo)
            write_down(state, call, model.model_id, free, request_id=request_id, number=number)
            model.queue.put(
                position,
                ModelTask(future, run, operation, number, known_failure, small()),
                state.clock(),
            )
    return models.UntypedAPIFuture(request_id=request_id, model_id=model.model_id)


def _free(
    queue: ModelQueue, number: int, known_failure: int | None, undo: Callable[[], None]
) -> None:
    """Take a request back that was not written down. A client that sends no ``known_failure`` does
    not use numbers again.
    """
    undo()
    if known_failure is None:
        queue.leave_out(number)


def _repeat(
    state: State, run: Callable[[Engine], RequestResult]
) -> Callable[[Engine], RequestResult]:
    """Return a run of a request that was carried out, and counted, before the server was killed."""

    def run_again(engine: Engine) -> RequestResult:
        with state.lock() as shared:
            usage = shared.usage
        with usage.repeating():
            return run(engine)

    return run_again


def _keep_after(
    runs: KeptRuns,
    model: ModelRecord,
    number: int,
    future: ServerFuture,
    run: Callable[[Engine], RequestResult],
) -> Callable[[Engine], RequestResult]:
    """Return a run of a request that changes weights, after which they are kept.

    Where they cannot be kept, the run continues: a server that is killed does the request again.
    The creation is not done again, because its weights may be random, so it fails.
    """

    def run_and_keep(engine: Engine) -> RequestResult:
        result = run(engine)
        try:
            runs.save(engine, model, number, future, result)
        except Exception as error:
            if number == 0:
                model.creation_error = str(error)
                runs.forget(model.model_id)
                raise
            log.error(
                "cannot keep the weights of %s after its request %d: %s",
                model.model_id,
                number,
                error,
            )
        return result

    return run_and_keep


@contextlib.contextmanager
def _forget_if_refused(state: State, future: ServerFuture) -> Generator[None]:
    """Forget the future of a request that is refused after all."""
    try:
        yield
    except APIProblem:
        state.futures.forget(future)
        raise
    finally:
        state.notify()


def _prepare(
    state: State,
    queue: ModelQueue,
    number: int,
    request: bytes,
    check: Callable[[], None],
    prepare: Callable[[], None],
) -> None:
    """Check a request before it is queued; the number of one that is refused is used up."""
    try:
        check()
        queue.require_free(number, request)
        prepare()
    except APIProblem as problem:
        queue.refuse(number, request, problem, state.clock())
        raise
