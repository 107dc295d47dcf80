"""Saves: a name is reserved when the request is accepted, and the checkpoint written in the order of the model's requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

import attrs
import msgspec
from tinker_wire import models

from tinker.local.call import APICall
from tinker.local.engines import Engine
from tinker.local.errors import conflict
from tinker.local.operations.creation import lora_config
from tinker.local.operations.lookup import check_ttl
from tinker.local.scheduling.idempotency import enqueue_idempotent, fingerprint
from tinker.local.state import State
from tinker.local.storage.checkpoint_records import CheckpointKind, CheckpointRecord, check_name, checkpoint_path, name_conflict
from tinker.local.storage.sessions import ModelRecord


class SaveRequest(Protocol):
    """What the requests to save have in common."""

    @property
    def model_id(self) -> str: ...
    @property
    def path(self) -> str | None: ...
    @property
    def seq_id(self) -> int | None: ...
    @property
    def ttl_seconds(self) -> int | None: ...


@attrs.frozen(eq=False, kw_only=True)
class Save:
    """One save under a name. The name is reserved when the request is accepted, so that a second one is refused at once.

    One that is repeated because the server was killed may have written its checkpoint already.
    """

    state: State
    call: APICall
    request: SaveRequest
    kind: CheckpointKind
    model: ModelRecord
    number: int
    name: str
    is_repeated: bool = False

    @classmethod
    def prepare(cls, state: State, call: APICall, request: SaveRequest, kind: CheckpointKind) -> Save:
        """Call with the state's lock held, which is held until it is accepted."""
        model = state.store.model(request.model_id)
        number = model.queue.assign_number(request.seq_id)
        name = f"{number:06d}" if request.path is None else request.path
        repeated = state.is_recovering
        return cls(
            state=state, call=call, request=request, kind=kind, model=model, number=number, name=name, is_repeated=repeated
        )

    @property
    def path(self) -> str:
        return checkpoint_path(self.model.model_id, self.kind, self.name)

    def enqueue(self, run: Callable[[Engine], msgspec.Struct], prepare: Callable[[], None]) -> models.UntypedAPIFuture:
        same = fingerprint(cast("msgspec.Struct", self.request))
        return enqueue_idempotent(
            self.state, self.call, self.model, self.number, same, run, prepare=prepare, undo=self._release
        )

    def check(self) -> None:
        """Raise APIProblem 400 for a time to live that is out of range."""
        check_ttl(self.request.ttl_seconds)

    def reserve(self) -> None:
        """Reserve the name after :meth:`check`. Raises APIProblem 409 when it is taken."""
        self.check()
        names = self.model.reserved_paths
        is_there = not self.is_repeated and self.state.checkpoints.exists(self.model.model_id, self.kind, self.name)
        if self.path in names or is_there:
            raise conflict(name_conflict(self.path))
        names.add(self.path)

    def run(self, engine: Engine, *, overwrite: bool) -> CheckpointRecord:
        """Write the checkpoint."""
        try:
            self.model.require_ready()
            check_name(self.name)
            training = self.kind == "weights"
            record = self.state.checkpoints.write(
                self._record(engine),
                lambda folder: engine.save(self.model.model_id, folder, optimizer=training),
                overwrite=overwrite or self.is_repeated,
            )
        finally:
            with self.state.lock:
                self._release()
        self._note(record)
        return record

    def _release(self) -> None:
        self.model.reserved_paths.discard(self.path)

    def _note(self, record: CheckpointRecord) -> None:
        session = self.model.session
        with self.state.lock:
            self.state.audit.record_checkpoint("checkpoint_created", record)
            self.state.usage.count("checkpoint", 1, session.usage_key(record.base_model))

    def _record(self, engine: Engine) -> CheckpointRecord:
        now, ttl, session = self.state.now(), self.request.ttl_seconds, self.model.session
        return CheckpointRecord(
            path=self.path,
            training_run_id=self.model.model_id,
            kind=self.kind,
            name=self.name,
            base_model=self.model.base_model,
            engine_model=engine.base_model,
            lora_config=lora_config(self.model.spec),
            optimizer=self.model.optimizer,
            created_at=now,
            expires_at=None if ttl is None else now + ttl,
            user_metadata=getattr(self.request, "user_metadata", None),
            session_id=session.session_id,
            project_id=session.project_id,
            run_metadata=self.model.user_metadata,
        )
