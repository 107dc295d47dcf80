"""Find the credential, read the file of stored keys, and exchange a credential for a token."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import subprocess
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

import attrs
import msgspec

from tinker._basics.config import Config, is_sendable
from tinker._loop import Clock, TaskScope
from tinker.errors import AuthenticationError, TinkerError

VERSION = 1

#: The whole file, also with what is not understood here.
_Content: TypeAlias = dict[str, Any]


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key. ``type`` "generated" is a key made for this machine, which a logout revokes;
    ``details`` say whose it is.
    """

    key: str
    type: str = "manual"
    name: str = ""
    note: str | None = None
    details: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        return f"StoredKey({self.name!r})"

    @property
    def organization(self) -> str | None:
        """Return the name of its organization, where the details say it."""
        found: object = (self.details or {}).get("org_details")
        value = (
            cast("Mapping[str, object]", found).get("name") if isinstance(found, Mapping) else None
        )
        return value if isinstance(value, str) else None


class _Stored(msgspec.Struct):
    keys: dict[str, StoredKey] = {}
    default: str | None = None


def default_key(file: Path) -> tuple[str, StoredKey] | None:
    """Return the id of the current key and the key; None if there is no key. Raises TinkerError for
    an invalid file.
    """
    stored = _parse(_content(file), file)
    found = stored.keys.get(stored.default or "")
    return None if found is None or stored.default is None else (stored.default, found)


def store_default(file: Path, key_id: str, key: StoredKey) -> None:
    """Add a key and use it from now on. TinkerError when the file is broken or
    cannot be written.
    """
    content = _content(file)
    _parse(content, file)
    entry = {name: value for name, value in msgspec.to_builtins(key).items() if value is not None}
    keys = {**content.get("keys", {}), key_id: entry}
    _write(file, {"version": VERSION, **content, "default": key_id, "keys": keys})


def remove_default(file: Path) -> None:
    """Forget the key that is used; does nothing without one. TinkerError when the file is broken or
    cannot be written.
    """
    found = default_key(file)
    if found is None:
        return
    content = _content(file)
    kept = {key_id: entry for key_id, entry in content["keys"].items() if key_id != found[0]}
    _write(
        file,
        {**{name: value for name, value in content.items() if name != "default"}, "keys": kept},
    )


def _content(file: Path) -> _Content:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Content)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable_error(file, error) from None


def _parse(content: _Content, file: Path) -> _Stored:
    try:
        return msgspec.convert(content, _Stored)
    except msgspec.ValidationError as error:
        raise _unreadable_error(file, error) from None


def _unreadable_error(file: Path, error: Exception) -> TinkerError:
    return TinkerError(f"could not read stored credentials from {file}: {type(error).__name__}")


def _write(file: Path, content: _Content) -> None:
    """Write under another name first, so that a reader finds the old file or the new one."""
    text = msgspec.json.format(msgspec.json.encode(content), indent=2)
    draft = file.with_name(f".{file.name}-{uuid.uuid4().hex}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.parent.chmod(0o700)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(text)
        os.replace(draft, file)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise TinkerError(
            f"could not write {file}: {error.strerror or type(error).__name__}"
        ) from error


COMMAND_SECONDS = 60.0
# A token with less than this left is not used for a new request.
FRESH_SECONDS = 60.0
# Behind this part of its life a token is renewed in the background, so that no request has to wait
# for it.
RENEW_AT = 0.5
# After a failed renewal the next one waits this long, while the present token still holds.
RENEW_PAUSE_SECONDS = 60.0
_EXCHANGE = "credential exchange"  # the name of its task


@attrs.frozen
class Credential:
    """A key or a token. The repr hides it, because error reporting tools show the variables of
    every frame.
    """

    secret: str = attrs.field(repr=False)


@attrs.frozen
class CredentialCommand:
    """A command that prints the credential. The repr hides it, as a command may
    contain a secret.
    """

    command: str = attrs.field(repr=False)

    async def fetch(self) -> Credential:
        """Run the command. TinkerError, without the output, if it fails."""
        return await asyncio.to_thread(_output, self.command)


CredentialSource: TypeAlias = Credential | CredentialCommand
TokenExchange: TypeAlias = Callable[[Credential], Awaitable[Credential]]


def find_source(config: Config) -> CredentialSource | None:
    """Find the source of the credential: a key, a command, or, for the hosted service, the key of
    ``tinker auth login``.

    Returns None if no credential is set. The hosted service requires one, so this raises
    TinkerError for it instead.
    """
    if config.api_key is not None:
        return Credential(config.api_key)
    if config.credential_cmd is not None:
        return CredentialCommand(config.credential_cmd)
    if not config.is_hosted:
        return None
    stored = default_key(config.credentials_file)
    if stored is None:
        raise TinkerError(
            "no API key for the hosted service: run `tinker auth login`, set TINKER_API_KEY, or "
            "pass api_key; another server "
            "is named by base_url or TINKER_BASE_URL, and without an account, base_url='local://' "
            "runs everything on this "
            "machine"
        )
    if not is_sendable(stored[1].key):
        raise TinkerError(
            f"the key in {config.credentials_file} must be one line of plain text; run `tinker "
            "auth login` again"
        )
    return Credential(stored[1].key)


def find_command(config: Config) -> CredentialCommand:
    """Return the command as the source, for a server that requires it. Raises TinkerError if no
    command is set.
    """
    if config.credential_cmd is None:
        raise TinkerError(
            "this server only accepts credentials from TINKER_CREDENTIAL_CMD, which is not set"
        )
    return CredentialCommand(config.credential_cmd)


async def _fetch(source: CredentialSource) -> Credential:
    return source if isinstance(source, Credential) else await source.fetch()


def _output(command: str) -> Credential:
    """Return the output of the command, which is the credential. Errors never
    contain the output.
    """
    try:
        code, printed = _ran(command)
    except subprocess.TimeoutExpired:
        raise TinkerError(
            f"TINKER_CREDENTIAL_CMD printed no credential within {COMMAND_SECONDS:g} s"
        ) from None
    except OSError as error:
        raise TinkerError(f"could not run TINKER_CREDENTIAL_CMD: {error.strerror}") from None
    if code != 0:
        raise TinkerError(f"TINKER_CREDENTIAL_CMD failed with exit code {code}")
    if not printed.secret:
        raise TinkerError("TINKER_CREDENTIAL_CMD printed no credential")
    if not is_sendable(printed.secret):
        raise TinkerError("TINKER_CREDENTIAL_CMD must print one line of plain text")
    return printed


def _ran(command: str) -> tuple[int, Credential]:
    done = subprocess.run(  # noqa: S602  (the user's own command, meant for the shell)
        command, shell=True, capture_output=True, timeout=COMMAND_SECONDS, check=False
    )
    return done.returncode, Credential(done.stdout.decode(errors="replace").strip())


class Claims(msgspec.Struct):
    """The claims of a JWT that clients use. The signature is not verified here."""

    exp: float | None = None
    iat: float | None = None
    sub: str | None = None
    org_id: str | None = None
    email: str | None = None
    iss: str | None = None


def read_claims(jwt: str) -> Claims:
    """Return the claims of a JWT; empty claims if the text is not a JWT."""
    try:
        payload = jwt.split(".")[1]
        return msgspec.json.decode(
            base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), type=Claims
        )
    except (IndexError, ValueError, binascii.Error, RecursionError):
        return Claims()


@attrs.frozen
class _Token:
    """A JWT, with the times to renew it and when it expires, on our clock."""

    jwt: Credential
    renew_at: float
    ends_at: float


class Auth:
    """The credential of one client."""

    def __init__(self, source: CredentialSource | None, clock: Clock, tasks: TaskScope) -> None:
        #: Where the credential comes from. Clients with equal sources have the same account, as far
        #: as is known.
        self.source: CredentialSource | None = source
        #: The credential of every request, where that is always the same.
        self.key: Credential | None = source if isinstance(source, Credential) else None
        self._clock = clock
        self._tasks = tasks
        self._exchange: TokenExchange | None = None
        self._token: _Token | None = None

    def use_exchange(self, exchange: TokenExchange, source: CredentialSource | None = None) -> None:
        """Use the result of ``exchange`` for all later requests. It exchanges the credential, or
        that of ``source``.
        """
        self._exchange, self.key = exchange, None
        self.source = source or self.source

    async def credential(self) -> Credential | None:
        """Return the credential of a request; None without one. Raises the exchange's own error
        when there is no token.
        """
        if self._exchange is None or self.source is None:
            return None if self.source is None else await _fetch(self.source)
        token, now = self._token, self._clock.monotonic()
        if token is None or token.ends_at - now <= FRESH_SECONDS:
            return await self._renew_or_keep(token)
        if now >= token.renew_at:
            self._tasks.join(_EXCHANGE, self._fetch_token)
        return token.jwt

    @property
    def can_replace(self) -> bool:
        """Return whether requests are sent under a token that another one may take the place of."""
        return self._exchange is not None and self.source is not None

    async def replace(self, refused: Credential | None) -> None:
        """Get another token after the server refused one, unless it has been replaced meanwhile."""
        if self._token is None or self._token.jwt == refused:
            self._token = await self._renew()

    async def _renew_or_keep(self, present: _Token | None) -> Credential:
        try:
            return (await self._renew()).jwt
        except AuthenticationError:
            raise
        except Exception:
            if present is None or present.ends_at <= self._clock.monotonic():
                raise
            return present.jwt

    async def _renew(self) -> _Token:
        """Return the result of the exchange that is under way, or of a new one; concurrent requests
        share it.
        """
        return await self._tasks.share(_EXCHANGE, self._fetch_token)

    async def _fetch_token(self) -> _Token:
        assert self.source is not None
        assert self._exchange is not None
        try:
            jwt = await self._exchange(await _fetch(self.source))
        except Exception:
            if self._token is not None:
                self._token = attrs.evolve(
                    self._token, renew_at=self._clock.monotonic() + RENEW_PAUSE_SECONDS
                )
            raise
        self._token = self._to_token(jwt)
        return self._token

    def _to_token(self, jwt: Credential) -> _Token:
        """Convert a JWT; both times in it are the server's, so only their difference is used."""
        claims, now = read_claims(jwt.secret), self._clock.monotonic()
        life = 2 * FRESH_SECONDS
        if claims.exp is not None and claims.iat is not None and claims.exp > claims.iat:
            life = claims.exp - claims.iat
        return _Token(jwt, now + RENEW_AT * life, now + life)
