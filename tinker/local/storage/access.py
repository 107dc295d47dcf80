"""Credentials: the server's key, tokens given for it, and signed links to files. There is one user,
who owns everything.

Tokens have the form of a JWT (HS256), because clients read ``iat`` and ``exp`` of them. A link is
such a token and names one file; its last part is only a name to save the file under. The secret
lives as long as the server's state, and with a journal as long as that; what another server signed
is not valid here.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from tinker.local.errors import APIProblem
from tinker.local.settings import Settings
from tinker.local.storage.checkpoints import CheckpointRecord, to_utc

_HEADER = {"alg": "HS256", "typ": "JWT"}


class InvalidToken(Exception):
    """A token that this server did not sign, or that has expired; the message says which."""


class Signer:
    """Signs claims and reads them back. ``now`` is the time of day in seconds since 1970."""

    def __init__(self, now: Callable[[], float], secret: bytes | None = None) -> None:
        self._now = now
        self._secret = secret or secrets.token_bytes(32)

    def sign(self, claims: Mapping[str, object], seconds: float) -> str:
        """Sign the claims, with ``iat`` and an ``exp`` that many seconds later (both integers)."""
        issued = int(self._now())
        content = {**claims, "iat": issued, "exp": issued + int(seconds)}
        body = f"{_encode(_HEADER)}.{_encode(content)}"
        return f"{body}.{self._signature(body)}"

    def read(self, token: str) -> dict[str, Any]:
        """Return the claims of a token. Raises InvalidToken."""
        body, _, signature = token.rpartition(".")
        if "." not in body or not hmac.compare_digest(
            self._signature(body).encode(), signature.encode("utf-8", "replace")
        ):
            raise InvalidToken("it was not signed by this server")
        claims = msgspec.json.decode(_decode(body.partition(".")[2]), type=dict[str, Any])
        if claims["exp"] <= self._now():
            raise InvalidToken("it has expired")
        return claims

    def _signature(self, body: str) -> str:
        digest = hmac.new(self._secret, body.encode("utf-8", "replace"), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _encode(value: object) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(value)).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


USER_ID, USER_NAME, USER_EMAIL = "local", "local user", "user@localhost"
OWNER = f"tml:organization_user:{USER_ID}"
PUBLIC_OPERATIONS = frozenset({"healthz"})
#: Asked with the key itself, also where every other request needs a token.
KEY_OPERATIONS = frozenset({"client_config", "auth_token", "get_api_key", "delete_api_key"})


def _number_of(key: bytes) -> int:
    return int.from_bytes(hashlib.sha256(key).digest()[:4], "big")


class Accounts:
    """The credentials of one server. Tokens are always given; ``pjwt_auth_enabled`` makes them
    necessary.
    """

    def __init__(self, settings: Settings, signer: Signer) -> None:
        self._settings, self._signer = settings, signer
        self._revoked: set[int] = set()

    def admit(self, operation: str, given: bytes) -> None:
        """Raise APIProblem 401 unless this credential permits the operation."""
        if operation in PUBLIC_OPERATIONS:
            return
        try:
            key_id, what = (
                self._key_of_token(given),
                "the key that the token in X-API-Key was given for",
            )
        except InvalidToken as error:
            if self._settings.client_config.pjwt_auth_enabled and operation not in KEY_OPERATIONS:
                detail = (
                    f"X-API-Key does not contain a valid token: {error}; exchange the key for one"
                )
                raise _refuse(detail, 'Bearer error="invalid_token"') from error
            self._check_key(given)
            key_id, what = _number_of(given), "the key in X-API-Key"
        if key_id in self._revoked:
            raise _refuse(f"{what} was revoked")

    def token(self, given: bytes) -> str:
        """Make a token for the holder of this credential."""
        claims = {
            "iss": "tinker-local",
            "sub": OWNER,
            "org_id": USER_ID,
            "email": USER_EMAIL,
            "key_id": self.key_id(given),
        }
        return self._signer.sign(claims, self._settings.token_seconds)

    def revoke(self, given: bytes) -> None:
        """Refuse the key and its tokens from now on."""
        self._revoked.add(self.key_id(given))

    def key_id(self, given: bytes) -> int:
        """Return the number of a key, or of the key that a token was given for."""
        try:
            return self._key_of_token(given)
        except InvalidToken:
            return _number_of(given)

    def _check_key(self, given: bytes) -> None:
        expected = self._settings.api_key
        if expected is not None and not hmac.compare_digest(given, expected.encode()):
            absent = "the request has no API key (header X-API-Key; below /v1 also Authorization)"
            raise _refuse("this is not the API key of the server" if given else absent)

    def _key_of_token(self, given: bytes) -> int:
        """Return the number of a token's key. Raises InvalidToken for anything else, such as the
        token of a link.
        """
        key_id = self._signer.read(given.decode("utf-8", "replace")).get("key_id")
        if not isinstance(key_id, int):
            raise InvalidToken("it is the token of a link")
        return key_id


def _refuse(detail: str, challenge: str = "Bearer") -> APIProblem:
    """Make a 401, which says in a header what to send."""
    return APIProblem(401, detail, {"www-authenticate": challenge})


FILES_PATH = "/files"


class Links:
    """Makes links. ``now`` is the time of day in seconds since 1970; ``base_url`` is where the
    client found the server.
    """

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
        claims = {
            "what": what,
            "run": record.training_run_id,
            "kind": record.kind,
            "name": record.name,
            "file": name,
        }
        return self._url(base_url, claims, name)

    def _url(self, base_url: str, claims: Mapping[str, object], name: str) -> str:
        base = self._settings.public_url or base_url
        token = self._signer.sign(claims, self._settings.link_seconds)
        return f"{base.rstrip('/')}{FILES_PATH}/{token}/{quote(name)}"
