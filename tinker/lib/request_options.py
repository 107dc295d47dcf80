"""A type that annotations of older code name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import httpx


class RequestOptions(TypedDict, total=False):
    """What could be said about one request. No method takes it; arguments of ``ServiceClient`` say
    such things.
    """

    headers: Mapping[str, str]
    max_retries: int
    timeout: float | httpx.Timeout | None
    params: Mapping[str, object]
    extra_json: Mapping[str, Any]
    idempotency_key: str
    follow_redirects: bool
