"""A server that replays a recording: it answers the recorded requests, and records all others as
faults.

Equal means: the same method, path and query; JSON with the same fields and numbers, in any order of
fields; protobuf that is the same message; and the headers that say something.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from support.google_messages import google_messages
from support.judge import plain
from support.recordings import Exchange, restored

KEY = "tml-test-key"
SESSION = "5e551011-0000-4000-8000-000000000001"
MODEL = f"{SESSION}:train:0"
API = "/api/v1/"
PROTOBUF = "application/x-protobuf"
#: Requests whose order is a matter of chance.
UNORDERED = (
    "session_heartbeat",
    "retrieve_future",
    "retrieve_futures",
    "client/dynamic_config",
    "auth/token",
    "cancel_future",
)
#: Headers that have to be equal; the other ones are about the client or about this very exchange.
SAID = (
    "content-encoding",
    "x-tinker-request-iteration",
    "x-tinker-request-type",
    "x-tinker-sampling-backpressure",
    "x-tinker-weights-access-token",
)
#: Headers whose value is another one each time, and which have to be there or not.
THERE = ("x-tinker-create-promise-roundtrip-time",)
_JWT = re.compile(r"<jwt (sig\d+)>")

Body = dict[str, Any]
#: The JSON body of a request to an operation as it is compared.
Normal = Callable[[str, Body], Body]
#: Status and JSON of an answer.
Reply = tuple[int, Body | None]

#: Parts that recordings leave out: the creation of a session, its first model and its first
#: sampler, and its end.
LEFT_OUT: Mapping[str, Reply] = {
    "client/config": (200, {}),
    "client/dynamic_config": (200, {}),
    "create_session": (200, {"session_id": SESSION}),
    "session_heartbeat": (200, {}),
    "create_model": (200, {"request_id": "req-0001", "model_id": MODEL}),
    "get_info": (200, {"model_id": MODEL, "model_data": {"model_name": "Qwen/Qwen3-8B"}}),
    "create_sampling_session": (200, {"sampling_session_id": f"{SESSION}:sample:0"}),
    f"sessions/{SESSION}/finish": (204, None),
}


def unchanged(operation: str, body: Body) -> Body:
    """Compared as it is."""
    return body


def number(exchange: Exchange) -> int:
    """Return the number of an exchange in its file."""
    return int(exchange.place.rpartition(":")[2])


class Replay(httpx.AsyncBaseTransport):
    """Plays the exchanges of one file.

    ``normal`` makes bodies comparable. ``beyond`` are the answers to requests that were not
    recorded and may be made all the same. ``faults`` says what was sent otherwise than recorded;
    ``order`` lists the recorded requests as they came. A result that is fetched again is the same
    again; ``again`` lists these polls.
    """

    def __init__(
        self,
        recorded: Iterable[Exchange],
        normal: Normal = unchanged,
        beyond: Mapping[str, Reply] | None = None,
        token_seconds: int = 3600,
    ) -> None:
        self._unsent = list(recorded)
        known = {one.path.removeprefix(API) for one in self._unsent}
        self._beyond = {
            name: reply for name, reply in LEFT_OUT.items() if name not in known
        } | dict(beyond or {})
        self._normal, self._token_seconds = normal, token_seconds
        self._arrived = threading.Condition()
        self.faults: list[str] = []
        self.order: list[Exchange] = []
        self.again: list[int] = []

    @property
    def unsent(self) -> list[str]:
        """The recorded requests that were not made."""
        return [f"{one.place} {one.path}" for one in self._unsent]

    @property
    def submitted(self) -> list[int]:
        """The numbers of the requests whose order is no matter of chance, as they came."""
        return [number(one) for one in self.order if one.path.removeprefix(API) not in UNORDERED]

    def wait_for(self, *numbers: int) -> None:
        """Until these recorded requests have been made."""
        with self._arrived:
            assert self._arrived.wait_for(
                lambda: set(numbers) <= set(map(number, self.order)), timeout=10
            ), self.faults

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        content = plain(request.headers, await request.aread())
        path, _, query = request.url.raw_path.decode().partition("?")
        operation = path.removeprefix(API)
        sent = (
            request.method,
            path,
            query,
            self._key(operation, content, request.headers.get("content-type", "")),
        )
        found = next((one for one in self._unsent if self._asked(one) == sent), None)
        if found is not None:
            return await self._recorded(found, request)
        before = next(
            (
                one
                for one in self.order
                if operation == "retrieve_future" and self._asked(one) == sent
            ),
            None,
        )
        if before is not None:
            self.again.append(number(before))
            return self._respond(before)
        if operation in self._beyond:
            status, body = self._beyond[operation]
            return httpx.Response(status, json=body) if body is not None else httpx.Response(status)
        self.faults.append(
            f"{request.method} {path}?{query} {sent[3]!r}, where there is {self._like(path)}"
        )
        return httpx.Response(418)  # final, for any client

    async def _recorded(self, found: Exchange, request: httpx.Request) -> httpx.Response:
        with self._arrived:
            self._unsent.remove(found)
            self.order.append(found)
            self._arrived.notify_all()
        self.faults += header_faults(found, request.headers, self._completed)
        body = found.response.json
        if (
            isinstance(body, dict)
            and body.get("type") == "try_again"
            and self._asked(found) not in map(self._asked, self._unsent)
        ):
            await asyncio.Event().wait()  # the last poll was held until it was abandoned
        return self._respond(found)

    def _respond(self, found: Exchange) -> httpx.Response:
        body = found.response.json
        content = (
            found.response.content if body is None else json.dumps(self._completed(body)).encode()
        )
        headers = {name: self._completed(value) for name, value in found.response.headers.items()}
        return httpx.Response(found.status, headers=headers, content=content)

    def _asked(self, one: Exchange) -> tuple[str, str, str, object]:
        media_type = one.request.headers.get("content-type", "")
        return (
            one.method,
            one.path,
            one.query,
            self._key(one.path.removeprefix(API), one.request.content, media_type),
        )

    def _key(self, operation: str, content: bytes, media_type: str) -> object:
        """Return what equal bodies have in common."""
        if not content:
            return None
        if media_type == PROTOBUF:
            return (
                google_messages()["ForwardBackwardRequest"]
                .FromString(content)
                .SerializeToString(deterministic=True)
            )
        return json.dumps(self._normal(operation, json.loads(content)), sort_keys=True)

    def _like(self, path: str) -> str:
        left = [self._asked(one)[3] for one in self._unsent if one.path == path]
        return f"{left[0]!r}" if left else "nothing recorded, or nothing left"

    def _completed(self, value: Any) -> Any:
        """Return a recorded value with a token and an address where they were."""
        if isinstance(value, dict):
            return {name: self._completed(item) for name, item in value.items()}
        if isinstance(value, list):
            return list(map(self._completed, value))
        if isinstance(value, str) and (found := _JWT.fullmatch(value)):
            return token(found[1], self._token_seconds)
        return (
            value.replace("<base_url>", "http://server")
            if isinstance(value, str)
            else restored(value)
        )


def as_app(replay: Replay) -> ASGIApp:
    """Return the recording played on a port, for commands."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        asked = httpx.Request(
            request.method,
            str(request.url),
            headers=dict(request.headers),
            content=await request.body(),
        )
        answer = await replay.handle_async_request(asked)
        await Response(answer.content, answer.status_code, dict(answer.headers))(
            scope, receive, send
        )

    return app


def header_faults(
    recorded: Exchange, headers: Mapping[str, str], completed: Callable[[Any], Any]
) -> Iterable[str]:
    """Return the headers whose meaning differs from the recorded ones."""
    there = recorded.request.headers
    names = [name for name in SAID if headers.get(name) != completed(there.get(name))]
    if not isinstance(there.get("x-api-key"), str) or not _JWT.fullmatch(there["x-api-key"]):
        names += ["x-api-key"] if headers.get("x-api-key") != there.get("x-api-key") else []
    names += [name for name in THERE if (name in headers) != (name in there)]
    if recorded.request.content and headers.get("content-type") != there.get("content-type"):
        names.append("content-type")
    if there["accept"] not in (*headers["accept"].split(", "), "*/*"):
        names.append("accept")
    return [
        (
            f"{recorded.place}: the header {name} is {headers.get(name)!r}, recorded "
            f"{there.get(name)!r}"
        )
        for name in names
    ]


def token(signature: str, seconds: int) -> str:
    """Return a JWT that holds for so long."""
    parts = (
        {"alg": "none"},
        {"iat": 0, "exp": seconds, "sub": "u1", "org_id": "o1", "email": "dev@example.com"},
    )
    return ".".join(
        [
            *(
                base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
                for part in parts
            ),
            signature,
        ]
    )
