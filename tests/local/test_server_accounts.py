"""Keys and tokens: which operations each one allows, how long a token is valid, and what revoking
does.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from support.api import Api, Clock, MakeApi
from tinker_wire import models

SESSION = {"tags": [], "sdk_version": "1"}
CONFIG = {"sdk_version": "1"}
KEY = {"x-api-key": "tml-secret"}
TOKENS = models.ClientConfigResponse(pjwt_auth_enabled=True)


def token(api: Api, headers: dict[str, str] = KEY) -> dict[str, str]:
    """Return the headers of a request with a fresh token."""
    return {"x-api-key": api.ok("auth_token", {}, headers=headers)["jwt"]}


def claims(headers: dict[str, str]) -> dict[str, Any]:
    part = headers["x-api-key"].split(".")[1]
    decoded: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return decoded


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def api(make_api: MakeApi, clock: Clock) -> Api:
    """Return a server that requires tokens, valid for ten minutes."""
    return make_api(clock=clock, api_key="tml-secret", client_config=TOKENS, token_seconds=600.0)


def test_a_key_is_exchanged_for_a_token(api: Api, clock: Clock) -> None:
    """The key allows configuration and exchange only; the token, which names its owner and expiry,
    allows everything else.
    """
    assert api.ok("client_config", CONFIG, headers=KEY)["pjwt_auth_enabled"] is True
    status, detail = api.refused("create_session", SESSION, headers=KEY)
    assert (status, "exchange the key" in detail) == (401, True)
    given = token(api)
    assert given["x-api-key"].startswith("eyJ")
    found = claims(given)
    assert (found["iat"], found["exp"]) == (clock.seconds, clock.seconds + 600)
    assert {"sub", "org_id", "email"} <= found.keys()
    assert api.ok("create_session", SESSION, headers=given)


def test_an_expired_token_is_called_invalid(api: Api, clock: Clock) -> None:
    """An expired or forged token is 401 with the words that make clients exchange
    their key again.
    """
    given = token(api)
    clock.seconds += 600
    forged = {"x-api-key": given["x-api-key"][:-4] + "AAAA"}
    for bad in (given, forged, {"x-api-key": "eyJ.x.y"}, {"x-api-key": "eyJ.é.y".encode()}, {}):
        answer = api.call("create_session", SESSION, headers=bad)
        assert answer.status_code == 401
        assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert api.ok("create_session", SESSION, headers=token(api))


def test_only_the_key_gets_a_token(api: Api) -> None:
    """A wrong key is 401 without those words, because another exchange would not help; a valid
    token is accepted as a key.
    """
    answer = api.call("auth_token", {}, headers={"x-api-key": "tml-other"})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert token(api, token(api))


def test_tokens_of_another_server_are_not_taken(api: Api, make_api: MakeApi) -> None:
    """A server refuses tokens signed by another server."""
    other = make_api(api_key="tml-secret", client_config=TOKENS)
    assert api.refused("create_session", SESSION, headers=token(other))[0] == 401


def test_without_the_switch_key_and_token_both_do(make_api: MakeApi) -> None:
    """A server that does not require tokens accepts them."""
    api = make_api(api_key="tml-secret")
    for headers in (KEY, token(api)):
        assert api.ok("create_session", SESSION, headers=headers)


def test_a_key_can_be_asked_what_it_is(make_api: MakeApi) -> None:
    """A key has a number, a name and an owner; its tokens have the same number."""
    api = make_api()
    one, other = ({"x-api-key": name} for name in ("tml-one", "tml-other"))
    about = api.ok("get_api_key", headers=one)
    assert about["details"]["user_details"]["email"]
    assert about["key_id"] == api.ok("get_api_key", headers=token(api, one))["key_id"]
    assert about["key_id"] != api.ok("get_api_key", headers=other)["key_id"]
    both = [*one.items(), *other.items()]
    # the first of two headers counts
    assert about["key_id"] == api.ok("get_api_key", headers=both)["key_id"]
    assert api.refused("get_api_key")[0] == 401


def test_a_revoked_key_and_its_tokens_are_refused(make_api: MakeApi) -> None:
    """A revoked key and its tokens are refused; other keys are unaffected."""
    api = make_api()
    one, other = ({"x-api-key": name} for name in ("tml-one", "tml-other"))
    given = token(api, one)
    assert api.call("delete_api_key", headers=one).status_code == 204
    for bad in (one, given):
        status, detail = api.refused("create_session", SESSION, headers=bad)
        assert (status, "revoked" in detail) == (401, True)
    assert api.ok("create_session", SESSION, headers=other)
    assert api.refused("delete_api_key")[0] == 401


def link_token(api: Api, headers: dict[str, str]) -> dict[str, str]:
    """Return the headers of a request with the token of a download link."""
    session = api.ok("create_session", SESSION, headers=headers)["session_id"]
    while (export := api.ok("trace_export", headers=headers, session_id=session))[
        "status"
    ] == "pending":
        pass
    return {"x-api-key": export["url"].split("/")[-2]}


@pytest.mark.parametrize("tokens_needed", [True, False])
def test_the_token_of_a_link_is_no_credential(make_api: MakeApi, tokens_needed: bool) -> None:
    """A download link's token is 401 as a key and as a token."""
    config = models.ClientConfigResponse(pjwt_auth_enabled=tokens_needed)
    api = make_api(api_key="tml-secret", client_config=config)
    link = link_token(api, token(api))
    for name, body in (
        ("client_config", CONFIG),
        ("create_session", SESSION),
        ("auth_token", {}),
        ("get_api_key", None),
    ):
        assert api.call(name, body, headers=link).status_code == 401, name


def test_the_token_of_a_link_is_any_text_where_there_is_no_key(make_api: MakeApi) -> None:
    """A server without a key accepts a link's token as it accepts any other text."""
    api = make_api()
    link = link_token(api, {})
    assert api.ok("create_session", SESSION, headers=link)
    assert api.ok("get_api_key", headers=link)["key_id"] >= 0
