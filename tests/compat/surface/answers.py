#!/usr/bin/env python3
"""Write down which fields of answers the importable `tinker` package requires, and which it takes
as null.

    python tests/compat/surface/answers.py tests/compat/surface/official/0.38.0-answers.json

Run it in an environment that holds the official package. The file holds server_config only: for
each class the names of its fields as they travel, and of each field whether it may be null and
whether it must be there. Classes that are only sent are left out.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import pathlib
import sys
import types
import typing
from typing import Any

ServerConfig = dict[str, dict[str, dict[str, bool]]]


def main() -> None:
    import tinker.types

    classes = inspect.getmembers(tinker.types, inspect.isclass)
    server_config = {
        name: fields
        for name, kind in classes
        if is_answer(name, kind) and (fields := fields_of(kind))
    }
    pathlib.Path(sys.argv[1]).write_text(json.dumps(server_config, indent=1, sort_keys=True) + "\n")


def is_answer(name: str, kind: type) -> bool:
    strict = any(base.__name__ == "StrictBase" for base in kind.__mro__)
    return not (strict or name.endswith("Request"))


def fields_of(kind: Any) -> dict[str, dict[str, bool]]:
    if hasattr(kind, "model_fields"):
        fields = kind.model_fields.items()
        return {
            field.alias or name: fact(field.annotation, field.is_required())
            for name, field in fields
        }
    if not dataclasses.is_dataclass(kind):
        return {}
    try:
        hints = typing.get_type_hints(kind)
    except NameError:
        # annotated with names imported for type checkers only; such classes are inputs
        return {}
    missing = dataclasses.MISSING
    return {
        field.name: fact(
            hints[field.name], field.default is missing and field.default_factory is missing
        )
        for field in dataclasses.fields(kind)
    }


def fact(annotation: object, required: bool) -> dict[str, bool]:
    return {"nullable": takes_none(annotation), "required": required}


def takes_none(annotation: object) -> bool:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return takes_none(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return any(map(takes_none, typing.get_args(annotation)))
    return annotation in (None, type(None), Any)


if __name__ == "__main__":
    main()
