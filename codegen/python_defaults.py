"""The Python source of a default value, checked against its schema."""

from __future__ import annotations

from codegen.document import DocumentNode, component, is_list, is_mapping
from codegen.python_types import nullable_ref, types_of
from codegen.unions import discriminator, is_union, mandatory_names, members


def source_of(value: DocumentNode, schema: DocumentNode) -> str:
    """Return the Python source of a default value, checked against its schema."""
    if "$ref" in schema.mapping():
        return source_of_schema(value, schema.ref_name("schemas"))
    if "oneOf" in schema and (reference := nullable_ref(schema)):
        return source_of(value, reference)
    types = types_of(schema)
    if is_list(value.value) and "array" in types and "items" in schema:
        return f"[{', '.join(source_of(item, schema['items']) for item in value.elements())}]"
    if is_mapping(value.value) and "object" in types:
        return source_of_map(value, schema)
    return source_of_scalar(value, types, schema)


def source_of_schema(value: DocumentNode, name: str) -> str:
    schema = component(value, "schemas", name)
    if "properties" in schema:
        return source_of_record(value, name, schema)
    if is_union(schema):
        return source_of_record(value, *choose_member(value, schema))
    if "enum" in schema:
        if value.value not in schema.get("enum") and not schema.flag("x-open-enum"):
            raise value.refusal(f"{value.value!r} is not one of {name}")
        return repr(value.value)
    return repr(value.value) if "x-any" in schema else source_of(value, schema)


def choose_member(value: DocumentNode, union: DocumentNode) -> tuple[str, DocumentNode]:
    tag_field = discriminator(union)
    name = members(union, tag_field).get(value.mapping().get(tag_field, ""))
    if name is None:
        raise value.refusal(f"no member of {union.pointer} has this {tag_field}")
    return name, component(value, "schemas", name)


def source_of_record(value: DocumentNode, name: str, schema: DocumentNode) -> str:
    arguments: list[str] = []
    properties = schema["properties"]
    for key, item in value.items():
        if key not in properties:
            raise item.refusal(f"{name} has no property {key}")
        const = properties[key].get("const")
        if const is None:
            arguments.append(f"{key}={source_of(item, properties[key])}")
        elif const != item.value:
            raise item.refusal(f"the constant is {const!r}")
    missing = sorted(
        key
        for key in mandatory_names(schema)
        if key not in value.mapping() and "const" not in properties[key]
    )
    if missing:
        raise value.refusal(f"{name} also needs {', '.join(missing)}")
    return f"{name}({', '.join(arguments)})"


def source_of_map(value: DocumentNode, schema: DocumentNode) -> str:
    if schema.get("additionalProperties") is True:
        return repr(value.value)
    entries = [
        f"{key!r}: {source_of(item, schema['additionalProperties'])}" for key, item in value.items()
    ]
    return f"{{{', '.join(entries)}}}"


def source_of_scalar(value: DocumentNode, types: list[str], schema: DocumentNode) -> str:
    default: object = value.value
    kinds: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}
    kind = kinds.get(type(default), "value of another kind")
    if (
        isinstance(default, int)
        and kind == "integer"
        and "integer" not in types
        and "number" in types
    ):
        return repr(float(default))
    if (
        kind not in types
        or schema.get("format") in ("date-time", "byte")
        or "contentEncoding" in schema
    ):
        raise value.refusal(
            f"a {kind} cannot be the default of {' or '.join(types) or 'this schema'}"
        )
    return repr(default)
