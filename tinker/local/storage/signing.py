"""Signed texts that expire: the tokens of clients, and the links to files.

The form is that of a JWT (HS256), because clients read ``iat`` and ``exp`` of their tokens. The secret lives as long as the
server's state, and with a journal as long as that; what another server signed is not valid here.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

_HEADER = {"alg": "HS256", "typ": "JWT"}


class InvalidToken(Exception):
    """Not written by this server, changed, or past its end; the message says which."""


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
        if not hmac.compare_digest(self._signature(body).encode(), signature.encode("utf-8", "replace")):
            raise InvalidToken("it was not signed by this server")
        claims = msgspec.json.decode(_decode(body.partition(".")[2]), type=dict[str, Any])
        if claims["exp"] <= self._now():
            raise InvalidToken("it has expired")
        return claims

    def _signature(self, body: str) -> str:
        digest = hmac.new(self._secret, body.encode("utf-8", "replace"), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def is_token(text: str) -> bool:
    """Return whether a text has the form of a token, by whomever it was written."""
    return text.startswith("eyJ") and text.count(".") == 2


def _encode(value: object) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(value)).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
