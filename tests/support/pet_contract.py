"""JSON pointers into the small contract, and changes to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FIXTURE = Path(__file__).with_name("pet_contract.yaml")

SCHEMA = "components/schemas"
PET = f"{SCHEMA}/PetRequest"
FIELD = f"{PET}/properties"
NAME = f"{FIELD}/name"
TOY = f"{SCHEMA}/Toy"
POST = "paths/~1api~1v1~1pets/post"
GET = "paths/~1api~1v1~1pets/get"
HEADER = f"{POST}/parameters/0"
QUERY = f"{GET}/parameters"

#: Put in place of a value to take its key away.
REMOVED = object()


def put(document: Any, pointer: str, value: object) -> None:
    """Set the value at a JSON pointer, without its leading `#/`."""
    *parents, last = [key.replace("~1", "/").replace("~0", "~") for key in pointer.split("/")]
    for key in parents:
        document = document[int(key) if isinstance(document, list) else key]
    key = int(last) if isinstance(document, list) else last
    if value is REMOVED:
        del document[key]
    else:
        document[key] = value
