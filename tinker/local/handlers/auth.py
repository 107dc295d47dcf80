"""Handlers of keys and tokens."""

from __future__ import annotations

from tinker_wire import models

from tinker.local.call import APICall
from tinker.local.errors import APIProblem
from tinker.local.state import State
from tinker.local.storage.access import USER_EMAIL, USER_NAME


async def auth_token(state: State, call: APICall) -> models.AuthTokenResponse:
    """Make a token for the key of this request."""
    call.read(models.AuthTokenRequest)
    return models.AuthTokenResponse(jwt=state.accounts.token(call.credential))


async def get_api_key(state: State, call: APICall) -> models.SelfApiKeyResponse:
    """Return the number of the key of this request, and its owner."""
    details = models.SelfApiKeyDetails(
        org_details=models.SelfApiKeyOrganization(name=USER_NAME),
        user_details=models.SelfApiKeyUser(email=USER_EMAIL),
    )
    return models.SelfApiKeyResponse(
        key_id=state.accounts.key_id(_require_key(call)),
        name="local",
        note="a key of this server",
        details=details,
    )


async def delete_api_key(state: State, call: APICall) -> None:
    """Revoke the key of this request, for as long as the server runs."""
    with state.lock() as shared:
        state.accounts.revoke(_require_key(call))
        shared.audit.record(
            "api_key_revoked", "organizations", key_id=state.accounts.key_id(call.credential)
        )


def _require_key(call: APICall) -> bytes:
    if not call.credential:
        raise APIProblem(401, "the request has no key in X-API-Key")
    return call.credential
