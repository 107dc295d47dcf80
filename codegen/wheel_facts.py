"""Read facts of the API from a wheel of the official SDK, without importing it: paths, classes,
fields, values, messages.

Names, numbers and types are facts; no code is kept. `tests/contract/official/` holds what was read
of each version.
"""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from google.protobuf import descriptor_pb2

Facts: TypeAlias = dict[str, Any]

_METHODS = {
    "get": "GET",
    "post": "POST",
    "put": "PUT",
    "delete": "DELETE",
    "patch": "PATCH",
    "get_api_list": "GET",
}
_MESSAGES = "tinker/proto/tinker_public_pb2.py"
_TYPES = "tinker/types/"
_HEADER = re.compile(r"(x|cf|www|retry)(-[a-z]+)+")
_LABELS = {1: "optional", 2: "required", 3: "repeated"}
_FIELD = descriptor_pb2.FieldDescriptorProto


def read_facts(wheel: Path) -> Facts:
    """Return the facts of a wheel about the API."""
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(
            name
            for name in archive.namelist()
            if name.startswith("tinker/") and name.endswith(".py")
        )
        modules = {name: ast.parse(archive.read(name)) for name in names}
    return {
        "version": re.match(r"tinker-([^-]+)-", wheel.name)[1],  # type: ignore[index]
        "paths": sorted({path for module in modules.values() for path in _paths(module)}),
        "headers": sorted(
            {
                name
                for path, module in modules.items()
                if "_test" not in path
                for name in _headers(module)
            }
        ),
        "classes": {
            name: fields
            for path, module in modules.items()
            if path.startswith(_TYPES)
            for name, fields in _classes(module)
        },
        "values": {
            name: values
            for path, module in modules.items()
            if path.startswith(_TYPES)
            for name, values in _values(module)
        },
        # since 0.18.1
        **(
            _read_messages(modules[_MESSAGES])
            if _MESSAGES in modules
            else {"messages": {}, "enums": {}}
        ),
    }


def _paths(module: ast.Module) -> Iterator[str]:
    """Yield every call of a method of HTTP with a path of the API, as
    ``POST /api/v1/sessions/{}/finish``.
    """
    for node in ast.walk(module):
        if (
            not isinstance(node, ast.Call)
            or not isinstance(node.func, ast.Attribute)
            or not node.args
        ):
            continue
        method, path = _METHODS.get(node.func.attr.lstrip("_")), _text(node.args[0])
        if method is not None and path is not None and path.startswith("/api/"):
            yield f"{method} {path.partition('?')[0]}"


def _headers(module: ast.Module) -> Iterator[str]:
    """Yield the texts that look like the name of a header of requests or of a proxy, in small
    letters.
    """
    for node in ast.walk(module):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and _HEADER.fullmatch(node.value.lower())
        ):
            yield node.value.lower()


def _text(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else "{}"  # type: ignore[misc]
            for part in node.values
        )
    return None


def _classes(module: ast.Module) -> Iterator[tuple[str, Facts]]:
    for node in module.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            fields = dict(_fields(node))
            if fields:
                yield node.name, fields


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, Facts]]:
    """Annotated names of a class: the type as it is written, and whether a value must be given."""
    for item in node.body:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        name, annotation = item.target.id, ast.unparse(item.annotation)
        if (
            not name.startswith("_")
            and name != "model_config"
            and not annotation.startswith("ClassVar")
        ):
            yield name, {"type": annotation, "required": item.value is None}


def _values(module: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """Yield the names of a choice of texts, each with its texts."""
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and (values := literal_values(node.value)):
                yield target.id, values
        elif isinstance(node, ast.ClassDef) and (values := list(_member_values(node))):
            yield node.name, values


def _member_values(node: ast.ClassDef) -> Iterator[str]:
    """Yield the values of an enum of texts, nothing for another class; `auto()` is the name in
    small letters.
    """
    if not any(isinstance(base, ast.Name) and "Enum" in base.id for base in node.bases):
        return
    for item in node.body:
        if not isinstance(item, ast.Assign) or not isinstance(item.targets[0], ast.Name):
            continue
        if isinstance(item.value, ast.Constant) and isinstance(item.value.value, str):
            yield item.value.value
        elif isinstance(item.value, ast.Call):
            yield item.targets[0].id.lower()


def literal_values(node: ast.expr | None) -> list[str]:
    """Return the texts of a ``Literal``; none for anything else."""
    if (
        not isinstance(node, ast.Subscript)
        or not isinstance(node.value, ast.Name)
        or node.value.id != "Literal"
    ):
        return []
    elements = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return [
        element.value
        for element in elements
        if isinstance(element, ast.Constant) and isinstance(element.value, str)
    ]


def _read_messages(module: ast.Module) -> Facts:
    """Return messages and enums of the descriptor that is in generated protobuf code."""
    calls = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    (serialized,) = (call.args[0] for call in calls if call.func.attr == "AddSerializedFile")  # type: ignore[attr-defined]
    assert isinstance(serialized, ast.Constant)
    assert isinstance(serialized.value, bytes)
    return describe_messages(descriptor_pb2.FileDescriptorProto.FromString(serialized.value))


def describe_messages(file: descriptor_pb2.FileDescriptorProto) -> Facts:
    """Return names, numbers, types and labels of a protobuf file."""
    return {
        "messages": {
            name: _describe(message)
            for message in file.message_type
            for name, message in _with_nested(message)
        },
        "enums": {
            enum.name: {value.name: value.number for value in enum.value} for enum in file.enum_type
        },
    }


def _with_nested(
    message: descriptor_pb2.DescriptorProto, prefix: str = ""
) -> Iterator[tuple[str, descriptor_pb2.DescriptorProto]]:
    yield f"{prefix}{message.name}", message
    for nested in message.nested_type:
        yield from _with_nested(nested, f"{prefix}{message.name}.")


def _describe(message: descriptor_pb2.DescriptorProto) -> Facts:
    return {
        field.name: [field.number, _type_of(field), _LABELS[field.label]]
        for field in sorted(message.field, key=lambda one: one.number)
    }


def _type_of(field: descriptor_pb2.FieldDescriptorProto) -> str:
    if field.type_name:
        return field.type_name.rsplit(".", 1)[1]
    name: str = _FIELD.Type.Name(field.type)
    return name.removeprefix("TYPE_").lower()
