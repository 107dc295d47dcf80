"""Walk an OpenAPI document by JSON pointer and refuse unsupported constructs.

Owns: `DocumentNode` (a value together with where it stands), `Refusal`, and the closed lists of
keywords. It knows nothing of Python types or of templates.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar

Result = TypeVar("Result")

MULTIPART = "multipart/form-data"

#: Keywords that only explain, and do not change the generated code.
DOCUMENTATION = frozenset(
    {
        "title",
        "description",
        "summary",
        "deprecated",
        "example",
        "examples",
        "externalDocs",
        "x-evidence",
        "x-assumed",
    }
)

#: Limits on values: what a server may check. They reach the generated types only under
#: `x-validate: true`.
INTEGER_LIMITS = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
)
STRING_LIMITS = frozenset({"minLength", "maxLength", "pattern"})
ARRAY_LIMITS = frozenset({"minItems", "maxItems"})
LIMITS = INTEGER_LIMITS | STRING_LIMITS | ARRAY_LIMITS

#: Keywords allowed with `$ref` in a property: they describe the property, not the schema it names.
BESIDE_REF = DOCUMENTATION | {"$ref", "default", "x-secret"}

SCALAR_SCHEMA = (
    DOCUMENTATION
    | LIMITS
    | {"type", "format", "contentEncoding", "default", "x-validate", "x-secret"}
)
CONST_SCHEMA = DOCUMENTATION | {"type", "const", "x-open"}
ARRAY_SCHEMA = (
    DOCUMENTATION | ARRAY_LIMITS | {"type", "items", "prefixItems", "default", "x-validate"}
)
MAP_SCHEMA = DOCUMENTATION | {"type", "additionalProperties", "default", "x-secret"}
RECORD_SCHEMA = DOCUMENTATION | {"type", "properties", "required", "x-constants"}
ENUM_SCHEMA = DOCUMENTATION | {"type", "enum", "x-open-enum", "x-constants"}
UNION_SCHEMA = DOCUMENTATION | {"oneOf", "discriminator", "x-open-union"}
NULLABLE_REF_SCHEMA = DOCUMENTATION | {"oneOf", "default"}
#: An opaque value is `Any` in Python; whatever else its schema says is for servers and validators.
ANY_SCHEMA = (
    DOCUMENTATION | LIMITS | {"x-any", "type", "oneOf", "anyOf", "items", "if", "then", "else"}
)

DOCUMENT = frozenset(
    {
        "openapi",
        "info",
        "servers",
        "security",
        "tags",
        "paths",
        "components",
        "externalDocs",
        "x-evidence",
    }
)
COMPONENTS = frozenset(
    {
        "schemas",
        "parameters",
        "responses",
        "requestBodies",
        "headers",
        "securitySchemes",
        "examples",
    }
)
METHODS = ("get", "put", "post", "delete", "patch", "head")
PATH_ITEM = frozenset({*METHODS, "parameters", "summary", "description", "x-evidence"})
OPERATION = DOCUMENTATION | {
    "operationId",
    "tags",
    "security",
    "parameters",
    "requestBody",
    "responses",
    "x-client",
    "x-methods",
    "x-optional",
    "x-reply",
    "x-result",
}
PARAMETER = DOCUMENTATION | {"name", "in", "required", "schema", "style", "explode"}
REQUEST_BODY = frozenset({"description", "required", "content", "x-evidence"})
#: Response headers and links describe; a client reads headers by itself, so nothing is generated
#: from them.
RESPONSE = frozenset({"description", "content", "headers", "links", "x-evidence"})
MEDIA_TYPE = frozenset({"schema", "example", "examples", "x-protobuf-message", "x-evidence"})


#: Extensions that mean something here. Others are their authors', and are passed over.
EXTENSIONS = frozenset(
    {
        "x-any",
        "x-assumed",
        "x-client",
        "x-constants",
        "x-evidence",
        "x-open",
        "x-open-enum",
        "x-open-union",
        "x-optional",
    }
    | {"x-methods", "x-protobuf-message", "x-reply", "x-result", "x-secret", "x-validate"}
)


def is_mapping(value: object) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def is_foreign(key: object) -> bool:
    """Return whether a key is an extension that others have defined."""
    return isinstance(key, str) and key.startswith("x-") and key not in EXTENSIONS


def nearest_extension(key: str) -> str | None:
    """Return the extension of ours that was probably meant."""
    return next(iter(difflib.get_close_matches(key, sorted(EXTENSIONS), n=1, cutoff=0.8)), None)


class Refusal(Exception):
    """The document says something this generator will not guess about."""

    def __init__(self, pointer: str, reason: str) -> None:
        super().__init__(f"{pointer}: {reason}")
        self.pointer = pointer
        self.reason = reason


@dataclass(frozen=True)
class DocumentNode:
    """A value of the document and the JSON pointer it stands at."""

    value: Any
    pointer: str
    root: Any

    @classmethod
    def of_document(cls, document: Any) -> DocumentNode:
        return cls(document, "#", document)

    def __getitem__(self, key: str | int) -> DocumentNode:
        escaped = str(key).replace("~", "~0").replace("/", "~1")
        return DocumentNode(self.value[key], f"{self.pointer}/{escaped}", self.root)

    def __contains__(self, key: str) -> bool:
        return key in self.mapping()

    def get(self, key: str, default: Any = None) -> Any:
        return self.mapping().get(key, default)

    def items(self) -> Iterator[tuple[str, DocumentNode]]:
        for key in self.mapping():
            if not isinstance(key, str):
                raise self.refusal(f"the key {key!r} is not a string; quote it")
            yield key, self[key]

    def elements(self) -> list[DocumentNode]:
        value = self.value
        if not is_list(value):
            raise self.refusal("a list is expected here")
        return [self[index] for index in range(len(value))]

    def mapping(self) -> dict[Any, Any]:
        value = self.value
        if not is_mapping(value):
            raise self.refusal("a mapping is expected here")
        return value

    def only(self, allowed: frozenset[str], what: str) -> None:
        """Refuse every keyword outside `allowed`: an ignored keyword is a promise that the output
        breaks.

        An extension that is not ours is passed over, unless it is nearly the name of one of ours.
        """
        for key in self.mapping():
            if (
                str(key).startswith("x-")
                and key not in EXTENSIONS
                and (meant := nearest_extension(str(key)))
            ):
                raise self.refusal(f"{key} is not known; {meant} is")
        unknown = sorted(
            str(key) for key in self.mapping() if key not in allowed and not is_foreign(key)
        )
        if unknown:
            raise self.refusal(f"{what} does not understand {', '.join(unknown)}")

    def flag(self, key: str) -> bool:
        value = self.get(key, False)
        if not isinstance(value, bool):
            raise self[key].refusal("true or false is expected")
        return value

    def text(self, key: str) -> str:
        value = self.get(key, "")
        if not isinstance(value, str):
            raise self[key].refusal("a string is expected")
        return value.strip()

    def refusal(self, reason: str) -> Refusal:
        return Refusal(self.pointer, reason)

    def ref_name(self, section: str) -> str:
        """Return the name that `$ref` points to within `components/<section>`."""
        prefix = f"#/components/{section}/"
        ref = self.value["$ref"]
        if not isinstance(ref, str) or not ref.startswith(prefix) or "/" in ref[len(prefix) :]:
            raise self.refusal(f"{ref!r} does not point into {prefix}")
        name = ref[len(prefix) :]
        if name not in self.root.get("components", {}).get(section, {}):
            raise self.refusal(f"{ref!r} points to nothing")
        return name

    def resolve(self, section: str) -> DocumentNode:
        """Return this node, or the component that it refers to."""
        if "$ref" not in self.mapping():
            return self
        self.only(frozenset({"$ref"}), "a reference")
        return component(self, section, self.ref_name(section))


def component(node: DocumentNode, section: str, name: str) -> DocumentNode:
    """Return the node of `components/<section>/<name>`."""
    return DocumentNode(
        node.root["components"][section][name], f"#/components/{section}/{name}", node.root
    )


def each(
    nodes: Iterator[tuple[str, DocumentNode]],
    read: Callable[[str, DocumentNode], Result],
    refusals: list[Refusal],
) -> list[Result]:
    """Read every node; collect refusals, so that one run names all of them."""
    results: list[Result] = []
    for name, node in nodes:
        try:
            results.append(read(name, node))
        except Refusal as refusal:
            refusals.append(refusal)
    return results
