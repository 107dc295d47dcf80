"""Who may ask: the key of the server, the tokens given for it, and the keys that were revoked. Handlers of keys and tokens.

There is one user, who owns everything.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from tinker_wire import models

from tinker.local.problem import Problem
from tinker.local.settings import Settings
from tinker.local.signing import BadToken, Signer, is_token

if TYPE_CHECKING:
    from tinker.local.call import Call
    from tinker.local.state import State

USER_ID, USER_NAME, USER_EMAIL = "local", "local user", "user@localhost"
OWNER = f"tml:organization_user:{USER_ID}"
OPEN_TO_ALL = frozenset({"healthz"})
#: Asked with the key itself, also where every other request needs a token.
KEY_WILL_DO = frozenset({"client_config", "auth_token", "get_api_key", "delete_api_key"})


class Accounts:
    """The credentials of one server. Tokens are always given; ``pjwt_auth_enabled`` makes them necessary."""

    def __init__(self, settings: Settings, signer: Signer) -> None:
        self._expected = settings.api_key
        self._tokens_needed = settings.client_config.pjwt_auth_enabled
        self._token_seconds = settings.token_seconds
        self._signer = signer
        self._revoked: set[int] = set()

    def admit(self, operation: str, given: bytes) -> None:
        """Problem 401 unless this credential may ask for this operation."""
        if operation in OPEN_TO_ALL:
            return
        if self._tokens_needed and operation not in KEY_WILL_DO:
            self._admit_token(given)
        elif not self._is_good_token(given):
            self._admit_key(given)

    def token(self, given: bytes) -> str:
        """A token for the holder of this credential."""
        claims = {"iss": "tinker-local", "sub": OWNER, "org_id": USER_ID, "email": USER_EMAIL, "key_id": self.key_id(given)}
        return self._signer.sign(claims, self._token_seconds)

    def revoke(self, given: bytes) -> None:
        """From now on neither the key nor its tokens are taken."""
        self._revoked.add(self.key_id(given))

    def key_id(self, given: bytes) -> int:
        """The number of a key, or of the key that a token was given for."""
        try:
            return self._key_of_token(given)
        except BadToken:
            return int.from_bytes(hashlib.sha256(given).digest()[:4], "big")

    def _admit_key(self, given: bytes) -> None:
        if self._expected is not None and not hmac.compare_digest(given, self._expected.encode()):
            raise Problem(401, "the key in X-API-Key is missing or is not the one this server was started with")
        if self.key_id(given) in self._revoked:
            raise Problem(401, "the key in X-API-Key was revoked")

    def _admit_token(self, given: bytes) -> None:
        try:
            key_id = self._key_of_token(given)
        except BadToken as error:
            detail = f"X-API-Key holds no valid token: {error}; exchange the key for one"
            raise Problem(401, detail, {"www-authenticate": 'Bearer error="invalid_token"'}) from error
        if key_id in self._revoked:
            raise Problem(401, "the key that the token in X-API-Key was given for was revoked")

    def _is_good_token(self, given: bytes) -> bool:
        try:
            return self._key_of_token(given) not in self._revoked
        except BadToken:
            return False

    def _key_of_token(self, given: bytes) -> int:
        """The number of the key that a token was given for. BadToken for anything else, such as the token of a link."""
        text = given.decode("utf-8", "replace")
        if not is_token(text):
            raise BadToken("it does not have the form of one")
        key_id = self._signer.read(text).get("key_id")
        if not isinstance(key_id, int):
            raise BadToken("it opens a link and not this server")
        return key_id


async def auth_token(state: State, call: Call) -> models.AuthTokenResponse:
    """A token for the key of this request."""
    call.read(models.AuthTokenRequest)
    return models.AuthTokenResponse(jwt=state.accounts.token(call.credential))


async def get_api_key(state: State, call: Call) -> models.SelfApiKeyResponse:
    """The number of the key of this request; whose it is."""
    details = models.SelfApiKeyDetails(
        org_details=models.SelfApiKeyOrganization(name=USER_NAME),
        user_details=models.SelfApiKeyUser(email=USER_EMAIL),
    )
    return models.SelfApiKeyResponse(
        key_id=state.accounts.key_id(_key(call)), name="local", note="a key of this server", details=details
    )


async def delete_api_key(state: State, call: Call) -> None:
    """Revokes the key of this request, for as long as the server runs."""
    with state.lock:
        state.accounts.revoke(_key(call))
        state.ledger.note("api_key_revoked", "organizations", key_id=state.accounts.key_id(call.credential))


def _key(call: Call) -> bytes:
    if not call.credential:
        raise Problem(401, "the request has no key in X-API-Key")
    return call.credential
