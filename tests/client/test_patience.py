"""Clients that were told how long to try."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import tinker
from tinker import _transport

Connect = Callable[..., tinker.ServiceClient]


@pytest.mark.parametrize(("patience", "tries"), [(0, 1), (2, 3)])
def test_patience(patience: float, tries: int, connect: Connect, wire: Any) -> None:
    """A request is tried again no longer than its client was told to, whatever its policy says."""
    wire.fail("client/config", 503, times=tries)
    rest = connect(patience_seconds=patience).create_rest_client()
    with pytest.raises(tinker.InternalServerError):
        rest.list_sessions().result(10)


def test_a_silent_server(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is impatient does not wait out a server that says nothing."""

    class Silent(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await asyncio.Event().wait()
            raise AssertionError

    monkeypatch.setattr(_transport, "SHORTEST_PATIENCE_SECONDS", 0.0)
    rest = connect(patience_seconds=0, transport=Silent()).create_rest_client()
    with pytest.raises(tinker.APITimeoutError, match="no answer within 0 s"):
        rest.list_sessions().result(10)
