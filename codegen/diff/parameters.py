"""Compares the parameters of an operation: in its path, its query, and the headers
of its requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from codegen.diff.findings import CLIENTS, PYTHON, SENT, SERVERS, Change, breaking, difference
from codegen.diff.nodes import child, is_set, pairs, spell, value_of
from codegen.diff.schemas import SchemaComparison
from codegen.document import DocumentNode

#: The spelling of a value, with the meaning of a missing one.
SPELLING = {
    "style": None,
    "explode": None,
    "allowReserved": False,
    "allowEmptyValue": False,
    "content": None,
}


def compare_parameters(
    before: dict[str, DocumentNode], after: dict[str, DocumentNode], sent: SchemaComparison
) -> Iterator[Change]:
    """Compare parameters by place and name, as `name_places` gives them."""
    for place, was, now in pairs(before, after):
        if was is None and now is not None:
            yield new_parameter(place, now)
        elif was is not None and now is None:
            yield breaking(
                "parameter-removed", was.pointer, f"the parameter {place} is gone", CLIENTS, PYTHON
            )
        elif was is not None and now is not None:
            yield from compare_parameter(place, was, now, sent)


def name_places(parameters: Sequence[DocumentNode], path: str) -> dict[str, DocumentNode]:
    """Return parameters by their place in a message: `query limit`, `header x-token`, `path 1`."""
    in_path = re.findall(r"{([^}]*)}", path)
    found: dict[str, DocumentNode] = {}
    for node in parameters:
        location, name = str(value_of(node, "in")), str(value_of(node, "name"))
        if location == "path" and name in in_path:
            name = str(in_path.index(name) + 1)
        found[f"{location} {name.lower() if location == 'header' else name}"] = node
    return found


def new_parameter(place: str, node: DocumentNode) -> Change:
    """Report a new parameter: servers ignore unknown ones, so that only a required one breaks
    anything.
    """
    required = is_set(node, "required")
    what = f"{place} is a new {'required' if required else 'optional'} parameter"
    return breaking("parameter-added", node.pointer, what, *((CLIENTS, PYTHON) if required else ()))


def compare_parameter(
    place: str, old: DocumentNode, new: DocumentNode, sent: SchemaComparison
) -> Iterator[Change]:
    was, now = is_set(old, "required"), is_set(new, "required")
    if was != now:
        what = f"{place} is {'required now' if now else 'no longer required'}"
        yield difference(
            "parameter-required", new.pointer, what, SENT, wider=was, narrower=now, typed=True
        )
    if str(value_of(old, "name")).lower() != str(value_of(new, "name")).lower():
        what = f"the parameter {value_of(old, 'name')} is called {value_of(new, 'name')}"
        yield breaking("parameter-renamed", new.pointer, what, PYTHON)
    if is_set(old, "deprecated") != is_set(new, "deprecated"):
        yield breaking(
            "deprecated",
            new.pointer,
            "deprecated" if is_set(new, "deprecated") else "no longer deprecated",
        )
    for keyword, missing in SPELLING.items():
        values = value_of(old, keyword, missing), value_of(new, keyword, missing)
        if values[0] != values[1]:
            what = f"{keyword} of {place} was {spell(values[0])}, is {spell(values[1])}"
            yield breaking("parameter-spelling", new.pointer, what, CLIENTS, SERVERS)
    before, after = child(old, "schema"), child(new, "schema")
    if before is not None and after is not None:
        yield from sent.compare(before, after)
