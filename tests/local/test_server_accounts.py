"""Keys and tokens: what each one allows, how long a token is valid, and what revoking does."""

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
def api(make_api: MakeApi, clock: Clock) -> Api:
    """Return a server that requires tokens, valid for ten minutes."""
    return make_api(clock=clock, api_key="tml-secret", client_config=TOKENS, token_seconds=600.0)


def test_a_key_is_exchanged_for_a_token(api: Api, clock: Clock) -> None:
    """The key allows configuration and exchange, the token, which names owner and expiry, all."""
    assert api.ok("client_config", CONFIG, headers=KEY)["pjwt_auth_enabled"] is True
    api.refuses(401, "exchange the key", "create_session", SESSION, headers=KEY)
    given = token(api)
    assert given["x-api-key"].startswith("eyJ")
    found = claims(given)
    assert (found["iat"], found["exp"]) == (clock.seconds, clock.seconds + 600)
    assert {"sub", "org_id", "email"} <= found.keys()
    assert api.ok("create_session", SESSION, headers=given)


def test_an_expired_token_is_called_invalid(api: Api, make_api: MakeApi, clock: Clock) -> None:
    """A token that is expired, forged or another server's is 401 with the words for an exchange."""
    given = token(api)
    clock.seconds += 600
    forged = {"x-api-key": given["x-api-key"][:-4] + "AAAA"}
    others = token(make_api(api_key="tml-secret", client_config=TOKENS))
    nonsense = ({"x-api-key": "eyJ.x.y"}, {"x-api-key": "eyJ.é.y".encode()}, {})
    for bad in (given, forged, others, *nonsense):
        answer = api.call("create_session", SESSION, headers=bad)
        assert answer.status_code == 401
        assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert api.ok("create_session", SESSION, headers=token(api))


def test_only_the_key_gets_a_token(api: Api) -> None:
    """A wrong key is 401 without those words, as an exchange would not help; a token is a key."""
    answer = api.call("auth_token", {}, headers={"x-api-key": "tml-other"})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert token(api, token(api))


ONE, OTHER = ({"x-api-key": name} for name in ("tml-one", "tml-other"))


def test_a_key_has_a_number_until_it_is_revoked(make_api: MakeApi) -> None:
    """A key and its tokens have one number and one owner, and are refused once it is revoked."""
    api = make_api()
    about, given = api.ok("get_api_key", headers=ONE), token(api, ONE)
    assert about["details"]["user_details"]["email"]
    # the first of two headers counts
    for same in (given, [*ONE.items(), *OTHER.items()]):
        assert api.ok("get_api_key", headers=same)["key_id"] == about["key_id"]
    assert api.ok("get_api_key", headers=OTHER)["key_id"] != about["key_id"]
    assert api.call("delete_api_key", headers=ONE).status_code == 204
    for bad in (ONE, given):
        api.refuses(401, "revoked", "create_session", SESSION, headers=bad)
    assert api.ok("create_session", SESSION, headers=OTHER)
    for operation in ("get_api_key", "delete_api_key"):
        assert api.refused(operation)[0] == 401


def link_token(api: Api, headers: dict[str, str]) -> dict[str, str]:
    """Return the headers of a request with the token of a download link."""
    session = api.ok("create_session", SESSION, headers=headers)["session_id"]
    exports = (api.ok("trace_export", headers=headers, session_id=session) for _ in range(10**6))
    url = next(export["url"] for export in exports if export["status"] != "pending")
    return {"x-api-key": url.split("/")[-2]}


@pytest.mark.parametrize("tokens_needed", [True, False])
def test_the_token_of_a_link_is_no_credential(make_api: MakeApi, tokens_needed: bool) -> None:
    """A download link's token is 401 as a key and as a token, and any text where there is no key."""
    config = models.ClientConfigResponse(pjwt_auth_enabled=tokens_needed)
    api, without_key = make_api(api_key="tml-secret", client_config=config), make_api()
    link = link_token(api, token(api))
    bodies = {"client_config": CONFIG, "create_session": SESSION, "auth_token": {}}
    for name, body in {**bodies, "get_api_key": None}.items():
        assert api.call(name, body, headers=link).status_code == 401, name
    assert without_key.ok("get_api_key", headers=link_token(without_key, {}))["key_id"] >= 0
