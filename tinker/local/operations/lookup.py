"""Finding the checkpoint that a request names; the limits of its time to live."""

from __future__ import annotations

from tinker.local.call import APICall
from tinker.local.engines import EngineError
from tinker.local.errors import APIProblem, make_not_found
from tinker.local.state import State
from tinker.local.storage.checkpoint_records import CHECKPOINT_KINDS, CheckpointKind, CheckpointRecord, checkpoint_path
from tinker.types.paths import ParsedCheckpointTinkerPath

SHORTEST_TTL, LONGEST_TTL = 3600, 315_360_000  # an hour, ten years


def check_ttl(seconds: int | None) -> None:
    """Raise APIProblem 400 for a time to live that is out of range; None is forever."""
    if seconds is not None and not SHORTEST_TTL <= seconds <= LONGEST_TTL:
        raise APIProblem(400, f"ttl_seconds is {seconds}; it must be {SHORTEST_TTL} to {LONGEST_TTL}")


def find_checkpoint(state: State, path: str) -> CheckpointRecord:
    """Find the checkpoint of a tinker path of any kind. Raises APIProblem 400 for another text, 404 when unknown."""
    try:
        ParsedCheckpointTinkerPath.from_tinker_path(path)
    except ValueError as error:
        raise APIProblem(400, str(error)) from error
    try:
        return state.checkpoints.find(path, *CHECKPOINT_KINDS)[0]
    except EngineError as error:
        raise APIProblem(404, str(error)) from error


def find_addressed(state: State, call: APICall, *kinds: CheckpointKind) -> CheckpointRecord:
    """Find the checkpoint in the URL. Raises APIProblem 400 for a wrong name, 404 when unknown, 425 while it is written."""
    run, wanted = call.path["training_run_id"], call.path["checkpoint_id"]
    kind, _, name = wanted.rpartition("/")
    if kind not in (kinds or CHECKPOINT_KINDS):
        expected = " or ".join(f"'{kind}/<name>'" for kind in kinds or CHECKPOINT_KINDS)
        raise APIProblem(
            400, f"Invalid checkpoint identifier {wanted!r}. Expected {expected}, where <name> is one path segment."
        )
    return require_checkpoint(state, run, kind, name)


def require_checkpoint(state: State, run: str, kind: CheckpointKind, name: str) -> CheckpointRecord:
    """Return the checkpoint. Raises APIProblem 404 when it is unknown, 425 while it is written."""
    path = checkpoint_path(run, kind, name)
    try:
        record = state.checkpoints.get(run, kind, name)
    except EngineError as error:
        raise APIProblem(404, str(error)) from error
    if record is not None:
        return record
    with state.lock:
        model = state.store.find_model(run)
        if model is not None and path in model.reserved_paths:
            raise APIProblem(425, f"the checkpoint {path} is still being written", {"retry-after": "1"})
    raise make_not_found("checkpoint", path)
