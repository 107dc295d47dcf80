"""Say what a change of the contract means for those who were written against the old one.

    python -m codegen diff OLD.yaml NEW.yaml

BREAKING: a peer or a caller that follows the old document fails. RISKY: it works and may do something else than before,
or fails with servers that still follow the old document. OK: nobody notices. What a change means depends on whether the
value is sent or received. The exit status is 1 if anything is BREAKING, 2 if a document cannot be read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codegen.bindings import python_name, read_tags
from codegen.document import LIMITS, DocumentNode, Refusal, component, is_mapping
from codegen.files import load
from codegen.operations import OperationSpec, Parameter, read_operations
from codegen.python_types import annotate, is_nullable
from codegen.schemas import schema_names_in, schemas_in_requests
from codegen.unions import is_union

BREAKING, RISKY, OK = "BREAKING", "RISKY", "OK"


@dataclass(frozen=True)
class Change:
    level: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.level:<8} {self.where}: {self.what}"


Changes = Iterator[Change]


@dataclass(frozen=True)
class Direction:
    """Where a schema travels; results of futures are named in no answer, so what is not sent counts as received."""

    sent: bool
    received: bool

    def worst(self, *, sent: str, received: str) -> str:
        """Return the level of a change that means one thing for what is sent and another for what is received."""
        levels = [level for level, applies in ((sent, self.sent), (received, self.received)) if applies]
        return min(levels, key=(BREAKING, RISKY, OK).index)


def compare(old: DocumentNode, new: DocumentNode) -> list[Change]:
    """Return everything that changed, worst first."""
    changes = [*compare_operations(old, new), *compare_schemas(old, new)]
    return sorted(changes, key=lambda change: ((BREAKING, RISKY, OK).index(change.level), change.where))


# ---------------------------------------------------------------------------------------------- operations


def operations_of(root: DocumentNode) -> dict[str, OperationSpec]:
    dict(read_tags(root))
    refusals: list[Refusal] = []
    operations = read_operations(root, python_name, refusals)
    if refusals:
        raise refusals[0]
    return {operation.operation_id: operation for operation in operations}


def compare_operations(old: DocumentNode, new: DocumentNode) -> Changes:
    before, after = operations_of(old), operations_of(new)
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            yield Change(BREAKING, name, "the operation is gone")
        elif name not in before:
            yield Change(OK, name, "a new operation")
        else:
            yield from compare_operation(before[name], after[name])


def compare_operation(old: OperationSpec, new: OperationSpec) -> Changes:
    where = new.operation_id
    for name in ("method", "path", "tag", "body", "reply", "expected", "result"):
        if getattr(old, name) != getattr(new, name):
            yield Change(BREAKING, where, f"{name} was {getattr(old, name)}, is {getattr(new, name)}")
    if old.optional != new.optional:
        yield Change(*((RISKY, where, "servers may lack it now") if new.optional else (OK, where, "no longer optional")))
    if old.deprecated != new.deprecated:
        yield Change(OK, where, "deprecated" if new.deprecated else "no longer deprecated")
    yield from compare_client_methods(old, new)
    yield from compare_media(where, "requests", old.request_media_types, new.request_media_types)
    yield from compare_media(where, "answers", old.accepts, new.accepts)
    yield from compare_parameters(old, new)


def compare_client_methods(old: OperationSpec, new: OperationSpec) -> Changes:
    for name in sorted(set(old.client_methods) ^ set(new.client_methods)):
        if name in old.client_methods:
            yield Change(BREAKING, new.operation_id, f"clients have no method {name} any more")
        else:
            yield Change(OK, new.operation_id, f"clients have the method {name}")


def compare_media(where: str, what: str, old: Sequence[str], new: Sequence[str]) -> Changes:
    for name in sorted(set(old) ^ set(new)):
        yield (Change(BREAKING, where, f"no {what} as {name}") if name in old else Change(OK, where, f"{what} as {name}"))
    if set(old) == set(new) and tuple(old) != tuple(new):
        yield Change(RISKY, where, f"{what} prefer {new[0]} over {old[0]}")


def compare_parameters(old: OperationSpec, new: OperationSpec) -> Changes:
    before = {(parameter.location, parameter.name): parameter for parameter in old.parameters}
    after = {(parameter.location, parameter.name): parameter for parameter in new.parameters}
    for location, name in sorted(before.keys() | after.keys()):
        where = f"{new.operation_id} {location} {name}"
        was, now = before.get((location, name)), after.get((location, name))
        if was and now:
            yield from compare_parameter(where, was, now)
        elif now:
            level, kind = (BREAKING, "required") if now.required else (OK, "optional")
            yield Change(level, where, f"a new {kind} parameter")
        else:
            yield Change(BREAKING, where, "the parameter is gone")


def compare_parameter(where: str, old: Parameter, new: Parameter) -> Changes:
    if old.annotation != new.annotation:
        level = OK if is_wider(old.annotation, new.annotation) else BREAKING
        yield Change(level, where, f"the type was {old.annotation}, is {new.annotation}")
    if old.required != new.required:
        yield Change(BREAKING if new.required else OK, where, f"now {'required' if new.required else 'optional'}")
    if old.default != new.default:
        yield Change(RISKY, where, f"the default was {old.default}, is {new.default}")


# ---------------------------------------------------------------------------------------------- schemas


def compare_schemas(old: DocumentNode, new: DocumentNode) -> Changes:
    before, after = old["components"]["schemas"].mapping(), new["components"]["schemas"].mapping()
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            yield Change(BREAKING, name, "the schema is gone")
        elif name not in before:
            yield Change(OK, name, "a new schema")
        else:
            direction = direction_of(name, new)
            yield from compare_schema(name, component(old, "schemas", name), component(new, "schemas", name), direction)


def direction_of(name: str, root: DocumentNode) -> Direction:
    sent = name in schemas_in_requests(root)
    return Direction(sent=sent, received=not sent or name in schemas_in_answers(root))


def schemas_in_answers(root: DocumentNode) -> set[str]:
    """Return the names of all schemas that are reached from an answer, or from a schema that no request contains."""
    sent, schemas = schemas_in_requests(root), root["components"]["schemas"].mapping()
    operations = [value for _, item in root["paths"].items() for value in item.mapping().values() if is_mapping(value)]
    answers = [operation.get("responses") for operation in operations]
    pending = [name for name in schemas if name not in sent]
    pending += schema_names_in([*answers, root["components"].get("responses")])
    received: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in received:
            received.add(name)
            pending += schema_names_in(schemas.get(name))
    return received


def kind_of(node: DocumentNode) -> str:
    """Return record, opaque, union, enum, or plain for a map, list or scalar."""
    kinds = {"properties": "record", "x-any": "opaque", "oneOf": "union", "enum": "enum"}
    return next((kind for keyword, kind in kinds.items() if keyword in node), "plain")


def compare_schema(name: str, old: DocumentNode, new: DocumentNode, direction: Direction) -> Changes:
    if kind_of(old) != kind_of(new):
        yield Change(BREAKING, name, f"was {kind_of(old)}, is {kind_of(new)}")
        return
    comparisons: dict[str, Callable[[str, DocumentNode, DocumentNode, Direction], Changes]] = {
        "record": compare_records,
        "union": compare_unions,
        "enum": compare_enums,
        "plain": compare_types,
    }
    if kind_of(new) in comparisons:
        yield from comparisons[kind_of(new)](name, old, new, direction)


def compare_unions(name: str, old: DocumentNode, new: DocumentNode, direction: Direction) -> Changes:
    before, after = ({member.ref_name("schemas") for member in node["oneOf"].elements()} for node in (old, new))
    was_open = old.flag("x-open-union")
    for member in sorted(after - before):
        level = direction.worst(sent=OK, received=RISKY if was_open else BREAKING)
        note = "" if level == OK else "; old readers have a dictionary" if was_open else "; old readers refuse it"
        yield Change(level, name, f"{member} joined{note}")
    if was_open != new.flag("x-open-union"):
        yield Change(BREAKING, name, "now closed" if was_open else "now open: readers must expect dictionaries")
    for member in sorted(before - after):
        yield Change(direction.worst(sent=BREAKING, received=OK), name, f"{member} left")
    if is_union(new) and old["discriminator"].value["propertyName"] != new["discriminator"].value["propertyName"]:
        yield Change(BREAKING, name, "another discriminator")


def compare_enums(name: str, old: DocumentNode, new: DocumentNode, direction: Direction) -> Changes:
    before, after = set(old.get("enum")), set(new.get("enum"))
    was_open, is_open = old.flag("x-open-enum"), new.flag("x-open-enum")
    for value in sorted(after - before):
        level = direction.worst(sent=OK, received=RISKY if was_open else BREAKING)
        yield Change(level, name, f"the value {value!r} is new")
    for value in sorted(before - after):
        yield Change(direction.worst(sent=RISKY if is_open else BREAKING, received=OK), name, f"{value!r} is gone")
    if was_open != is_open:
        level = direction.worst(sent=OK, received=RISKY) if is_open else direction.worst(sent=BREAKING, received=RISKY)
        yield Change(level, name, "now open" if is_open else "now closed")


# ---------------------------------------------------------------------------------------------- properties


def compare_records(name: str, old: DocumentNode, new: DocumentNode, direction: Direction) -> Changes:
    before, after = dict(old["properties"].items()), dict(new["properties"].items())
    for key in sorted(before.keys() | after.keys()):
        where = f"{name}.{key}"
        if key not in after:
            yield Change(BREAKING, where, "the property is gone")
        elif key not in before:
            needed = needs_value(new, key)
            yield Change(
                direction.worst(sent=BREAKING if needed else OK, received=RISKY if needed else OK),
                where,
                f"a new {'required' if needed else 'optional'} property",
            )
        else:
            yield from compare_needs(where, needs_value(old, key), needs_value(new, key), direction)
            yield from compare_property(where, before[key], after[key], direction)


def needs_value(record: DocumentNode, key: str) -> bool:
    """Return whether it must be given: it is required and has neither a default nor a constant."""
    property_ = record["properties"][key]
    return key in record.get("required", []) and "default" not in property_ and "const" not in property_


def compare_needs(where: str, old: bool, new: bool, direction: Direction) -> Changes:
    if new and not old:
        yield Change(direction.worst(sent=BREAKING, received=RISKY), where, "now required")
    elif old and not new:
        yield Change(direction.worst(sent=OK, received=BREAKING), where, "no longer required; readers may miss it")


def compare_property(where: str, old: DocumentNode, new: DocumentNode, direction: Direction) -> Changes:
    if old.get("const") != new.get("const"):
        yield Change(BREAKING, where, f"the constant was {old.get('const')!r}, is {new.get('const')!r}")
    elif "const" in new:
        if old.flag("x-open") != new.flag("x-open"):
            yield Change(RISKY, where, f"the constant is now {'open' if new.flag('x-open') else 'closed'}")
        if is_nullable(old) != is_nullable(new):
            yield Change(RISKY, where, f"the constant may {'now be null' if is_nullable(new) else 'not be null any more'}")
    else:
        yield from compare_types(where, old, new, direction)
    if old.get("default") != new.get("default"):
        yield Change(RISKY, where, f"the default was {old.get('default')!r}, is {new.get('default')!r}")
    if new.flag("deprecated") and not old.flag("deprecated"):
        yield Change(OK, where, "deprecated")


def compare_types(where: str, old: DocumentNode, new: DocumentNode, direction: Direction) -> Changes:
    before, after = type_of(old), type_of(new)
    if before != after:
        if is_wider(before, after):
            level = direction.worst(sent=OK, received=BREAKING)
        else:
            level = direction.worst(sent=BREAKING, received=RISKY if is_wider(after, before) else BREAKING)
        yield Change(level, where, f"the type was {before}, is {after}")
    changed = sorted(key for key in LIMITS | {"x-validate"} if old.get(key) != new.get(key))
    if changed:
        yield Change(direction.worst(sent=RISKY, received=OK), where, f"other limits: {', '.join(changed)}")


def type_of(node: DocumentNode) -> str:
    plain = DocumentNode({key: value for key, value in node.mapping().items() if key != "x-validate"}, node.pointer, node.root)
    return annotate(plain, sequences=False) + (" | None" if is_nullable(node) else "")


def is_wider(old: str, new: str) -> bool:
    """Return whether every value of the old type is one of the new."""
    before, after = set(old.split(" | ")), set(new.split(" | "))
    return before <= after or ("float" in after and before - {"int"} <= after)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2:
        print("usage: python -m codegen diff OLD.yaml NEW.yaml", file=sys.stderr)
        return 2
    try:
        documents: list[Any] = [load(Path(name)) for name in arguments]
        changes = compare(*(DocumentNode.of_document(document) for document in documents))
    except (OSError, Refusal) as error:
        print(error, file=sys.stderr)
        return 2
    print(*([str(change) for change in changes] or ["no change"]), sep="\n")
    return 1 if any(change.level == BREAKING for change in changes) else 0
