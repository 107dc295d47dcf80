"""The document that the local server answers for ``/openapi.json``: openapi.yaml as JSON, with that
server as its address.

Each operation, and each schema and other component, is one line, so that a change of the contract
changes only its own lines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from codegen.document import is_mapping
from codegen.files import Wanted

#: Down to this level each member of an object has a separate line.
DEPTH = 3


def make_document(root: Path, document: Any) -> Wanted:
    """Return the text of the document."""
    served = {**document, "servers": [{"url": "./", "description": "This server."}]}
    return {
        root / "tinker" / "local" / "web" / "assets" / "openapi.json": write_lines(served, DEPTH)
        + "\n"
    }


def write_lines(value: Any, depth: int) -> str:
    """Return JSON in which the members of the outer objects stand below one another."""
    if depth == 0 or not is_mapping(value) or not value:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    members = ",\n".join(
        f"{json.dumps(key)}:{write_lines(item, depth - 1)}" for key, item in value.items()
    )
    return f"{{\n{members}\n}}"
