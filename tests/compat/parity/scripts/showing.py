"""Print a script's findings, one JSON line each, the same for every client."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import warnings
from collections.abc import Callable
from typing import Any

warnings.simplefilter("ignore")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def show(name: str, value: Any) -> None:
    """Print a value under a name; numbers to four digits, ids and times by their kind."""
    print(json.dumps({name: plain(value)}, sort_keys=True), flush=True)


def failure(name: str, call: Callable[[], Any]) -> None:
    """Show which exception a call raises at once or from its future, with its status."""
    try:
        result = call()
        result.result() if hasattr(result, "result") else result
    except Exception as error:  # noqa: BLE001 - any error is shown
        show(name, [type(error).__name__, getattr(error, "status_code", None)])
    else:
        show(name, "no failure")


def plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, bool | None):
        return value
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{value:.4g}")
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return UUID.sub("<uuid>", value)
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if hasattr(value, "isoformat"):
        return "<time>"
    if hasattr(value, "model_dump"):
        return plain(value.model_dump())
    return plain(dataclasses.asdict(value))
