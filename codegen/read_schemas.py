"""Turns `components.schemas` into what the models template writes: records, aliases and their Python annotations.

Every named schema becomes one Python name. Anything outside the closed subset is refused.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from document import (
    ANY_SCHEMA,
    ARRAY_SCHEMA,
    BESIDE_REF,
    CONST_SCHEMA,
    ENUM_SCHEMA,
    LIMITS,
    MAP_SCHEMA,
    NULLABLE_REF_SCHEMA,
    RECORD_SCHEMA,
    SCALAR_SCHEMA,
    UNION_SCHEMA,
    Node,
    Refused,
    component,
    each,
)

#: Names that annotations and factories in models.py use; a schema or field of that name would shadow them.
TAKEN = frozenset(
    "Any Annotated Literal Sequence TypeAlias datetime msgspec _field bool bytes dict float int list property str tuple None".split()
)

#: Order in which the members of `type: [...]` are written, so that the spelling in the document does not matter.
SCALARS = {"boolean": "bool", "integer": "int", "number": "float", "string": "str"}
STRING_FORMATS = {"date-time": "datetime.datetime", "byte": "bytes", "uri": "str", "password": "str"}
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


@dataclass(frozen=True)
class Field:
    name: str
    annotation: str
    doc: str
    #: Python source of the value that is sent when none is given; None when there is none.
    factory: str | None = None
    #: May be left out, and is then not sent.
    optional: bool = False


@dataclass(frozen=True)
class Record:
    name: str
    doc: str
    fields: list[Field]
    #: The discriminator and its value, for a member of a union.
    tag_field: str | None = None
    tag: str | None = None

    @property
    def tag_arguments(self) -> str:
        return f", tag_field={self.tag_field!r}, tag={self.tag!r}" if self.tag_field else ""


@dataclass(frozen=True)
class Alias:
    name: str
    doc: str
    annotation: str
    needs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Models:
    scalars: list[Alias]
    records: list[Record]
    aliases: list[Alias]

    @property
    def names(self) -> list[str]:
        return sorted(item.name for item in (*self.scalars, *self.records, *self.aliases))


@dataclass
class Facts:
    """What one schema has to know about the others."""

    #: Schemas that a request body reaches: their arrays are written `Sequence`, so that callers may pass any.
    sent: set[str] = field(default_factory=lambda: set[str]())
    #: Record name -> (discriminator, value), from every union it is a member of.
    tags: dict[str, tuple[str, str]] = field(default_factory=lambda: dict[str, tuple[str, str]]())


def read_models(root: Node, refusals: list[Refused]) -> Models:
    """Read all schemas of the document."""
    facts = Facts(sent=sent_schemas(root))
    schemas = root["components"]["schemas"]
    each(schemas.items(), lambda name, node: note_tags(node, facts), refusals)
    read = each(schemas.items(), lambda name, node: read_schema(name, node, facts), refusals)
    aliases = [item for item in read if isinstance(item, Alias)]
    return Models(
        scalars=[alias for alias in aliases if not alias.needs],
        records=[item for item in read if isinstance(item, Record)],
        aliases=in_order([alias for alias in aliases if alias.needs]),
    )


def in_order(aliases: list[Alias]) -> list[Alias]:
    """Sort aliases so that each stands after those it uses; the order of the document otherwise."""
    pending = {alias.name: alias for alias in aliases}
    done: list[Alias] = []
    while pending:
        ready = [alias for alias in pending.values() if not alias.needs & pending.keys()]
        if not ready:
            raise Refused("#/components/schemas", f"aliases need each other in a circle: {', '.join(sorted(pending))}")
        done += ready
        for alias in ready:
            del pending[alias.name]
    return done


# ---------------------------------------------------------------------------------------------- across schemas


def sent_schemas(root: Node) -> set[str]:
    """Names of all schemas that a request body can contain."""
    sent: set[str] = set()
    pending = [name for body in request_bodies(root) for name in mentioned(body)]
    while pending:
        name = pending.pop()
        if name not in sent:
            sent.add(name)
            pending += mentioned(root.value.get("components", {}).get("schemas", {}).get(name))
    return sent


def request_bodies(root: Node) -> Iterator[Any]:
    paths: dict[Any, Any] = root.get("paths") or {}
    for item in paths.values():
        if isinstance(item, dict):
            yield from (operation.get("requestBody") for operation in item.values() if isinstance(operation, dict))
    yield root.get("components", {}).get("requestBodies")


def mentioned(value: Any) -> list[str]:
    """Every schema name that a `$ref` anywhere inside `value` points to."""
    if isinstance(value, list):
        return [name for item in value for name in mentioned(item)]
    if not isinstance(value, dict):
        return []
    names = [name for item in value.values() for name in mentioned(item)]
    ref = value.get("$ref")
    if isinstance(ref, str) and ref.startswith("#/components/schemas/"):
        names.append(ref.rsplit("/", 1)[1])
    return names


def note_tags(node: Node, facts: Facts) -> None:
    """Record the tag that a union gives to each of its members."""
    if not is_union(node):
        return
    tag_field = discriminator(node)
    for tag, member in members(node, tag_field).items():
        if facts.tags.setdefault(member, (tag_field, tag)) != (tag_field, tag):
            raise node.refused(f"{member} has the tag {facts.tags[member]} in another union; a record has one tag")


def is_union(node: Node) -> bool:
    return "oneOf" in node.mapping() and "x-any" not in node


def discriminator(node: Node) -> str:
    if "discriminator" not in node:
        raise node.refused("a union without a discriminator cannot be decoded; add discriminator and mapping")
    node["discriminator"].only(frozenset({"propertyName", "mapping"}), "a discriminator")
    if "propertyName" not in node["discriminator"] or "mapping" not in node["discriminator"]:
        raise node["discriminator"].refused("propertyName and mapping are needed")
    return node["discriminator"].text("propertyName")


def members(node: Node, tag_field: str) -> dict[str, str]:
    """Tag -> member of a union; mapping, `oneOf` and each member's const property must agree."""
    listed = [member.ref_name("schemas") for member in refs(node["oneOf"])]
    found: dict[str, str] = {}
    for tag, target in node["discriminator"]["mapping"].items():
        found[tag] = Node({"$ref": target.value}, target.pointer, node.root).ref_name("schemas")
        check_const(target, found[tag], tag_field, tag)
    if sorted(found.values()) != sorted(listed):
        raise node.refused(f"oneOf lists {sorted(listed)}, the mapping {sorted(found.values())}")
    return found


def check_const(mapping: Node, member: str, tag_field: str, tag: str) -> None:
    record = component(mapping, "schemas", member)
    const = record.get("properties", {}).get(tag_field, {}).get("const")
    if const != tag:
        raise mapping.refused(f"the mapping says {tag!r}, but {record.pointer}/properties/{tag_field} has const {const!r}")


def refs(node: Node) -> list[Node]:
    for element in node.elements():
        if "$ref" not in element.mapping():
            raise element.refused("an unnamed member; name it in components.schemas and refer to it")
        element.only(frozenset({"$ref"}), "a member of a union")
    return node.elements()


# ---------------------------------------------------------------------------------------------- one named schema


def read_schema(name: str, node: Node, facts: Facts) -> Record | Alias:
    check_class_name(name, node)
    schema = node.mapping()
    if "properties" in schema:
        return read_record(name, node, facts)
    if "x-any" in schema:
        return read_any(name, node)
    if "oneOf" in schema:
        return read_union(name, node)
    if "enum" in schema:
        return read_enum(name, node)
    if "$ref" in schema:
        raise node.refused("a second name for a schema; use the first")
    return read_shape(name, node, facts)


def check_class_name(name: str, node: Node) -> None:
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name) or keyword.iskeyword(name) or name in TAKEN:
        raise node.refused(f"{name!r} cannot be a class name here; use an unused PascalCase name")


def doc_of(node: Node) -> str:
    description = node.text("description")
    if node.flag("deprecated"):
        return f"Deprecated. {description}".strip()
    return description


def read_any(name: str, node: Node) -> Alias:
    node.only(ANY_SCHEMA, "an opaque schema")
    if not node.flag("x-any"):
        raise node["x-any"].refused("only true means something")
    return Alias(name, doc_of(node), "Any")


def read_enum(name: str, node: Node) -> Alias:
    node.only(ENUM_SCHEMA, "an enum")
    values = node["enum"].elements()
    if node.get("type") != "string" or not values or not all(isinstance(value.value, str) for value in values):
        raise node.refused("only a non-empty enum of `type: string` is understood")
    literal = f"Literal[{', '.join(repr(value.value) for value in values)}]"
    return Alias(name, doc_of(node), f"{literal} | str" if node.flag("x-open-enum") else literal)


def read_union(name: str, node: Node) -> Alias:
    if "x-open-union" in node:
        raise node["x-open-union"].refused(
            "an open union has no type that msgspec decodes; name the value with `x-any: true` and decode it by hand"
        )
    node.only(UNION_SCHEMA, "a union")
    listed = [member.ref_name("schemas") for member in refs(node["oneOf"])]
    members(node, discriminator(node))
    return Alias(name, doc_of(node), " | ".join(listed), frozenset(listed))


def read_shape(name: str, node: Node, facts: Facts) -> Alias:
    """A named map, array or scalar."""
    if "default" in node:
        raise node["default"].refused("a default belongs to the property that uses the schema")
    if "null" in types_of(node):
        raise node.refused("a named schema is not nullable; say so where it is used")
    annotation = annotate(node, sequences=name in facts.sent)
    needs = frozenset(mentioned(node.value))
    if name in needs:
        raise node.refused("a schema that contains itself must be a record or `x-any: true`")
    return Alias(name, doc_of(node), annotation, needs)


def read_record(name: str, node: Node, facts: Facts) -> Record:
    node.only(RECORD_SCHEMA, "a record")
    if node.get("type") != "object":
        raise node.refused("a record needs `type: object`")
    required = required_names(node)
    tag_field, tag = facts.tags.get(name, (None, None))
    fields = [
        read_property(key, prop, key in required, name in facts.sent)
        for key, prop in node["properties"].items()
        if key != tag_field or prop.only(CONST_SCHEMA - {"x-open"}, "a discriminator property")
    ]
    return Record(name, doc_of(node), fields, tag_field, tag)


def required_names(node: Node) -> set[str]:
    if "required" not in node:
        return set()
    names = [element.value for element in node["required"].elements()]
    for element in node["required"].elements():
        if element.value not in node["properties"]:
            raise element.refused(f"{element.value!r} is required but not a property")
    return set(names)


# ---------------------------------------------------------------------------------------------- one property


def read_property(name: str, node: Node, required: bool, sent: bool) -> Field:
    check_field_name(name, node)
    if "const" in node.mapping():
        return read_const(name, node)
    annotation = annotate(node, sequences=sent)
    nullable = is_nullable(node)
    default = node.get("default")
    if default is None and "default" in node and not nullable:
        raise node["default"].refused("null is not a value of this property")
    if default is not None:
        return Field(name, with_none(annotation, nullable), doc_of(node), factory=source_of(node["default"], node))
    if required:
        return Field(name, with_none(annotation, nullable), doc_of(node))
    return Field(name, with_none(annotation, True), doc_of(node), optional=True)


def check_field_name(name: str, node: Node) -> None:
    if keyword.iskeyword(name):
        raise node.refused(f"{name!r} is a Python keyword and cannot be an attribute")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or name in TAKEN:
        raise node.refused(f"{name!r} cannot be an attribute of a generated record")


def with_none(annotation: str, nullable: bool) -> str:
    return f"{annotation} | None" if nullable and annotation != "Any" else annotation


def read_const(name: str, node: Node) -> Field:
    """A constant is always sent; an answer without it is accepted, one with another value only under `x-open`."""
    node.only(CONST_SCHEMA, "a constant property")
    value = node.get("const")
    if not isinstance(value, str) or node.get("type", "string") != "string":
        raise node["const"].refused("only a string constant is understood")
    literal = f"Literal[{value!r}]"
    return Field(name, f"{literal} | str" if node.flag("x-open") else literal, doc_of(node), factory=repr(value))


# ---------------------------------------------------------------------------------------------- types


def types_of(node: Node) -> list[str]:
    value = node.get("type", [])
    types = [value] if isinstance(value, str) else value
    if not isinstance(types, list) or not all(isinstance(item, str) for item in types):
        raise node["type"].refused("a type name or a list of them is expected")
    return [str(item) for item in types]


def is_nullable(node: Node) -> bool:
    return "null" in types_of(node) or ("oneOf" in node and nullable_ref(node) is not None)


def nullable_ref(node: Node) -> Node | None:
    """The reference of `oneOf: [{$ref: X}, {type: 'null'}]`, the one inline union that is understood."""
    elements = node["oneOf"].elements()
    references = [element for element in elements if "$ref" in element.mapping()]
    nulls = [element for element in elements if element.value == {"type": "null"}]
    return references[0] if len(elements) == 2 and len(references) == len(nulls) == 1 else None


def annotate(node: Node, *, sequences: bool, scope: str = "") -> str:
    """The Python annotation of a schema in a property, an item or a parameter; null is left to the caller."""
    schema = node.mapping()
    if "$ref" in schema:
        node.only(BESIDE_REF, "a property with $ref")
        return scope + node.ref_name("schemas")
    if "oneOf" in schema and (reference := nullable_ref(node)):
        node.only(NULLABLE_REF_SCHEMA, "a nullable reference")
        return annotate(reference, sequences=sequences, scope=scope)
    for key in ("oneOf", "anyOf", "allOf", "enum", "properties", "x-any"):
        if key in schema:
            raise node.refused(f"an unnamed schema with {key}; name it in components.schemas and refer to it")
    types = [name for name in types_of(node) if name != "null"]
    if types == ["array"]:
        return annotate_array(node, sequences=sequences, scope=scope)
    if types == ["object"]:
        return annotate_map(node, sequences=sequences, scope=scope)
    return annotate_scalar(node, types)


def annotate_item(node: Node, *, sequences: bool, scope: str) -> str:
    return with_none(annotate(node, sequences=sequences, scope=scope), is_nullable(node))


def annotate_array(node: Node, *, sequences: bool, scope: str) -> str:
    node.only(ARRAY_SCHEMA, "an array")
    if ("items" in node) == ("prefixItems" in node):
        raise node.refused("an array needs either items or prefixItems")
    if "prefixItems" in node:
        items = [annotate_item(item, sequences=sequences, scope=scope) for item in node["prefixItems"].elements()]
        return validated(node, f"tuple[{', '.join(items)}]")
    item = annotate_item(node["items"], sequences=sequences, scope=scope)
    return validated(node, f"{'Sequence' if sequences else 'list'}[{item}]")


def annotate_map(node: Node, *, sequences: bool, scope: str) -> str:
    node.only(MAP_SCHEMA, "a map")
    if "additionalProperties" not in node:
        raise node.refused("an object without properties or additionalProperties; say which of the two it is")
    if node.get("additionalProperties") is True:
        return "dict[str, Any]"
    return f"dict[str, {annotate_item(node['additionalProperties'], sequences=sequences, scope=scope)}]"


def annotate_scalar(node: Node, types: list[str]) -> str:
    node.only(SCALAR_SCHEMA, "a scalar")
    unknown = sorted(set(types) - set(SCALARS))
    if unknown or not types:
        raise node.refused(f"type {', '.join(unknown) or 'is missing or null only'}: no Python type follows from it")
    if len(types) > 1 and "format" in node:
        raise node.refused("a format on several types")
    formatted = formatted_type(node, types[0]) if len(types) == 1 else None
    return validated(node, formatted or " | ".join(SCALARS[name] for name in SCALARS if name in types))


def formatted_type(node: Node, type_name: str) -> str | None:
    """The type that `format` or `contentEncoding` asks for, if they ask for one."""
    if node.get("contentEncoding") not in (None, "base64") or ("contentEncoding" in node and type_name != "string"):
        raise node["contentEncoding"].refused("only base64 strings are understood")
    if "contentEncoding" in node:
        return "bytes"
    if "format" not in node:
        return None
    name = node.get("format")
    if type_name == "string" and name in STRING_FORMATS:
        return STRING_FORMATS[name]
    if name in NUMBER_FORMATS.get(type_name, set()):
        return None
    raise node["format"].refused(f"format {name!r} of a {type_name} is not understood here")


def validated(node: Node, annotation: str) -> str:
    """Put the limits into the type, where the document asks for it."""
    if not node.flag("x-validate"):
        return annotation
    limits = [f"{META[key]}={node.get(key)!r}" for key in META if key in node]
    if not limits:
        raise node["x-validate"].refused(f"nothing to validate; give one of {', '.join(sorted(LIMITS))}")
    return f"Annotated[{annotation}, msgspec.Meta({', '.join(limits)})]"


# ---------------------------------------------------------------------------------------------- defaults


def source_of(value: Node, schema: Node) -> str:
    """Python source of a default value, checked against its schema."""
    if "$ref" in schema.mapping():
        return source_of_named(value, schema.ref_name("schemas"))
    if "oneOf" in schema and (reference := nullable_ref(schema)):
        return source_of(value, reference)
    types = types_of(schema)
    if isinstance(value.value, list) and "array" in types and "items" in schema:
        return f"[{', '.join(source_of(item, schema['items']) for item in value.elements())}]"
    if isinstance(value.value, dict) and "object" in types:
        return source_of_map(value, schema)
    return source_of_scalar(value, types, schema)


def source_of_named(value: Node, name: str) -> str:
    schema = component(value, "schemas", name)
    if "properties" in schema:
        return source_of_record(value, name, schema)
    if is_union(schema):
        return source_of_record(value, *chosen_member(value, schema))
    if "enum" in schema:
        if value.value not in schema.get("enum") and not schema.flag("x-open-enum"):
            raise value.refused(f"{value.value!r} is not one of {name}")
        return repr(value.value)
    return repr(value.value) if "x-any" in schema else source_of(value, schema)


def chosen_member(value: Node, union: Node) -> tuple[str, Node]:
    tag_field = discriminator(union)
    name = members(union, tag_field).get(value.mapping().get(tag_field, ""))
    if name is None:
        raise value.refused(f"no member of {union.pointer} has this {tag_field}")
    return name, component(value, "schemas", name)


def source_of_record(value: Node, name: str, schema: Node) -> str:
    arguments: list[str] = []
    properties = schema["properties"]
    for key, item in value.items():
        if key not in properties:
            raise item.refused(f"{name} has no property {key}")
        const = properties[key].get("const")
        if const is None:
            arguments.append(f"{key}={source_of(item, properties[key])}")
        elif const != item.value:
            raise item.refused(f"the constant is {const!r}")
    missing = sorted(
        key for key in required_names(schema) if key not in value.mapping() and "const" not in properties[key]
    )
    if missing:
        raise value.refused(f"{name} also needs {', '.join(missing)}")
    return f"{name}({', '.join(arguments)})"


def source_of_map(value: Node, schema: Node) -> str:
    if schema.get("additionalProperties") is True:
        return repr(value.value)
    entries = [f"{key!r}: {source_of(item, schema['additionalProperties'])}" for key, item in value.items()]
    return f"{{{', '.join(entries)}}}"


def source_of_scalar(value: Node, types: list[str], schema: Node) -> str:
    kinds: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}
    kind = kinds.get(type(value.value), "value of another kind")
    if kind == "integer" and "integer" not in types and "number" in types:
        return repr(float(value.value))
    if kind not in types or schema.get("format") in ("date-time", "byte") or "contentEncoding" in schema:
        raise value.refused(f"a {kind} cannot be the default of {' or '.join(types) or 'this schema'}")
    return repr(value.value)
