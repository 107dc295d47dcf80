"""Keys, tokens, and what an organization sees of itself."""

from __future__ import annotations

import base64
import datetime

import msgspec
from tinker_wire import models
from tinker_wire.api import admin as api
from tinker_wire.api import auth as auth_api
from tinker_wire.api import service as service_api

from tinker.testing.conformance.context import CheckContext
from tinker.testing.conformance.outcome import Contradiction
from tinker.testing.conformance.registry import check
from tinker.testing.conformance.values import in_utc


@check("get_server_capabilities")
def wrong_key(context: CheckContext) -> None:
    """A server with accounts refuses a wrong or missing key with 401; a server without accounts
    accepts any.
    """
    request = service_api.get_server_capabilities()
    for key in (None, "tml-no-such-key"):
        if context.send(request, key=key).status != 200:
            answer = context.expect_refusal(request, 401, key=key)
            if answer.status == 401 and "www-authenticate" not in answer.headers:
                context.note_difference(
                    f"{answer.message} answers 401 without it",
                    "no WWW-Authenticate",
                    request.operation,
                )


@check("auth_token")
def token(context: CheckContext) -> None:
    """A credential can be exchanged for a JWT with `iat` and a future `exp`, and the JWT is
    accepted.
    """
    jwt = context.call(auth_api.auth_token(models.AuthTokenRequest())).jwt
    claims = _claims(jwt)
    now = datetime.datetime.now(datetime.UTC).timestamp()
    ahead = claims.exp > max(now, claims.iat)
    context.expect(
        ahead, f"the token is from {claims.iat:.0f} and ends at {claims.exp:.0f}; now is {now:.0f}"
    )
    answer = context.send(service_api.get_server_capabilities(), key=jwt)
    context.require(answer.status == 200, f"with the JWT, {answer}")


class _TokenClaims(msgspec.Struct, frozen=True):
    """When a JWT was made and when it ends, in seconds since 1970."""

    iat: float
    exp: float


def _claims(jwt: str) -> _TokenClaims:
    """Return the times in a JWT, whose signature is not checked. Contradiction for
    anything else.
    """
    try:
        return msgspec.json.decode(
            base64.urlsafe_b64decode(jwt.split(".")[1] + "=="), type=_TokenClaims
        )
    except (ValueError, IndexError) as error:
        raise Contradiction("the token is not a JWT with iat and exp") from error


@check("get_api_key")
def api_key(context: CheckContext) -> None:
    """The key of the request has an id and a name."""
    context.call(auth_api.get_api_key())


@check("get_audit_log")
def audit(context: CheckContext) -> None:
    """The audit log of a day is returned, or a redirect to a URL that needs no credential."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    for request in (api.get_audit_log(), api.get_audit_log(event_type="checkpoints", day=today)):
        answer = context.send(request)
        if answer.status == 302:
            context.require("location" in answer.headers, "a redirect names no target")
            answer = context.connection.fetch(answer.headers["location"], context.deadline)
        context.decode_accepted(request, answer)


@check("get_billing_usage")
def usage(context: CheckContext) -> None:
    """The usage of an hour is returned."""
    now = datetime.datetime.now(datetime.UTC).replace(minute=0, second=0, microsecond=0)
    day = datetime.timedelta(days=1)
    found = context.call(api.get_billing_usage(starting_on=now - day, ending_before=now)).data
    outside = [one for one in found if not now - day <= in_utc(one.bucket_start) < now]
    context.expect(
        not outside,
        f"{len(outside)} of {len(found)} events lie outside the time that was asked for",
    )


@check("get_checkpoint_storage_usage")
def storage(context: CheckContext) -> None:
    """The storage of checkpoints is returned."""
    context.call(api.get_checkpoint_storage_usage())


@check("delete_api_key", destructive=True)
def revoke(context: CheckContext) -> None:
    """A revoked key is refused."""
    context.call(auth_api.delete_api_key())
    context.expect_refusal(auth_api.get_api_key(), 401)
