"""Bodies that are forms, `multipart/form-data`: which schemas they have, and which of their
properties are files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from codegen.document import DOCUMENTATION, MULTIPART, DocumentNode, is_list, is_mapping
from codegen.python_types import types_of

REFERENCE = "#/components/schemas/"
FILE_SCHEMA = DOCUMENTATION | {"type", "format"}
FILES_SCHEMA = DOCUMENTATION | {"type", "items"}


def form_schemas(root: DocumentNode) -> frozenset[str]:
    """Return the names of the schemas that are forms. Refuse one that is something else as well."""
    forms = frozenset(_names(root.value, inside=True))
    for name in sorted(forms & set(_names(root.value, inside=False))):
        raise root["components"]["schemas"][name].refusal(
            "a form is the body of forms and nothing else"
        )
    return forms


def _names(value: Any, *, inside: bool) -> Iterator[str]:
    """Name the schemas that are referred to, by the content of a form or by anything else."""
    if is_list(value):
        for item in value:
            yield from _names(item, inside=inside)
    if not is_mapping(value):
        return
    for key, item in value.items():
        if key == MULTIPART:
            yield from _references(item) if inside else ()
        elif key == "$ref" and not inside and isinstance(item, str) and item.startswith(REFERENCE):
            yield item.removeprefix(REFERENCE)
        else:
            yield from _names(item, inside=inside)


def _references(media: Any) -> Iterator[str]:
    schema = media.get("schema") if is_mapping(media) else None
    reference = schema.get("$ref") if is_mapping(schema) else None
    if isinstance(reference, str) and reference.startswith(REFERENCE):
        yield reference.removeprefix(REFERENCE)


def is_file(node: DocumentNode) -> bool:
    """Return whether a property is a file, or a list of files."""
    return _is_binary(node) or ("items" in node and _is_binary(node["items"]))


def _is_binary(node: DocumentNode) -> bool:
    return is_mapping(node.value) and node.get("format") == "binary"


def annotate_file(node: DocumentNode) -> str:
    """Return the annotation of a file or of a list of files."""
    if "items" in node:
        node.only(FILES_SCHEMA, "a list of files")
        return f"Sequence[{annotate_file(node['items'])}]"
    node.only(FILE_SCHEMA, "a file")
    if types_of(node) != ["string"]:
        raise node.refusal(
            "a file is {type: string, format: binary}; one that may be missing is not required"
        )
    return "Upload"


def check_form_property(node: DocumentNode) -> None:
    """Refuse a property without a single spelling in a form."""
    if node.get("format") == "byte" or node.get("contentEncoding") is not None:
        raise node.refusal("in a form bytes are a file: {type: string, format: binary}")
    if "null" in types_of(node) or "oneOf" in node:
        raise node.refusal("a form has no null; leave the property out of `required`")
