"""Write what findings of the conformance kit point to: a recorded exchange for each operation.

    python tools/evidence.py [--check]

makes tinker/testing/conformance/evidence.json from tests/golden. With `--check` nothing is written.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from tinker_wire.operations import OPERATIONS

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "tinker/testing/conformance/evidence.json"
RETRIEVE = "retrieve_future"
_LONGEST_LIST = 8

JSON = dict[str, Any]


def recorded_exchanges() -> dict[str, JSON]:
    """Return the first successful exchange of each operation, of a client of today; and of the results that are fetched."""
    chosen: dict[str, JSON] = {}
    for file in sorted((ROOT / "tests/golden").glob("*.jsonl")):
        if file.name.startswith("legacy"):
            continue
        submitted: dict[str, str] = {}
        for line in file.read_text(encoding="utf-8").splitlines():
            recorded = json.loads(line)
            for key in keys(recorded, submitted):
                chosen.setdefault(key, exchange(file.name, recorded))
    return dict(sorted(chosen.items()))


def keys(recorded: JSON, submitted: dict[str, str]) -> Iterator[str]:
    """Yield what an exchange shows: an operation, or with `retrieve_future:` before it, its result."""
    request, response = recorded["request"], recorded["response"]
    operation = find_operation(request["method"], request["path"])
    if operation is None or not 200 <= response["status"] < 300:
        return
    if operation != RETRIEVE:
        submitted[str((answer_of(response) or {}).get("request_id"))] = operation
        yield operation
        return
    body: JSON = request["body"] or {}
    waited_for = submitted.get(str(body.get("json", {}).get("request_id")))
    if waited_for is not None and (answer_of(response) or {}).get("type") != "try_again":
        yield from (RETRIEVE, f"{RETRIEVE}:{waited_for}")


def answer_of(response: JSON) -> JSON | None:
    """Return the JSON object of an answer, None for anything else."""
    body: JSON = response["body"] or {}
    found = body.get("json")
    return cast("JSON", found) if isinstance(found, dict) else None


def find_operation(method: str, path: str) -> str | None:
    """Return the operation of a request."""
    for name, operation in OPERATIONS.items():
        pattern = re.sub(r"\\{checkpoint_id\\}", "[^/]+/[^/]+", re.escape(operation.path))
        if operation.method == method and re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", pattern), path):
            return name
    return None


def exchange(file: str, recorded: JSON) -> JSON:
    """Return what is shown of an exchange: address, status and bodies, long lists cut off."""
    request, response = recorded["request"], recorded["response"]
    return {
        "recording": f"tests/golden/{file}:{recorded['n']}",
        "request": f"{request['method']} {request['path']}",
        "sent": shown(request["body"]),
        "status": response["status"],
        "answered": shown(response["body"]),
    }


def shown(body: JSON | None) -> Any:
    """Return a body as a reader wants it: JSON as it is, protobuf decoded under the name of its message."""
    if body is None:
        return None
    if "protobuf" in body:
        return {f"protobuf {body['protobuf']}": shorten(body["decoded"])}
    return shorten(body.get("json", body.get("text")))


def shorten(value: Any) -> Any:
    """Return a value with long lists cut off."""
    if isinstance(value, dict):
        return {key: shorten(item) for key, item in cast("JSON", value).items()}
    if isinstance(value, list):
        items = cast("list[Any]", value)
        rest = [f"... {len(items) - _LONGEST_LIST} more"] if len(items) > _LONGEST_LIST else []
        return [shorten(item) for item in items[:_LONGEST_LIST]] + rest
    return value


def write() -> str:
    """Return the text of the file."""
    return json.dumps(recorded_exchanges(), indent=1, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the file, or with `--check` say whether it is fresh."""
    is_stale = TARGET.read_text(encoding="utf-8") != write()
    if is_stale and "--check" not in arguments:
        TARGET.write_text(write(), encoding="utf-8")
    if is_stale:
        print(f"{TARGET.relative_to(ROOT)}: {'not fresh' if '--check' in arguments else 'written'}")
    return 1 if is_stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
