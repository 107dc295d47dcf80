"""Which operations of the contract a server has, found out by requests that reach none of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

from tinker_wire.operations import OPERATIONS
from tinker_wire.runtime import Operation, Request

from tinker._http import ABSENT_STATUSES, WRONG_METHOD_STATUS
from tinker.cli.commands.doctor.prober import Prober
from tinker.cli.commands.doctor.report import CheckResult, Support
from tinker.errors import TinkerError

# No operation has this method, so it never reaches one: a server that knows the path says that the method is wrong.
_HARMLESS_METHOD = "PATCH"
_NO_OPERATION = "/api/v1/no_such_operation"
_CONCURRENT_REQUESTS = 8


async def find_operations(prober: Prober) -> dict[str, Support]:
    """Say of each operation whether its path exists; unknown where a server answers every path alike."""
    slots = asyncio.Semaphore(_CONCURRENT_REQUESTS)

    async def probe(path: str) -> Support:
        async with slots:
            return await _probe(prober, path)

    paths = {name: _example_path(operation) for name, operation in OPERATIONS.items()}
    unique = sorted({*paths.values(), _NO_OPERATION})
    support = dict(zip(unique, await asyncio.gather(*map(probe, unique))))
    if support[_NO_OPERATION] != "no" or support[paths["get_server_capabilities"]] != "yes":
        return dict.fromkeys(paths, "unknown")
    return {name: support[path] for name, path in paths.items()}


async def _probe(prober: Prober, path: str) -> Support:
    request: Request[None] = Request(operation="doctor", method=_HARMLESS_METHOD, path=path, reply=None)
    try:
        status = await prober.status(request)
    except TinkerError:
        return "unknown"
    return "yes" if status == WRONG_METHOD_STATUS else "no" if status in ABSENT_STATUSES else "unknown"


def _example_path(operation: Operation) -> str:
    """Return the path with names that belong to nothing."""
    return re.sub(r"\{[^}]*\}", "doctor", operation.path.replace("{checkpoint_id}", "weights/doctor"))


def summarize_operations(operations: Mapping[str, Support]) -> CheckResult:
    """Count the operations and name the missing ones."""
    missing = sorted(name for name, support in operations.items() if support == "no")
    if "yes" not in operations.values():
        return CheckResult("operations", "note", "the server does not tell which it has")
    present = sum(support == "yes" for support in operations.values())
    detail = f"{present} of {len(operations)}"
    if missing:
        detail += f"; missing: {', '.join(missing)}"
    return CheckResult("operations", "note" if missing else "ok", detail)
