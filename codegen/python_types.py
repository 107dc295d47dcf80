"""The Python annotation of a schema in a property, an item or a parameter."""

from __future__ import annotations

from codegen.document import (
    ARRAY_SCHEMA,
    BESIDE_REF,
    LIMITS,
    MAP_SCHEMA,
    NULLABLE_REF_SCHEMA,
    SCALAR_SCHEMA,
    DocumentNode,
    is_list,
)

#: Order in which the members of `type: [...]` are written, so that the spelling in the document
#: does not matter.
SCALARS = {"boolean": "bool", "integer": "int", "number": "float", "string": "str"}
STRING_FORMATS = {
    "date-time": "datetime.datetime",
    "byte": "bytes",
    "uri": "str",
    "password": "str",
}
NUMBER_FORMATS = {"integer": {"int32", "int64"}, "number": {"float", "double"}}

#: `x-validate: true` turns these limits into `msgspec.Meta` arguments.
META = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
    "minLength": "min_length",
    "maxLength": "max_length",
    "pattern": "pattern",
    "minItems": "min_length",
    "maxItems": "max_length",
}


def types_of(node: DocumentNode) -> list[str]:
    value = node.get("type", [])
    types = value if is_list(value) else [value]
    if not all(isinstance(item, str) for item in types):
        raise node["type"].refusal("a type name or a list of them is expected")
    return types


def is_nullable(node: DocumentNode) -> bool:
    return "null" in types_of(node) or ("oneOf" in node and nullable_ref(node) is not None)


def nullable_ref(node: DocumentNode) -> DocumentNode | None:
    """Return the reference of `oneOf: [{$ref: X}, {type: 'null'}]`, the one inline union that is
    understood.
    """
    elements = node["oneOf"].elements()
    references = [element for element in elements if "$ref" in element.mapping()]
    nulls = [element for element in elements if element.value == {"type": "null"}]
    return references[0] if len(elements) == 2 and len(references) == len(nulls) == 1 else None


def annotate(node: DocumentNode, *, sequences: bool, scope: str = "") -> str:
    """Return the Python annotation of a schema in a property, an item or a parameter; null is left
    to the caller.
    """
    schema = node.mapping()
    if "$ref" in schema:
        node.only(BESIDE_REF, "a property with $ref")
        return scope + node.ref_name("schemas")
    if "oneOf" in schema and (reference := nullable_ref(node)):
        node.only(NULLABLE_REF_SCHEMA, "a nullable reference")
        return annotate(reference, sequences=sequences, scope=scope)
    for key in ("oneOf", "anyOf", "allOf", "enum", "properties", "x-any"):
        if key in schema:
            raise node.refusal(
                f"an unnamed schema with {key}; name it in components.schemas and refer to it"
            )
    types = [name for name in types_of(node) if name != "null"]
    if types == ["array"]:
        return annotate_array(node, sequences=sequences, scope=scope)
    if types == ["object"]:
        return annotate_map(node, sequences=sequences, scope=scope)
    return annotate_scalar(node, types)


def with_none(annotation: str, nullable: bool) -> str:
    return f"{annotation} | None" if nullable and annotation != "Any" else annotation


def annotate_item(node: DocumentNode, *, sequences: bool, scope: str) -> str:
    return with_none(annotate(node, sequences=sequences, scope=scope), is_nullable(node))


def annotate_array(node: DocumentNode, *, sequences: bool, scope: str) -> str:
    node.only(ARRAY_SCHEMA, "an array")
    if ("items" in node) == ("prefixItems" in node):
        raise node.refusal("an array needs either items or prefixItems")
    if "prefixItems" in node:
        items = [
            annotate_item(item, sequences=sequences, scope=scope)
            for item in node["prefixItems"].elements()
        ]
        return annotate_limits(node, f"tuple[{', '.join(items)}]")
    item = annotate_item(node["items"], sequences=sequences, scope=scope)
    return annotate_limits(node, f"{'Sequence' if sequences else 'list'}[{item}]")


def annotate_map(node: DocumentNode, *, sequences: bool, scope: str) -> str:
    node.only(MAP_SCHEMA, "a map")
    if "additionalProperties" not in node:
        raise node.refusal(
            "an object without properties or additionalProperties; say which of the two it is"
        )
    if node.get("additionalProperties") is True:
        return "dict[str, Any]"
    return (
        "dict[str, "
        f"{annotate_item(node['additionalProperties'], sequences=sequences, scope=scope)}]"
    )


def annotate_scalar(node: DocumentNode, types: list[str]) -> str:
    node.only(SCALAR_SCHEMA, "a scalar")
    unknown = sorted(set(types) - set(SCALARS))
    if unknown or not types:
        raise node.refusal(
            f"type {', '.join(unknown) or 'is missing or null only'}: no Python "
            "type follows from it"
        )
    if len(types) > 1 and "format" in node:
        raise node.refusal("a format on several types")
    formatted = type_for_format(node, types[0]) if len(types) == 1 else None
    return annotate_limits(
        node, formatted or " | ".join(SCALARS[name] for name in SCALARS if name in types)
    )


def type_for_format(node: DocumentNode, type_name: str) -> str | None:
    """Return the type that `format` or `contentEncoding` asks for, if they ask for one."""
    if node.get("contentEncoding") not in (None, "base64") or (
        "contentEncoding" in node and type_name != "string"
    ):
        raise node["contentEncoding"].refusal("only base64 strings are understood")
    if "contentEncoding" in node:
        return "bytes"
    if "format" not in node:
        return None
    name = node.get("format")
    if type_name == "string" and name in STRING_FORMATS:
        return STRING_FORMATS[name]
    if name in NUMBER_FORMATS.get(type_name, set()):
        return None
    raise node["format"].refusal(f"format {name!r} of a {type_name} is not understood here")


def annotate_limits(node: DocumentNode, annotation: str) -> str:
    """Put the limits into the type, where the document asks for it."""
    if not node.flag("x-validate"):
        return annotation
    limits = [f"{META[key]}={node.get(key)!r}" for key in META if key in node]
    if not limits:
        raise node["x-validate"].refusal(
            f"nothing to validate; give one of {', '.join(sorted(LIMITS))}"
        )
    return f"Annotated[{annotation}, msgspec.Meta({', '.join(limits)})]"
