"""What handlers share: submission, descriptions, names, inputs and streams."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from functools import partial
from pathlib import Path

import attrs
import msgspec
import numpy as np
from tinker_wire import models
from tinker_wire.api import training, weights

from tinker._wire import json, proto
from tinker.local.call import APICall, APIProblem
from tinker.local.engines import PACKAGED_FOLDER, TOY_MODEL, explain_absence
from tinker.local.engines.protocol import (
    Engine,
    EngineError,
    EngineImage,
    ImageReader,
    InputReader,
    Int32,
    PlacedImage,
)
from tinker.local.scheduling import ModelQueue, log
from tinker.local.state import State
from tinker.local.storage import OWNER, CheckpointKind, CheckpointRecord, to_utc
from tinker.local.storage.futures import (
    FILE,
    FOLDER,
    JournalRequest,
    Notifier,
    RequestFailure,
    RequestOutcome,
    RequestResult,
    ServerFuture,
    do_nothing,
    request_key,
)
from tinker.local.storage.sessions import KeptRuns, ModelRecord, ModelTask, SessionRecord, SmallLoss
from tinker.types.model_input import (
    EncodedTextChunk,
    ImageAssetPointerChunk,
    ImageChunk,
    ModelInput,
)
from tinker.types.params import ParsedCheckpointTinkerPath
from tinker.types.results import SampleResponse
from tinker_records import find_closest

PACKAGED_TOKENIZER = "tinker/babble"  # every client of this package has it
MAX_LOGGED_NAMES = 1000  # names that are not the model's; those beyond are not logged


def choose_engine_for(state: State, engines: Sequence[Engine], name: str) -> tuple[Engine, str]:
    """Return the engine for a client's ``name``, and the model's name here. APIProblem 400 for one
    that is not offered.
    """
    for engine in engines:
        if name == engine.base_model or name in engine.aliases:
            return engine, engine.base_model
    if not state.settings.any_base_model:
        offered = f"base model {name!r} is not offered; this server has {join_names(engines)}"
        raise APIProblem(
            400,
            offered + (explain_absence(name) or _suggest(name, engines)),
            code="base_model_not_offered",
        )
    warning = other_names_warning(engines)
    if (
        warning
        and name not in state.other_model_names
        and len(state.other_model_names) < MAX_LOGGED_NAMES
    ):
        state.other_model_names.add(name)
        log.warning("a client requested the model %r: %s", name, warning)
    return engines[0], name


def _suggest(name: str, engines: Sequence[Engine]) -> str:
    """Return the end of a refusal: the name that was probably meant, or how to serve the model of
    another owner.
    """
    names = [engine.base_model for engine in engines]
    if len(names) > 1 and (closest := find_closest(name, names)):
        return f"; did you mean {closest!r}?"
    owner, slash, rest = name.partition("/")
    if not (owner and slash) or "/" in rest or owner in {one.partition("/")[0] for one in names}:
        return ""
    return f"; to serve it: tinker serve --model {name}, or base_url='local://{name}'"


def find_engine(engines: Sequence[Engine], engine_model: str) -> Engine:
    """Return the engine that goes by this name. Raises EngineError if there is none."""
    for engine in engines:
        if engine.base_model == engine_model:
            return engine
    raise EngineError(f"this server has {join_names(engines)}, not {engine_model!r}")


def join_names(engines: Sequence[Engine]) -> str:
    """Return the names of the models as a refusal lists them."""
    return ", ".join(repr(engine.base_model) for engine in engines)


def other_names_warning(engines: Sequence[Engine]) -> str | None:
    """Return the warning of a server that serves its model under any name; None for the toy, whose
    text means nothing.
    """
    if engines[0].base_model == TOY_MODEL:
        return None
    names = "every name" if len(engines) == 1 else f"every name but {join_names(engines[1:])}"
    return (
        f"this server serves {engines[0].base_model!r} under {names}; use the tokenizer that "
        "get_tokenizer() gives, "
        "as token ids of another model's tokenizer mean nothing here or do not exist"
    )


def tokenizer_for(call: APICall, engine: Engine) -> str:
    """Return the name by which this client can load the tokenizer, or a text that says that it
    cannot.
    """
    name = engine.tokenizer_id
    if not Path(name).is_dir():
        return name
    if call.is_local_client and ":" not in name:  # clients take what follows a colon for a revision
        return name
    if Path(name) == PACKAGED_FOLDER:
        return PACKAGED_TOKENIZER
    return f"{engine.base_model.replace(':', '_')} (a folder of the server)"


def visible_name(call: APICall, name: str, requested_name: str | None) -> str:
    """Return the base model's name for an answer to a client that asked for it
    under another name.
    """
    return requested_name if requested_name is not None and call.is_local_client else name


def public_checkpoint(record: CheckpointRecord) -> models.Checkpoint:
    """Describe a checkpoint to clients."""
    return models.Checkpoint(
        checkpoint_id=record.checkpoint_id,
        checkpoint_type=ParsedCheckpointTinkerPath.from_tinker_path(record.path).checkpoint_type,
        time=to_utc(record.created_at),
        tinker_path=record.path,
        size_bytes=record.nbytes,
        public=record.public,
        user_metadata=to_string_map(record.user_metadata),
        expires_at=None if record.expires_at is None else to_utc(record.expires_at),
        base_model=record.base_model,
    )


def to_string_map(metadata: models.Metadata | None) -> models.StringMap | None:
    """Return metadata as answers carry it: values that are not strings as JSON."""
    if metadata is None:
        return None
    return {
        key: v if isinstance(v, str) else msgspec.json.encode(v).decode()
        for key, v in metadata.items()
    }


def _group_by_run(records: Sequence[CheckpointRecord]) -> dict[str, list[CheckpointRecord]]:
    """Group checkpoints by their run, in the order given."""
    found: dict[str, list[CheckpointRecord]] = {}
    for record in records:
        found.setdefault(record.training_run_id, []).append(record)
    return found


def list_runs(state: State, project_id: str | None) -> list[models.TrainingRun]:
    """List all runs, the newest first."""
    checkpoints = _group_by_run(state.checkpoints.list())
    with state.lock() as shared:
        known = {model.model_id: model for model in shared.store.models()}
    runs = [
        describe_model(model, checkpoints.get(model.model_id, []))
        for model in known.values()
        if project_id in (None, model.session.project_id)
    ]
    runs += [
        describe_checkpoints(records)
        for run, records in checkpoints.items()
        if run not in known and project_id in (None, records[0].project_id)
    ]
    return sorted(runs, key=lambda run: (run.last_request_time, run.training_run_id), reverse=True)


def describe_model(model: ModelRecord, records: Sequence[CheckpointRecord]) -> models.TrainingRun:
    return models.TrainingRun(
        training_run_id=model.model_id,
        base_model=model.base_model,
        model_owner=OWNER,
        is_lora=True,
        corrupted=model.creation_error is not None,
        lora_rank=model.spec.rank,
        last_request_time=to_utc(model.last_request_at),
        last_checkpoint=_find_newest(records, "weights"),
        last_sampler_checkpoint=_find_newest(records, "sampler_weights"),
        user_metadata=to_string_map(model.user_metadata),
    )


def describe_checkpoints(records: Sequence[CheckpointRecord]) -> models.TrainingRun:
    """Describe a run by its checkpoints, the newest of which is the first."""
    newest = records[0]
    return models.TrainingRun(
        training_run_id=newest.training_run_id,
        base_model=newest.base_model,
        model_owner=OWNER,
        is_lora=True,
        lora_rank=newest.lora_config.rank,
        last_request_time=to_utc(newest.created_at),
        last_checkpoint=_find_newest(records, "weights"),
        last_sampler_checkpoint=_find_newest(records, "sampler_weights"),
        user_metadata=to_string_map(newest.run_metadata),
    )


def _find_newest(
    records: Sequence[CheckpointRecord], kind: CheckpointKind
) -> models.Checkpoint | None:
    return next((public_checkpoint(record) for record in records if record.kind == kind), None)


def summarize_session(
    session: SessionRecord, records: Sequence[CheckpointRecord]
) -> models.SessionSummary:
    runs = {model.model_id for model in session.models.values()}
    its_own = [record for record in records if record.training_run_id in runs]
    return models.SessionSummary(
        session_id=session.session_id,
        created_at=to_utc(session.created_at),
        owner=OWNER,
        project_id=session.project_id,
        status=_session_status(session),
        checkpoints_count=len(its_own),
        display_name=session.request.display_name,
        user_metadata=to_string_map(session.request.user_metadata),
        checkpoint_storage_bytes=sum(record.nbytes for record in its_own),
    )


def _session_status(session: SessionRecord) -> models.SessionStatus:
    if session.end is None:
        return models.SessionActive()
    if session.end.reason is None:
        return models.SessionCancelled(detail=session.end.detail)
    return models.ClientSessionFinished(reason=session.end.reason, detail=session.end.detail)


def read_input(model: InputReader, value: ModelInput, what: str) -> tuple[Int32, list[PlacedImage]]:
    """Return the tokens and images. Raises EngineError, naming ``what`` and the chunk, for an
    unsupported chunk.
    """
    reader, arrays, images, start = model.image_reader, list[Int32](), list[PlacedImage](), 0
    for index, chunk in enumerate(value.chunks):
        where = f"{what}: chunk {index}"
        if isinstance(chunk, EncodedTextChunk):
            arrays.append(chunk.array)
        elif reader is not None and isinstance(chunk, ImageChunk):
            image = _read_image(reader, chunk, where)
            images.append(PlacedImage(start=start, image=image))
            arrays.append(image.tokens)
        elif reader is not None and isinstance(chunk, ImageAssetPointerChunk):
            raise EngineError(
                f"{where} points to an image, and this server fetches none; send its "
                "bytes as an 'image' chunk"
            )
        else:
            readable = "'encoded_text' only" if reader is None else "'encoded_text' and 'image'"
            raise EngineError(f"{where} is of type {chunk.type!r}; this server reads {readable}")
        start += len(arrays[-1])
    return arrays[0] if len(arrays) == 1 else np.concatenate(
        [np.empty(0, np.int32), *arrays]
    ), images


def _read_image(reader: ImageReader, chunk: ImageChunk, where: str) -> EngineImage:
    try:
        image = reader.read(chunk.data, chunk.format)
    except EngineError as error:
        raise EngineError(f"{where}: {error}") from error
    if chunk.expected_tokens not in (None, count := len(image.tokens)):
        raise EngineError(
            f"{where}: expected_tokens is {chunk.expected_tokens}, and the model makes "
            f"{count} tokens of this image"
        )
    return image


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


EVENT_STREAM = "text/event-stream"
STREAM_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
#: Clients give up a connection that is silent for a minute.
KEEP_ALIVE_SECONDS = 10.0
KEEP_ALIVE = b": waiting\n\n"
_CANCELLED = RequestFailure("the client closed the stream", "user")


def check_sample(request: models.SampleRequest, max_samples: int) -> None:
    """Raise APIProblem 400 for a number of samples that is out of range, and for a request whose
    answer would be empty.
    """
    if not 1 <= request.num_samples <= max_samples:
        raise APIProblem(
            400, f"num_samples is {request.num_samples}; it must be 1 to {max_samples}"
        )
    if request.sampling_params.max_tokens == 0 and not any(_prompt_scores(request).values()):
        raise APIProblem(
            400,
            "max_tokens is 0; it must be at least 1, unless log-probabilities of "
            "the prompt are requested",
        )


def _prompt_scores(request: models.SampleRequest) -> dict[str, object]:
    """Return the fields that ask for scores of the prompt, with falsy values where they ask for
    none.
    """
    return {
        "prompt_logprobs": request.prompt_logprobs,
        "topk_prompt_logprobs": request.topk_prompt_logprobs,
        "target_prompt_logprobs": request.target_prompt_logprobs is not None,
        "prompt_alt_tokens_k": request.prompt_alt_tokens_k,
    }


def needs_engine(request: models.SampleRequest) -> bool:
    """Return whether the engine itself has to sample: samplers that are elsewhere score no prompts
    and read no images.
    """
    is_text = all(isinstance(chunk, models.EncodedTextChunk) for chunk in request.prompt.chunks)
    return not is_text or any(_prompt_scores(request).values())


def check_stream(request: models.SampleRequest, max_samples: int) -> None:
    """Raise APIProblem 400 as :func:`check_sample` does, and for scores, which are not streamed."""
    check_sample(request, max_samples)
    wanted = {**_prompt_scores(request), "topk_sample_logprobs": request.topk_sample_logprobs}
    if named := [name for name, value in wanted.items() if value]:
        raise APIProblem(400, f"{', '.join(named)} cannot be streamed; use asample")


@attrs.frozen
class DrawnToken:
    """One token of the sample ``index``; ``stop_reason`` is that of its last one."""

    index: int
    token: int
    logprob: float
    stop_reason: str | None


class TokenStream:
    """The tokens of one request, between the engine's thread, which puts them in, and the loop of
    the connection.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notifier = Notifier()
        self._waiting: list[DrawnToken] = []
        self._begun: set[int] = set()
        self._closed = False

    # In the engine's thread

    def take(self, index: int, token: int, logprob: float, stop_reason: str | None) -> bool:
        """Receive the next token of a sample; return False if the client has disconnected."""
        with self._lock:
            self._begun.add(index)
            self._waiting.append(DrawnToken(index, token, logprob, stop_reason))
        self._notifier.notify_all()
        return not self._closed

    def notify(self, future: ServerFuture) -> None:
        """Wake the connection: its future is done."""
        self._notifier.notify_all()

    # On the loop of the connection

    async def events(
        self, state: State, future: ServerFuture
    ) -> AsyncGenerator[models.SampleStreamEvent | None]:
        """Yield the events of the stream until its last one, None as a sign of life. Closing it
        ends the work.
        """
        try:
            while True:
                await self._notifier.wait(
                    lambda: bool(self._waiting) or future.outcome is not None, KEEP_ALIVE_SECONDS
                )
                outcome, drawn = future.outcome, self._drain()
                if not drawn and outcome is None:
                    yield None
                for event in _merge(drawn):
                    yield event
                if outcome is not None:
                    for event in self._last_events(outcome):
                        yield event
                    return
        finally:
            self._close(state, future)

    def _close(self, state: State, future: ServerFuture) -> None:
        self._closed = True
        with state.lock():
            state.served.drop_sample(future)
        state.futures.resolve(future, _CANCELLED)
        state.futures.release(future.request_id)

    def _drain(self) -> list[DrawnToken]:
        with self._lock:
            drawn, self._waiting = self._waiting, []
        return drawn

    def _last_events(self, outcome: RequestOutcome) -> Iterable[models.SampleStreamEvent]:
        """Return the ends of samples without a token, and the end of the stream."""
        if isinstance(outcome, RequestFailure):
            return [
                models.SampleStreamEvent(
                    type="failed", error=outcome.error, category=outcome.category
                )
            ]
        assert isinstance(outcome, SampleResponse)
        empty = [
            models.SampleStreamEvent(type="tokens", index=index, stop_reason=sequence.stop_reason)
            for index, sequence in enumerate(outcome.sequences)
            if index not in self._begun
        ]
        return [*empty, models.SampleStreamEvent(type="done")]


def _merge(drawn: Iterable[DrawnToken]) -> list[models.SampleStreamEvent]:
    """Return one event for each sample, in the order of their first tokens."""
    by_index: dict[int, list[DrawnToken]] = {}
    for one in drawn:
        by_index.setdefault(one.index, []).append(one)
    return [
        models.SampleStreamEvent(
            type="tokens",
            index=index,
            tokens=[one.token for one in tokens],
            logprobs=[one.logprob for one in tokens],
            stop_reason=tokens[-1].stop_reason,
        )
        for index, tokens in by_index.items()
    ]


async def encode_events(
    source: AsyncGenerator[models.SampleStreamEvent | None],
) -> AsyncGenerator[bytes]:
    """Encode a stream as server-sent events. Closing it closes the source."""
    async with contextlib.aclosing(source) as events:
        async for event in events:
            yield KEEP_ALIVE if event is None else b"data: " + json.encode(event) + b"\n\n"
