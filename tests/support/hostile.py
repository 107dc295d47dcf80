"""A server whose texts attack whoever prints them: a toy server behind an application that spoils
every text of its answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, unquote

import attrs
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FORGED = "FORGED line"
#: A title for the window, an erased line, C1 controls, reversed text, separators of lines, a forged
#: line.
EVIL = (
    f"\x1b]0;owned\x07\x1b[2K\x00\x08\x7f\x9b31m\x85\u202eevil\u2066\u2028\u2029\u200f\r\n{FORGED}"
)
ORDINARY = "שלום 👩\u200d🚀 naïve"
_RAW = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# Words of an enumeration, what is sent back in protobuf, and addresses.
_KEPT = frozenset(
    [
        "type",
        "status",
        "state",
        "kind",
        "checkpoint_type",
        "category",
        "stop_reason",
        "dtype",
        "queue_state",
        "loss_fn_output_type",
        "model_id",
        "url",
        "token",
        "name_of_optimizer",
        "request_id",
    ]
)
_TIME = re.compile(r"\d{4}-\d\d-\d\d")


def find_attacks(text: str) -> list[str]:
    """Return what in an output is neither text nor the end of a line, and lines that somebody else
    began.
    """
    return [
        *(repr(one) for one in _RAW.findall(text)),
        *(line for line in text.split("\n") if line.startswith(FORGED)),
    ]


def spoil(value: Any, name: str = "") -> Any:
    """Return a JSON value with every text spoiled, and the names of metadata too."""
    if isinstance(value, dict):
        is_metadata = name.endswith("metadata")
        return {key + EVIL * is_metadata: spoil(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return [spoil(one, name) for one in value]
    return (
        value + EVIL
        if isinstance(value, str) and name not in _KEPT and not _TIME.match(value)
        else value
    )


def restore(value: Any) -> Any:
    """Return a JSON value as the server knows it."""
    if isinstance(value, dict):
        return {restore(key): restore(one) for key, one in value.items()}
    if isinstance(value, list):
        return [restore(one) for one in value]
    return value.replace(EVIL, "") if isinstance(value, str) else value


@attrs.define(eq=False)
class HostileApp:
    """The application. ``answer`` returns the status and body for a path, instead of the server's;
    None to leave it alone.
    """

    app: ASGIApp
    answer: Callable[[str], tuple[int, object] | None] = lambda path: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if (scripted := self.answer(scope["path"])) is not None:
            await _send(send, scripted[0], json.dumps(scripted[1]).encode())
            return
        headers = dict(scope["headers"])
        if headers.get(b"content-type", b"").startswith(b"application/json") and body:
            body = json.dumps(restore(json.loads(body))).encode()
        headers |= {b"content-length": str(len(body)).encode(), b"accept": b"application/json"}
        path = scope["path"].replace(EVIL, "")
        query = quote(unquote(scope["query_string"].decode()).replace(EVIL, ""), safe="=&").encode()
        changed = {
            **scope,
            "path": path,
            "raw_path": quote(path).encode(),
            "query_string": query,
            "headers": [*headers.items()],
        }
        given: Iterator[Message] = iter(
            [{"type": "http.request", "body": body, "more_body": False}]
        )
        start: Message = {}
        content = b""

        async def receive_again() -> Message:
            return next(given, None) or await receive()

        async def collect(message: Message) -> None:
            nonlocal start, content
            if message["type"] == "http.response.start":
                start = message
            else:
                content += message.get("body", b"")

        await self.app(changed, receive_again, collect)
        media_type = dict(start["headers"]).get(b"content-type", b"")
        if media_type.startswith(b"application/json"):
            await _send(send, start["status"], json.dumps(spoil(json.loads(content))).encode())
        else:
            await _send(send, start["status"], content, media_type)


async def _send(
    send: Send, status: int, content: bytes, media_type: bytes = b"application/json"
) -> None:
    headers = [(b"content-type", media_type), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


#: Every form in which servers explain a refusal.
EXPLANATIONS: dict[str, object] = {
    "a detail": {"detail": f"no{EVIL}"},
    "faults of fields": {"detail": [{"loc": ["body", f"seed{EVIL}"], "msg": f"bad{EVIL}"}]},
    "a message": {"error": {"message": f"no{EVIL}", "type": f"x{EVIL}"}},
    "another form": {f"what{EVIL}": [f"no{EVIL}"]},
    "a text": f"no{EVIL}",
}
