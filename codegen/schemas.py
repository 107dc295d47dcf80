"""Turn `components.schemas` into the input of the models template: records, aliases and their
Python annotations.

Every named schema becomes one Python name. Anything outside the closed subset is refused.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

from codegen.document import (
    ANY_SCHEMA,
    CONST_SCHEMA,
    ENUM_SCHEMA,
    RECORD_SCHEMA,
    UNION_SCHEMA,
    DocumentNode,
    Refusal,
    each,
    is_list,
    is_mapping,
)
from codegen.forms import annotate_file, check_form_property, form_schemas, is_file
from codegen.python_defaults import source_of
from codegen.python_types import annotate, is_nullable, nullable_ref, types_of, with_none
from codegen.unions import discriminator, is_union, mandatory_names, members, refs

#: Names that annotations and factories in models.py use; a schema or field of that name would
#: shadow them.
TAKEN = frozenset(
    {
        "Any",
        "Annotated",
        "ClassVar",
        "Literal",
        "Sequence",
        "TypeAlias",
        "datetime",
        "msgspec",
        "property",
        "None",
        "Upload",
    }
    | {"bool", "bytes", "dict", "float", "int", "list", "str", "tuple"}
)


#: What every record can do; a field of that name would take its place.
METHODS_OF_RECORDS = frozenset(
    {
        "copy",
        "dict",
        "json",
        "model_copy",
        "model_dump",
        "model_dump_json",
        "model_fields",
        "model_validate",
    }
    | {"model_validate_json", "parse_obj", "parse_raw"}
)


@dataclass(frozen=True)
class OpenUnion:
    """A union whose unknown members stay dictionaries: msgspec decodes `Any`, then the record reads
    the known ones.
    """

    name: str
    doc: str
    tag_field: str
    members: dict[str, str]
    kind: ClassVar[str] = "open union"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(self.members.values())

    @property
    def annotation(self) -> str:
        return " | ".join((*self.members.values(), "dict[str, Any]"))

    @property
    def table(self) -> str:
        """Return the name of the table from tag to record."""
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
class RecordSpec:
    name: str
    doc: str
    fields: list[Field]
    #: The discriminator and its value, for a member of a union.
    tag_field: str | None = None
    tag: str | None = None
    tag_doc: str = "Always sent; the union is told apart by it."
    needs: frozenset[str] = frozenset()
    #: Where users import it from, which is the module that it says it is of.
    public_module: str | None = None
    kind: ClassVar[str] = "record"

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
    #: The listed values alone, of an open enum that requests contain: what a type checker lets
    #: callers write.
    listed: str | None = None
    kind: ClassVar[str] = "alias"


Definition: TypeAlias = Alias | RecordSpec | OpenUnion


@dataclass(frozen=True)
class Models:
    """All named schemas, each after those it uses."""

    definitions: list[Definition]

    @property
    def names(self) -> list[str]:
        listed = [
            f"Listed{item.name}"
            for item in self.definitions
            if isinstance(item, Alias) and item.listed
        ]
        return sorted([*(item.name for item in self.definitions), *listed])


@dataclass
class SchemaIndex:
    """The facts that one schema needs about the others."""

    #: Schemas that a request body reaches: their arrays are written `Sequence`, so that callers may
    #: pass any.
    sent: set[str] = field(default_factory=lambda: set[str]())
    #: RecordSpec name -> (discriminator, value), from every union it is a member of.
    tags: dict[str, tuple[str, str]] = field(default_factory=lambda: dict[str, tuple[str, str]]())
    #: Open unions by name.
    open_unions: dict[str, OpenUnion] = field(default_factory=lambda: dict[str, OpenUnion]())
    #: Schemas that are the bodies of forms; only these have files.
    forms: frozenset[str] = frozenset()
    #: Record name -> the module from which users import it.
    public: Mapping[str, str] = field(default_factory=lambda: dict[str, str]())


def read_models(
    root: DocumentNode, refusals: list[Refusal], public: Mapping[str, str] | None = None
) -> Models:
    """Read all schemas of the document; `public` says from which modules users import which
    records.
    """
    index = SchemaIndex(
        sent=schemas_in_requests(root), forms=form_schemas(root), public=public or {}
    )
    schemas = root["components"]["schemas"]
    each(schemas.items(), lambda name, node: note_union(name, node, index), refusals)
    return Models(
        in_order(each(schemas.items(), lambda name, node: read_schema(name, node, index), refusals))
    )


def in_order(definitions: list[Definition]) -> list[Definition]:
    """Sort definitions so that each stands after those it uses; the order of the document
    otherwise.
    """
    done: dict[str, Definition] = {}

    def place(item: Definition, users: tuple[str, ...]) -> None:
        if item.name in users:
            raise Refusal(
                "#/components/schemas",
                f"schemas need each other in a circle: {', '.join(sorted(users))}",
            )
        for needed in definitions:
            if needed.name in item.needs and needed.name not in done:
                place(needed, (*users, item.name))
        done.setdefault(item.name, item)

    for item in definitions:
        place(item, ())
    return list(done.values())


# ----------------------------------------------------------------------------------- across schemas


def schemas_in_requests(root: DocumentNode) -> set[str]:
    """Return the names of all schemas that a request body can contain."""
    sent: set[str] = set()
    pending = [name for body in request_bodies(root) for name in schema_names_in(body)]
    while pending:
        name = pending.pop()
        if name not in sent:
            sent.add(name)
            pending += schema_names_in(root["components"]["schemas"].get(name))
    return sent


def request_bodies(root: DocumentNode) -> Iterator[Any]:
    for _, item in root["paths"].items():
        yield from (
            operation.get("requestBody")
            for operation in item.mapping().values()
            if is_mapping(operation)
        )
    yield root["components"].get("requestBodies")


def schema_names_in(value: Any) -> list[str]:
    """Return every schema name that a `$ref` anywhere inside `value` points to."""
    if is_list(value):
        return [name for item in value for name in schema_names_in(item)]
    if not is_mapping(value):
        return []
    names = [name for item in value.values() for name in schema_names_in(item)]
    ref = value.get("$ref")
    if isinstance(ref, str) and ref.startswith("#/components/schemas/"):
        names.append(ref.rsplit("/", 1)[1])
    return names


def note_union(name: str, node: DocumentNode, index: SchemaIndex) -> None:
    """Note the tag that a union gives to each of its members, and whether it is open."""
    if not is_union(node):
        return
    tag_field = discriminator(node)
    tagged = members(node, tag_field)
    if node.flag("x-open-union"):
        index.open_unions[name] = OpenUnion(name, doc_of(node), tag_field, tagged)
    for tag, member in tagged.items():
        if index.tags.setdefault(member, (tag_field, tag)) != (tag_field, tag):
            raise node.refusal(
                f"{member} has the tag {index.tags[member]} in another union; a record has one tag"
            )


# --------------------------------------------------------------------------------- one named schema


def read_schema(
    name: str, node: DocumentNode, index: SchemaIndex
) -> RecordSpec | Alias | OpenUnion:
    check_class_name(name, node)
    schema = node.mapping()
    if "properties" in schema:
        return read_record(name, node, index)
    if "x-any" in schema:
        return read_any(name, node)
    if "oneOf" in schema:
        return read_union(name, node, index)
    if "enum" in schema:
        return read_enum(name, node, index)
    if "$ref" in schema:
        raise node.refusal("a second name for a schema; use the first")
    return read_shape(name, node, index)


def check_class_name(name: str, node: DocumentNode) -> None:
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name) or keyword.iskeyword(name) or name in TAKEN:
        raise node.refusal(f"{name!r} cannot be a class name here; use an unused PascalCase name")


def doc_of(node: DocumentNode) -> str:
    description = node.text("description")
    if node.flag("deprecated"):
        return f"Deprecated. {description}".strip()
    return description


def read_any(name: str, node: DocumentNode) -> Alias:
    node.only(ANY_SCHEMA, "an opaque schema")
    if not node.flag("x-any"):
        raise node["x-any"].refusal("only true means something")
    return Alias(name, doc_of(node), "Any")


def read_enum(name: str, node: DocumentNode, index: SchemaIndex) -> Alias:
    node.only(ENUM_SCHEMA, "an enum")
    values = node["enum"].elements()
    if (
        node.get("type") != "string"
        or not values
        or not all(isinstance(value.value, str) for value in values)
    ):
        raise node.refusal("only a non-empty enum of `type: string` is understood")
    literal = f"Literal[{', '.join(repr(value.value) for value in values)}]"
    if not node.flag("x-open-enum"):
        return Alias(name, doc_of(node), literal)
    if name not in index.sent:
        return Alias(name, doc_of(node), f"{literal} | str")
    return Alias(name, doc_of(node), f"Listed{name} | str", listed=literal)


def read_union(name: str, node: DocumentNode, index: SchemaIndex) -> Alias | OpenUnion:
    node.only(UNION_SCHEMA, "a union")
    listed = [member.ref_name("schemas") for member in refs(node["oneOf"])]
    members(node, discriminator(node))
    if name in index.open_unions:
        return index.open_unions[name]
    return Alias(name, doc_of(node), " | ".join(listed), frozenset(listed))


def read_shape(name: str, node: DocumentNode, index: SchemaIndex) -> Alias:
    """Read a named map, array or scalar."""
    if "default" in node:
        raise node["default"].refusal("a default belongs to the property that uses the schema")
    if "null" in types_of(node):
        raise node.refusal("a named schema is not nullable; say so where it is used")
    annotation = annotate(node, sequences=name in index.sent)
    needs = frozenset(schema_names_in(node.value))
    if needs & index.open_unions.keys():
        raise node.refusal(
            "an open union is a property of a record, or the item of a list that is one"
        )
    if name in needs:
        raise node.refusal("a schema that contains itself must be `x-any: true`")
    return Alias(name, doc_of(node), annotation, needs)


def read_record(name: str, node: DocumentNode, index: SchemaIndex) -> RecordSpec:
    node.only(RECORD_SCHEMA, "a record")
    if node.get("type") != "object":
        raise node.refusal("a record needs `type: object`")
    required = mandatory_names(node)
    tag_field, tag = index.tags.get(name, (None, None))
    properties = dict(node["properties"].items())
    fields = [
        read_form_property(key, prop, key in required, index)
        if name in index.forms
        else read_property(key, prop, key in required, name in index.sent, index)
        for key, prop in properties.items()
        if key != tag_field
    ]
    record = RecordSpec(
        name,
        doc_of(node),
        fields,
        needs=frozenset(schema_names_in(node.value)),
        public_module=index.public.get(name),
    )
    if tag_field is None:
        return record
    check_field_name(tag_field, properties[tag_field])
    properties[tag_field].only(CONST_SCHEMA - {"x-open"}, "a discriminator property")
    return replace(
        record,
        tag_field=tag_field,
        tag=tag,
        tag_doc=doc_of(properties[tag_field]) or RecordSpec.tag_doc,
    )


# ------------------------------------------------------------------------------------- one property


def read_property(
    name: str, node: DocumentNode, required: bool, sent: bool, index: SchemaIndex
) -> Field:
    check_field_name(name, node)
    if "const" in node.mapping():
        return read_const(name, node)
    annotation = annotate(node, sequences=sent)
    nullable = is_nullable(node)
    default = node.get("default")
    if default is None and "default" in node and not nullable:
        raise node["default"].refusal("null is not a value of this property")
    factory = None if default is None else source_of(node["default"], node)
    optional = default is None and not required
    return Field(
        name,
        with_none(annotation, nullable or optional),
        doc_of(node),
        factory=factory,
        optional=optional,
        open_union=open_union_of(node, index),
        many="items" in node,
        nullable=nullable or optional,
        secret=node.flag("x-secret"),
    )


def read_form_property(name: str, node: DocumentNode, required: bool, index: SchemaIndex) -> Field:
    """Read a property of a form, which may be a file."""
    if not is_file(node):
        check_form_property(node)
        return read_property(name, node, required, True, index)
    check_field_name(name, node)
    return Field(
        name, with_none(annotate_file(node), not required), doc_of(node), optional=not required
    )


def open_union_of(node: DocumentNode, index: SchemaIndex) -> OpenUnion | None:
    """Return the open union that a property holds, directly or as the items of its list."""
    if not index.open_unions.keys() & set(schema_names_in(node.value)):
        return None
    if "items" in node:
        node = node["items"]
        if is_nullable(node):
            raise node.refusal("a list of an open union holds no null")
    reference = nullable_ref(node) if "oneOf" in node else node
    if reference is None or "$ref" not in reference:
        raise node.refusal(
            "an open union is a property of a record, or the item of a list that is one"
        )
    return index.open_unions[reference.ref_name("schemas")]


def check_field_name(name: str, node: DocumentNode) -> None:
    if name in METHODS_OF_RECORDS:
        raise node.refusal(f"{name!r} would shadow what every generated record can do")
    if keyword.iskeyword(name):
        raise node.refusal(f"{name!r} is a Python keyword and cannot be an attribute")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or name in TAKEN:
        raise node.refusal(f"{name!r} cannot be an attribute of a generated record")


def read_const(name: str, node: DocumentNode) -> Field:
    """Read a constant: it is always sent.

    An answer without it is accepted, one with another value or with null only under `x-open`.
    """
    node.only(CONST_SCHEMA, "a constant property")
    value, types = node.get("const"), types_of(node) or ["string"]
    if not isinstance(value, str) or [one for one in types if one != "null"] != ["string"]:
        raise node["const"].refusal("only a string constant is understood")
    if is_nullable(node) and not node.flag("x-open"):
        raise node["type"].refusal("a constant that may be null needs x-open: true")
    literal = f"Literal[{value!r}]"
    annotation = with_none(
        f"{literal} | str" if node.flag("x-open") else literal, is_nullable(node)
    )
    return Field(name, annotation, doc_of(node), factory=repr(value))
