"""The credentials of the server: its key, the tokens given for it, and the keys that were revoked.

There is one user, who owns everything.
"""

from __future__ import annotations

import hashlib
import hmac

from tinker.local.errors import APIProblem
from tinker.local.settings import Settings
from tinker.local.storage.signing import InvalidToken, Signer, is_token

USER_ID, USER_NAME, USER_EMAIL = "local", "local user", "user@localhost"
OWNER = f"tml:organization_user:{USER_ID}"
PUBLIC_OPERATIONS = frozenset({"healthz"})
#: Asked with the key itself, also where every other request needs a token.
KEY_OPERATIONS = frozenset({"client_config", "auth_token", "get_api_key", "delete_api_key"})


class Accounts:
    """The credentials of one server. Tokens are always given; ``pjwt_auth_enabled`` makes them necessary."""

    def __init__(self, settings: Settings, signer: Signer) -> None:
        self._expected = settings.api_key
        self._tokens_needed = settings.client_config.pjwt_auth_enabled
        self._token_seconds = settings.token_seconds
        self._signer = signer
        self._revoked: set[int] = set()

    def admit(self, operation: str, given: bytes) -> None:
        """Raise APIProblem 401 unless this credential may ask for this operation."""
        if operation in PUBLIC_OPERATIONS:
            return
        if self._tokens_needed and operation not in KEY_OPERATIONS:
            self._admit_token(given)
        elif not self._is_good_token(given):
            self._admit_key(given)

    def token(self, given: bytes) -> str:
        """Make a token for the holder of this credential."""
        claims = {"iss": "tinker-local", "sub": OWNER, "org_id": USER_ID, "email": USER_EMAIL, "key_id": self.key_id(given)}
        return self._signer.sign(claims, self._token_seconds)

    def revoke(self, given: bytes) -> None:
        """Refuse the key and its tokens from now on."""
        self._revoked.add(self.key_id(given))

    def key_id(self, given: bytes) -> int:
        """Return the number of a key, or of the key that a token was given for."""
        try:
            return self._key_of_token(given)
        except InvalidToken:
            return int.from_bytes(hashlib.sha256(given).digest()[:4], "big")

    def _admit_key(self, given: bytes) -> None:
        if self._expected is not None and not hmac.compare_digest(given, self._expected.encode()):
            absent = "the request has no API key (header X-API-Key; below /v1 also Authorization)"
            raise APIProblem(401, "this is not the API key of the server" if given else absent)
        if self.key_id(given) in self._revoked:
            raise APIProblem(401, "the key in X-API-Key was revoked")

    def _admit_token(self, given: bytes) -> None:
        try:
            key_id = self._key_of_token(given)
        except InvalidToken as error:
            detail = f"X-API-Key does not contain a valid token: {error}; exchange the key for one"
            raise APIProblem(401, detail, {"www-authenticate": 'Bearer error="invalid_token"'}) from error
        if key_id in self._revoked:
            raise APIProblem(401, "the key that the token in X-API-Key was given for was revoked")

    def _is_good_token(self, given: bytes) -> bool:
        try:
            return self._key_of_token(given) not in self._revoked
        except InvalidToken:
            return False

    def _key_of_token(self, given: bytes) -> int:
        """Return the number of a token's key. Raises InvalidToken for anything else, such as the token of a link."""
        text = given.decode("utf-8", "replace")
        if not is_token(text):
            raise InvalidToken("it does not have the form of a token")
        key_id = self._signer.read(text).get("key_id")
        if not isinstance(key_id, int):
            raise InvalidToken("it is the token of a link")
        return key_id
