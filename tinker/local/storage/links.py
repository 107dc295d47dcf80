"""Links to files. They need no credentials and end.

A link is a signed token that says which file it is for; its last part is only a name to save the file under.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from urllib.parse import quote

from tinker.local.settings import Settings
from tinker.local.storage.checkpoint_records import CheckpointRecord
from tinker.local.storage.signing import Signer
from tinker.local.storage.usage import to_utc

FILES_PATH = "/files"


class Links:
    """Makes links. ``now`` is the time of day in seconds since 1970; ``base_url`` is where the client found the server."""

    def __init__(self, settings: Settings, signer: Signer, now: Callable[[], float]) -> None:
        self._settings, self._signer, self._now = settings, signer, now

    def expires_at(self) -> datetime.datetime:
        """Return the end of a link that is made now."""
        return to_utc(int(self._now()) + int(self._settings.link_seconds))

    def file_url(self, base_url: str, record: CheckpointRecord, name: str) -> str:
        """Return a link to one file of a checkpoint."""
        return self._checkpoint_url(base_url, "file", record, name)

    def archive_url(self, base_url: str, record: CheckpointRecord) -> str:
        """Return a link to a tar.gz of all files of a checkpoint."""
        return self._checkpoint_url(base_url, "archive", record, f"{record.name}.tar.gz")

    def upload_url(self, base_url: str, upload_id: str, name: str) -> str:
        """Return the link to which one file of an upload is sent."""
        return self._url(base_url, {"what": "upload", "upload": upload_id, "file": name}, name)

    def trace_url(self, base_url: str, session_id: str) -> str:
        """Return a link to the exported trace of a session."""
        return self._url(base_url, {"what": "trace", "session": session_id}, "trace.json")

    def _checkpoint_url(self, base_url: str, what: str, record: CheckpointRecord, name: str) -> str:
        claims = {"what": what, "run": record.training_run_id, "kind": record.kind, "name": record.name, "file": name}
        return self._url(base_url, claims, name)

    def _url(self, base_url: str, claims: Mapping[str, object], name: str) -> str:
        base = self._settings.public_url or base_url
        token = self._signer.sign(claims, self._settings.link_seconds)
        return f"{base.rstrip('/')}{FILES_PATH}/{token}/{quote(name)}"
