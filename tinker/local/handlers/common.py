"""What handlers share: submission, descriptions, names and inputs."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
from tinker_wire import models
from tinker_wire.api import training, weights

from tinker.local.call import APICall, APIProblem, log
from tinker.local.engines import PACKAGED_FOLDER, TOY_MODEL, explain_absence
from tinker.local.engines.protocol import (
    Engine,
    EngineError,
    InputReader,
    Int32,
    PlacedImage,
    explain,
)
from tinker.local.scheduling import ModelQueue
from tinker.local.state import State
from tinker.local.storage import OWNER, CheckpointRecord, to_utc
from tinker.local.storage.futures import (
    FILE,
    FOLDER,
    JournalRequest,
    RequestResult,
    ServerFuture,
    do_nothing,
    request_key,
)
from tinker.local.storage.sessions import KeptRuns, ModelRecord, ModelTask, SmallLoss
from tinker.types.model_input import (
    EncodedTextChunk,
    ImageAssetPointerChunk,
    ImageChunk,
    ModelInput,
)
from tinker.types.params import ParsedCheckpointTinkerPath
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


def meets_conditions(
    request: models.SessionSearchRequest | models.CheckpointSearchRequest,
    project_id: str | None,
    metadata: models.Metadata | None,
) -> bool:
    """Return whether something of this project, and the one user, meets the conditions that all
    searches have.
    """
    return (
        (request.project_ids is None or project_id in request.project_ids)
        and request.user_metadata.items() <= (to_string_map(metadata) or {}).items()
        and (
            not isinstance(request.owner, models.UserSearchOwner)
            or OWNER in request.owner.owner_urns
        )
    )


def to_string_map(metadata: models.Metadata | None) -> models.StringMap | None:
    """Return metadata as answers carry it: values that are not strings as JSON."""
    if metadata is None:
        return None
    return {
        key: v if isinstance(v, str) else msgspec.json.encode(v).decode()
        for key, v in metadata.items()
    }


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
            with explain(where):
                image = reader.read(chunk.data, chunk.format)
            if chunk.expected_tokens not in (None, count := len(image.tokens)):
                raise EngineError(
                    f"{where}: expected_tokens is {chunk.expected_tokens}, and the model makes "
                    f"{count} tokens of this image"
                )
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


EngineWork: TypeAlias = Callable[[Engine], RequestResult]
#: Operations after which the weights of a run are others than before.
CHANGES = frozenset(
    one.__name__ for one in (training.create_model, training.optim_step, weights.load_weights)
)
canonical_json: msgspec.json.Encoder = msgspec.json.Encoder(order="sorted")


def fingerprint(request: msgspec.Struct) -> bytes:
    """Compute a digest that is the same for the same request, however it was written."""
    content = canonical_json.encode((type(request).__name__, request))
    return hashlib.blake2b(content, digest_size=16).digest()


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
        raise APIProblem(
            500,
            f"the server cannot write this request down ({error}), so it was not "
            "carried out; send it again",
            code="seq_id_free",
        ) from error


def enqueue_idempotent(
    state: State,
    call: APICall,
    model: ModelRecord,
    number: int,
    request_fingerprint: bytes,
    execute: EngineWork,
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
            execute = partial(_repeat, state, execute)
        if state.journal.is_kept and operation in CHANGES:
            execute = partial(_execute_and_keep, state.runs, model, number, future, execute)
        try:
            _prepare(state, model.queue, position, request_fingerprint, check, prepare)
            known_failure = call.known_failure if is_ordered else None
            free = partial(_free, model.queue, position, known_failure, undo)
            write_down(state, call, model.model_id, free, request_id=request_id, number=number)
            task = ModelTask(future, execute, operation, number, known_failure, small())
            model.queue.put(position, task, state.clock())
        except APIProblem:
            state.futures.forget(future)
            raise
        finally:
            state.notify()
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


def _repeat(state: State, execute: EngineWork, engine: Engine) -> RequestResult:
    """Carry out a request again that was carried out, and counted, before the server was killed."""
    with state.lock() as shared:
        usage = shared.usage
    with usage.repeating():
        return execute(engine)


def _execute_and_keep(
    runs: KeptRuns,
    model: ModelRecord,
    number: int,
    future: ServerFuture,
    execute: EngineWork,
    engine: Engine,
) -> RequestResult:
    """Carry out a request that changes weights, and keep them.

    Where they cannot be kept, the run continues: a server that is killed does the request again.
    The creation is not done again, because its weights may be random, so it fails.
    """
    result = execute(engine)
    try:
        runs.save(engine, model, number, future, result)
    except Exception as error:
        if number == 0:
            model.creation_error = str(error)
            runs.forget(model.model_id)
            raise
        log.error(
            "cannot keep the weights of %s after its request %d: %s", model.model_id, number, error
        )
    return result


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
