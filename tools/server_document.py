"""Make the document that the local server answers for ``/openapi.json``: openapi.yaml as JSON, with itself as the server.

    python tools/server_document.py [--check]

``--check`` changes nothing; its exit status says whether the document is fresh.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "openapi.yaml"
FILE = ROOT / "tinker" / "local" / "web" / "assets" / "openapi.json"


def write_document() -> str:
    """Return the document's text."""
    yaml: Any = YAML(typ="safe", pure=True)
    document: dict[str, Any] = yaml.load(SOURCE.read_text(encoding="utf-8"))
    document["servers"] = [{"url": "./", "description": "This server."}]
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), default=str) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the document, or compare it with the one that is there."""
    text = write_document()
    if "--check" not in arguments:
        FILE.write_text(text, encoding="utf-8")
        return 0
    if FILE.exists() and FILE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{FILE.relative_to(ROOT)} is not what openapi.yaml says; run python tools/server_document.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
