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
    CONST_SCHEMA,
    ENUM_SCHEMA,
    RECORD_SCHEMA,
    UNION_SCHEMA,
    Node,
    Refused,
    each,
    is_list,
    is_mapping,
)
from python_defaults import source_of
from python_types import annotate, is_nullable, nullable_ref, types_of, with_none
from unions import discriminator, is_union, members, refs, required_names

#: Names that annotations and factories in models.py use; a schema or field of that name would shadow them.
TAKEN = frozenset(
    {"Any", "Annotated", "ClassVar", "Literal", "Sequence", "TypeAlias", "datetime", "msgspec", "property", "None"}
    | {"bool", "bytes", "dict", "float", "int", "list", "str", "tuple"}
)


@dataclass(frozen=True)
class OpenUnion:
    """A union whose unknown members stay dictionaries: msgspec decodes `Any`, then the record reads the known ones."""

    name: str
    doc: str
    tag_field: str
    members: dict[str, str]

    @property
    def annotation(self) -> str:
        return " | ".join((*self.members.values(), "dict[str, Any]"))

    @property
    def table(self) -> str:
        """The name of the table from tag to record."""
        return "_" + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self.name).upper()


@dataclass(frozen=True)
class Field:
    name: str
    annotation: str
    doc: str
    #: Python source of the value that is sent when none is given; None when there is none.
    factory: str | None = None
    #: May be left out, and is then not sent.
    optional: bool = False
    #: The open union of its value, or of the items of its value.
    open_union: OpenUnion | None = None
    #: That value is a list.
    many: bool = False
    #: May be None.
    nullable: bool = False
    #: Not shown where the record is printed.
    secret: bool = False


@dataclass(frozen=True)
class Record:
    name: str
    doc: str
    fields: list[Field]
    #: The discriminator and its value, for a member of a union.
    tag_field: str | None = None
    tag: str | None = None
    tag_doc: str = "Always sent; the union is told apart by it."

    @property
    def open_fields(self) -> list[Field]:
        return [item for item in self.fields if item.open_union]

    @property
    def secret_names(self) -> list[str]:
        return [item.name for item in self.fields if item.secret]

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
    open_unions: list[OpenUnion]

    @property
    def names(self) -> list[str]:
        return sorted(item.name for item in (*self.scalars, *self.records, *self.aliases, *self.open_unions))


@dataclass
class Facts:
    """What one schema has to know about the others."""

    #: Schemas that a request body reaches: their arrays are written `Sequence`, so that callers may pass any.
    sent: set[str] = field(default_factory=lambda: set[str]())
    #: Record name -> (discriminator, value), from every union it is a member of.
    tags: dict[str, tuple[str, str]] = field(default_factory=lambda: dict[str, tuple[str, str]]())
    #: Open unions by name.
    open_unions: dict[str, OpenUnion] = field(default_factory=lambda: dict[str, OpenUnion]())


def read_models(root: Node, refusals: list[Refused]) -> Models:
    """Read all schemas of the document."""
    facts = Facts(sent=sent_schemas(root))
    schemas = root["components"]["schemas"]
    each(schemas.items(), lambda name, node: note_union(name, node, facts), refusals)
    read = each(schemas.items(), lambda name, node: read_schema(name, node, facts), refusals)
    aliases = [item for item in read if isinstance(item, Alias)]
    return Models(
        scalars=[alias for alias in aliases if not alias.needs],
        records=[item for item in read if isinstance(item, Record)],
        aliases=in_order([alias for alias in aliases if alias.needs]),
        open_unions=[item for item in read if isinstance(item, OpenUnion)],
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
            pending += mentioned(root["components"]["schemas"].get(name))
    return sent


def request_bodies(root: Node) -> Iterator[Any]:
    for _, item in root["paths"].items():
        yield from (operation.get("requestBody") for operation in item.mapping().values() if is_mapping(operation))
    yield root["components"].get("requestBodies")


def mentioned(value: Any) -> list[str]:
    """Every schema name that a `$ref` anywhere inside `value` points to."""
    if is_list(value):
        return [name for item in value for name in mentioned(item)]
    if not is_mapping(value):
        return []
    names = [name for item in value.values() for name in mentioned(item)]
    ref = value.get("$ref")
    if isinstance(ref, str) and ref.startswith("#/components/schemas/"):
        names.append(ref.rsplit("/", 1)[1])
    return names


def note_union(name: str, node: Node, facts: Facts) -> None:
    """Record the tag that a union gives to each of its members, and whether it is open."""
    if not is_union(node):
        return
    tag_field = discriminator(node)
    tagged = members(node, tag_field)
    if node.flag("x-open-union"):
        facts.open_unions[name] = OpenUnion(name, doc_of(node), tag_field, tagged)
    for tag, member in tagged.items():
        if facts.tags.setdefault(member, (tag_field, tag)) != (tag_field, tag):
            raise node.refused(f"{member} has the tag {facts.tags[member]} in another union; a record has one tag")


# ---------------------------------------------------------------------------------------------- one named schema


def read_schema(name: str, node: Node, facts: Facts) -> Record | Alias | OpenUnion:
    check_class_name(name, node)
    schema = node.mapping()
    if "properties" in schema:
        return read_record(name, node, facts)
    if "x-any" in schema:
        return read_any(name, node)
    if "oneOf" in schema:
        return read_union(name, node, facts)
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


def read_union(name: str, node: Node, facts: Facts) -> Alias | OpenUnion:
    node.only(UNION_SCHEMA, "a union")
    listed = [member.ref_name("schemas") for member in refs(node["oneOf"])]
    members(node, discriminator(node))
    if name in facts.open_unions:
        return facts.open_unions[name]
    return Alias(name, doc_of(node), " | ".join(listed), frozenset(listed))


def read_shape(name: str, node: Node, facts: Facts) -> Alias:
    """A named map, array or scalar."""
    if "default" in node:
        raise node["default"].refused("a default belongs to the property that uses the schema")
    if "null" in types_of(node):
        raise node.refused("a named schema is not nullable; say so where it is used")
    annotation = annotate(node, sequences=name in facts.sent)
    needs = frozenset(mentioned(node.value))
    if needs & facts.open_unions.keys():
        raise node.refused("an open union is a property of a record, or the item of a list that is one")
    if name in needs:
        raise node.refused("a schema that contains itself must be a record or `x-any: true`")
    return Alias(name, doc_of(node), annotation, needs)


def read_record(name: str, node: Node, facts: Facts) -> Record:
    node.only(RECORD_SCHEMA, "a record")
    if node.get("type") != "object":
        raise node.refused("a record needs `type: object`")
    required = required_names(node)
    tag_field, tag = facts.tags.get(name, (None, None))
    properties = dict(node["properties"].items())
    fields = [
        read_property(key, prop, key in required, name in facts.sent, facts)
        for key, prop in properties.items()
        if key != tag_field
    ]
    if tag_field is None:
        return Record(name, doc_of(node), fields)
    properties[tag_field].only(CONST_SCHEMA - {"x-open"}, "a discriminator property")
    return Record(name, doc_of(node), fields, tag_field, tag, doc_of(properties[tag_field]) or Record.tag_doc)


# ---------------------------------------------------------------------------------------------- one property


def read_property(name: str, node: Node, required: bool, sent: bool, facts: Facts) -> Field:
    check_field_name(name, node)
    if "const" in node.mapping():
        return read_const(name, node)
    annotation = annotate(node, sequences=sent)
    nullable = is_nullable(node)
    default = node.get("default")
    if default is None and "default" in node and not nullable:
        raise node["default"].refused("null is not a value of this property")
    factory = None if default is None else source_of(node["default"], node)
    optional = default is None and not required
    return Field(
        name,
        with_none(annotation, nullable or optional),
        doc_of(node),
        factory=factory,
        optional=optional,
        open_union=open_union_of(node, facts),
        many="items" in node,
        nullable=nullable or optional,
        secret=node.flag("x-secret"),
    )


def open_union_of(node: Node, facts: Facts) -> OpenUnion | None:
    """The open union that a property holds, directly or as the items of its list."""
    if not facts.open_unions.keys() & set(mentioned(node.value)):
        return None
    if "items" in node:
        node = node["items"]
        if is_nullable(node):
            raise node.refused("a list of an open union holds no null")
    reference = nullable_ref(node) if "oneOf" in node else node
    if reference is None or "$ref" not in reference:
        raise node.refused("an open union is a property of a record, or the item of a list that is one")
    return facts.open_unions[reference.ref_name("schemas")]


def check_field_name(name: str, node: Node) -> None:
    if keyword.iskeyword(name):
        raise node.refused(f"{name!r} is a Python keyword and cannot be an attribute")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or name in TAKEN:
        raise node.refused(f"{name!r} cannot be an attribute of a generated record")


def read_const(name: str, node: Node) -> Field:
    """A constant is always sent; an answer without it is accepted, one with another value or with null only under `x-open`."""
    node.only(CONST_SCHEMA, "a constant property")
    value, types = node.get("const"), types_of(node) or ["string"]
    if not isinstance(value, str) or [one for one in types if one != "null"] != ["string"]:
        raise node["const"].refused("only a string constant is understood")
    if is_nullable(node) and not node.flag("x-open"):
        raise node["type"].refused("a constant that may be null needs x-open: true")
    literal = f"Literal[{value!r}]"
    annotation = with_none(f"{literal} | str" if node.flag("x-open") else literal, is_nullable(node))
    return Field(name, annotation, doc_of(node), factory=repr(value))
