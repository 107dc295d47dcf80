"""Credentials: their source, their replacement, and refused credentials."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tinker
from tinker._http.auth import StoredKey, default_key, read_claims, store_default
from tinker.auth import get_tinker_token

Connect = Callable[..., tinker.ServiceClient]
INVALID = {"www-authenticate": 'Bearer error="invalid_token"'}


def jwt(number: int, life: int = 3600) -> str:
    claims = json.dumps(
        {"iat": 1_000_000, "exp": 1_000_000 + life, "sub": f"user-{number}"}
    ).encode()
    return f"eyJh.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.signature"


def keys_of(wire: Any) -> list[str | None]:
    return [exchange.request.headers.get("x-api-key") for exchange in wire.exchanges]


@pytest.fixture
def tokens(wire: Any) -> list[str]:
    """Return a server that exchanges the key for these tokens, in order."""
    made = [jwt(number) for number in range(5)]
    wire.fail("client/config", 200, body={"pjwt_auth_enabled": True})
    return made


def hand_out(wire: Any, token: str) -> None:
    wire.fail("auth/token", 200, body={"jwt": token})


def test_key_goes_to_the_exchange_only(connect: Connect, wire: Any, tokens: list[str]) -> None:
    """Where a token is wanted, the key goes to settings and exchange, the token everywhere else."""
    hand_out(wire, tokens[0])
    connect().create_sampling_client(base_model="tinker/toy").result(10)
    assert keys_of(wire)[:2] == ["tml-secret", "tml-secret"]
    assert set(keys_of(wire)[2:]) == {tokens[0]}
    assert wire.requests("auth/token")[0].json == {}


def test_refused_token_is_replaced_once(connect: Connect, wire: Any, tokens: list[str]) -> None:
    """An invalid token is exchanged again and the request repeated; a second refusal is final."""
    hand_out(wire, tokens[0])
    hand_out(wire, tokens[1])
    wire.fail("create_sampling_session", 401, headers=INVALID)
    service = connect()
    service.create_sampling_client(base_model="tinker/toy").result(10)
    assert [
        one.request.headers["x-api-key"] for one in wire.requests("create_sampling_session")
    ] == tokens[:2]
    hand_out(wire, tokens[2])
    wire.fail("create_sampling_session", 401, headers=INVALID, times=2)
    with pytest.raises(tinker.AuthenticationError):
        service.create_sampling_client(base_model="tinker/toy").result(10)


def test_a_token_that_cannot_be_sent(
    connect: Connect, wire: Any, clock: Any, tokens: list[str]
) -> None:
    """A token that no header can contain is not used, and not shown."""
    wire.fail("auth/token", 200, body={"jwt": "tml\nx"}, times=100)
    with pytest.raises(
        tinker.APIResponseValidationError,
        match="the token contains characters that a header cannot contain",
    ):
        connect().create_sampling_client(base_model="tinker/toy").result(10)
    assert wire.requests("create_sampling_session") == []
    wire.faults.clear()


def test_a_token_that_was_replaced_meanwhile(
    connect: Connect, wire: Any, tokens: list[str]
) -> None:
    """A token that another request has replaced is taken over, without one more exchange."""
    for token in tokens[:2]:
        hand_out(wire, token)
    service = connect()
    service.get_server_capabilities()
    wire.fail("create_sampling_session", 401, headers=INVALID)
    wire.fail("get_server_capabilities", 401, headers=INVALID)
    release = wire.hold("create_sampling_session")
    sampler = service.create_sampling_client(base_model="tinker/toy")
    wire.wait_for("create_sampling_session")
    service.get_server_capabilities()
    release()
    sampler.result(10)
    assert len(wire.requests("auth/token")) == 2


def test_other_refusals_are_final(connect: Connect, wire: Any, tokens: list[str]) -> None:
    """A 401 that does not mark the token as invalid is raised at once."""
    hand_out(wire, tokens[0])
    wire.fail("create_sampling_session", 401)
    with pytest.raises(tinker.AuthenticationError):
        connect().create_sampling_client(base_model="tinker/toy").result(10)


def test_token_is_renewed_before_it_expires(
    connect: Connect, wire: Any, clock: Any, tokens: list[str]
) -> None:
    """At half its lifetime a token is renewed in the background; near its end it is not used."""
    hand_out(wire, tokens[0])
    service = connect()
    service.create_sampling_client(base_model="tinker/toy").result(10)
    hand_out(wire, tokens[1])
    clock.now += 1900
    service.get_server_capabilities()
    wire.wait_for("auth/token", 2)
    clock.now += 3590
    hand_out(wire, tokens[2])
    service.get_server_capabilities()
    assert wire.requests("get_server_capabilities")[-1].request.headers["x-api-key"] == tokens[2]


def test_failed_renewal_keeps_the_token(
    connect: Connect, wire: Any, clock: Any, tokens: list[str]
) -> None:
    """A failed exchange fails no request while the current token is valid, and does afterwards."""
    hand_out(wire, tokens[0])
    service = connect()
    service.create_sampling_client(base_model="tinker/toy").result(10)
    wire.fail("auth/token", 400, times=10)
    clock.now += 3600 - 30
    service.get_server_capabilities()
    assert wire.requests("get_server_capabilities")[-1].request.headers["x-api-key"] == tokens[0]
    clock.now += 30
    with pytest.raises(tinker.BadRequestError):
        service.get_server_capabilities()
    for fault in wire.faults:
        fault.times = 0


def test_refused_key_fails_the_request(connect: Connect, wire: Any, tokens: list[str]) -> None:
    """A key that the exchange refuses raises an authentication error."""
    wire.fail("auth/token", 401, body={"detail": "unknown key"}, times=2)
    with pytest.raises(tinker.AuthenticationError, match="unknown key"):
        connect().create_sampling_client(base_model="tinker/toy").result(10)


def test_credential_command(connect: Connect, wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key, the output of the credential command is the credential."""
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    monkeypatch.setenv("TINKER_CREDENTIAL_CMD", "printf ' tml-from-command\n'")
    connect(api_key=None).create_sampling_client(base_model="tinker/toy").result(10)
    assert set(keys_of(wire)) == {"tml-from-command"}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("true", "printed no credential$"),
        ("echo tml-leak >&2; exit 3", "failed with exit code 3"),
        ("echo tml-leak; echo tml-leak", "must print one line of plain text"),
    ],
)
def test_broken_command(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, command: str, message: str
) -> None:
    """A command that prints nothing or fails is an error without its output."""
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    monkeypatch.setenv("TINKER_CREDENTIAL_CMD", command)
    with pytest.raises(tinker.TinkerError, match=message) as caught:
        connect(api_key=None).create_sampling_client(base_model="tinker/toy").result(10)
    assert "tml-leak" not in str(caught.value)


def test_server_that_insists_on_the_command(
    connect: Connect, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may accept only credentials of the command, even if a key is set."""
    wire.fail(
        "client/config",
        200,
        body={"pjwt_auth_enabled": True, "credential_default_source": "credential_cmd"},
    )
    hand_out(wire, jwt(1))
    monkeypatch.setenv("TINKER_CREDENTIAL_CMD", "echo tml-from-command")
    connect().create_sampling_client(base_model="tinker/toy").result(10)
    assert wire.requests("auth/token")[0].request.headers["x-api-key"] == "tml-from-command"


def test_stored_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the hosted service falls back to the stored key, which no error of its file shows."""
    for name in ("TINKER_API_KEY", "TINKER_BASE_URL", "TINKER_CREDENTIAL_CMD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / ".tinker" / "credentials.json"
    file.parent.mkdir()
    with pytest.raises(tinker.TinkerError, match="tinker auth login"):
        tinker.RestClient()
    file.write_text(
        json.dumps(
            {
                "version": 1,
                "default": "7",
                "keys": {"7": {"type": "manual", "key": "tml-stored", "name": "n"}},
            }
        )
    )
    found = default_key(file)
    assert found is not None
    assert found[1].key == "tml-stored"
    assert repr(found[1]) == "StoredKey('n')"
    tinker.RestClient()
    assert get_tinker_token() == "tml-stored"
    monkeypatch.setenv("TINKER_BASE_URL", "http://server")
    assert get_tinker_token() is None
    monkeypatch.delenv("TINKER_BASE_URL")
    for broken in ('{"keys": "tml-oops"', '{"keys": {"7": "tml-oops"}}'):
        file.write_text(broken)
        for use in (tinker.RestClient, lambda: store_default(file, "8", StoredKey(key="tml-new"))):
            with pytest.raises(tinker.TinkerError, match="could not read") as caught:
                use()
            assert "tml-oops" not in str(caught.value)
        assert file.read_text() == broken
    file.write_text('{"default": "7", "keys": {"7": {"key": "tml-oops\\nx"}}}')
    with pytest.raises(tinker.TinkerError, match="must be one line of plain text") as caught:
        tinker.RestClient()
    assert "tml-oops" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "eyJ", "a.b.c", "a.e30.c", "eyJ.!!!.x"])
def test_claims_of_invalid_tokens(text: str) -> None:
    """A string that is not a JWT has no claims and raises nothing."""
    assert read_claims(text).exp is None


def test_claims_of_any_length() -> None:
    """Claims are read whatever their length, although a JWT has no padding."""
    assert [read_claims(jwt(number)).sub for number in map(pow, [10] * 13, range(13))] == [
        f"user-{10**n}" for n in range(13)
    ]
