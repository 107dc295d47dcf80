"""The data of a server: sessions, futures and accounts in memory, checkpoints and snapshots on disk."""

from __future__ import annotations

from tinker.local.storage.accounts import OWNER, USER_EMAIL, USER_NAME, Accounts
from tinker.local.storage.audit import AuditLog
from tinker.local.storage.checkpoint_records import (
    CHECKPOINT_KINDS,
    CheckpointKind,
    CheckpointRecord,
    check_name,
    checkpoint_path,
    folder_name,
    name_conflict,
)
from tinker.local.storage.checkpoints import LEFTOVERS, RECORD_FILE, Checkpoints
from tinker.local.storage.completions import Completion, CompletionLog
from tinker.local.storage.exports import TraceExports
from tinker.local.storage.links import FILES_PATH, Links
from tinker.local.storage.notifier import Notifier
from tinker.local.storage.owners import FOLDER, Owner
from tinker.local.storage.results import FutureStore, RequestFailure, RequestOutcome, RequestResult, ServerFuture
from tinker.local.storage.sessions import MAX_CLIENTS, LoadWeights, ModelRecord, SamplerRecord, SessionEnd, SessionRecord
from tinker.local.storage.signing import InvalidToken, Signer
from tinker.local.storage.snapshots import Snapshots
from tinker.local.storage.store import Store
from tinker.local.storage.trace import TRACE_MEDIA_TYPE, in_trace
from tinker.local.storage.uploads import AdapterUpload, Uploads
from tinker.local.storage.usage import GIGABYTE, HOUR, UsageKey, UsageMeter, to_utc

__all__ = [
    "Accounts",
    "CHECKPOINT_KINDS",
    "CheckpointKind",
    "CheckpointRecord",
    "Checkpoints",
    "Completion",
    "CompletionLog",
    "FILES_PATH",
    "FOLDER",
    "FutureStore",
    "GIGABYTE",
    "HOUR",
    "InvalidToken",
    "LEFTOVERS",
    "AuditLog",
    "UsageMeter",
    "Links",
    "LoadWeights",
    "MAX_CLIENTS",
    "ModelRecord",
    "Notifier",
    "OWNER",
    "Owner",
    "RECORD_FILE",
    "RequestFailure",
    "RequestOutcome",
    "RequestResult",
    "SamplerRecord",
    "ServerFuture",
    "SessionEnd",
    "SessionRecord",
    "Signer",
    "Snapshots",
    "Store",
    "TRACE_MEDIA_TYPE",
    "TraceExports",
    "USER_EMAIL",
    "AdapterUpload",
    "Uploads",
    "USER_NAME",
    "UsageKey",
    "check_name",
    "checkpoint_path",
    "folder_name",
    "name_conflict",
    "in_trace",
    "to_utc",
]
