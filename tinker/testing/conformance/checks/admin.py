"""Keys, tokens, and what an organization sees of itself."""

from __future__ import annotations

import base64
import datetime

import msgspec
from tinker_wire import models
from tinker_wire.api import admin as api
from tinker_wire.api import auth as auth_api
from tinker_wire.api import service as service_api

from tinker.testing.conformance.bench import Bench
from tinker.testing.conformance.outcome import Contradiction
from tinker.testing.conformance.registry import check


@check("get_server_capabilities")
def wrong_key(bench: Bench) -> None:
    """A server with accounts refuses a wrong key, and none, with 401; one without them takes any."""
    request = service_api.get_server_capabilities()
    for key in (None, "tml-no-such-key"):
        if bench.send(request, key=key).status != 200:
            bench.refused(request, 401, key=key)


@check("auth_token")
def token(bench: Bench) -> None:
    """A credential is exchanged for a JWT with `iat` and `exp` that lie ahead, and the JWT opens the API."""
    jwt = bench.call(auth_api.auth_token(models.AuthTokenRequest())).jwt
    claims = _claims(jwt)
    now = datetime.datetime.now(datetime.UTC).timestamp()
    ahead = claims.exp > max(now, claims.iat)
    bench.expect(ahead, f"the token is from {claims.iat:.0f} and ends at {claims.exp:.0f}; now is {now:.0f}")
    answer = bench.send(service_api.get_server_capabilities(), key=jwt)
    bench.require(answer.status == 200, f"with the JWT, {answer}")


class _Claims(msgspec.Struct, frozen=True):
    """When a JWT was made and when it ends, in seconds since 1970."""

    iat: float
    exp: float


def _claims(jwt: str) -> _Claims:
    """What a JWT says of its time. Contradiction when it is none; its signature is the server's business."""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(jwt.split(".")[1] + "=="), type=_Claims)
    except (ValueError, IndexError) as error:
        raise Contradiction(f"the token is no JWT with iat and exp: {error}") from error


@check("get_api_key")
def api_key(bench: Bench) -> None:
    """The key of the request has an id and a name."""
    bench.call(auth_api.get_api_key())


@check("get_audit_log")
def audit(bench: Bench) -> None:
    """The audit log of a day is answered, or redirected to a URL that needs no credential."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    for request in (api.get_audit_log(), api.get_audit_log(event_type="checkpoints", day=today)):
        answer = bench.send(request)
        if answer.status == 302:
            bench.require("location" in answer.headers, "a redirect names no target")
            answer = bench.link.fetch(answer.headers["location"], bench.deadline)
        bench.accepted(request, answer)


@check("get_billing_usage")
def usage(bench: Bench) -> None:
    """The usage of an hour is answered."""
    now = datetime.datetime.now(datetime.UTC).replace(minute=0, second=0, microsecond=0)
    day = datetime.timedelta(days=1)
    found = bench.call(api.get_billing_usage(starting_on=now - day, ending_before=now)).data
    outside = [one for one in found if not now - day <= one.bucket_start < now]
    bench.expect(not outside, f"{len(outside)} of {len(found)} events lie outside the time that was asked for")


@check("get_checkpoint_storage_usage")
def storage(bench: Bench) -> None:
    """What checkpoints store is answered."""
    bench.call(api.get_checkpoint_storage_usage())


@check("delete_api_key", destructive=True)
def revoke(bench: Bench) -> None:
    """A revoked key opens nothing any more."""
    bench.call(auth_api.delete_api_key())
    bench.refused(auth_api.get_api_key(), 401)
