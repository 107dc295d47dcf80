"""A request as an ASGI application sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    import httpx


def make_scope(request: httpx.Request) -> dict[str, Any]:
    """Return the ASGI scope of a request."""
    raw_path = request.url.raw_path.partition(b"?")[0]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": request.url.scheme,
        "path": unquote(raw_path.decode("ascii")),
        "raw_path": raw_path,
        "query_string": request.url.query,
        "server": (request.url.host, request.url.port),
        "client": ("127.0.0.1", 123),
        "root_path": "",
    }
