"""openapi.portable.yaml: the same contract in plain OpenAPI 3.1, for generators that know no
extensions of ours.

x-open-enum, x-open     any text; listed values are examples
x-open-union            one record with the fields of all members, and any others
FutureAnswer            the same: generators try the members of a union in an order of their own
members of a union      their tag is required, as their clients send it today
media types             JSON comes first, as generators take the first one
headers of every call   declared where they may stand
examples of chunks      with their tag
lists, maps and objects have no default, which servers fill in
unions with a list      any value, since few languages have such a type
numbers                 of 64 bits
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeAlias

from ruamel.yaml import YAML

from codegen.document import METHODS, is_list, is_mapping
from codegen.files import Wanted

Schema: TypeAlias = dict[str, Any]

HEADER = """\
# Made of openapi.yaml by `python -m codegen generate`; change that, not this.
# The same contract without extensions of ours, for generators of any language.
"""
JSON = "application/json"
#: What openapi.yaml says in words about every call and every answer.
EVERY_CALL = "IdempotencyKey"
EVERY_ANSWER = {"x-deprecation-note": "DeprecationNote", "x-deprecation-level": "DeprecationLevel"}
#: Instructions for our own generator; evidence stays, as it is for readers.
OURS = frozenset(
    {"x-any", "x-open", "x-open-enum", "x-open-union", "x-validate", "x-client", "x-methods"}
    | {"x-reply", "x-result", "x-constants"}
)


def make_document(root: Path, document: Any) -> Wanted:
    """Return the text of the portable document."""
    return {root / "openapi.portable.yaml": HEADER + _to_text(make_portable(document))}


def make_portable(document: Any) -> Any:
    """Return the document in plain OpenAPI 3.1."""
    portable = deepcopy(document)
    schemas: dict[str, Schema] = portable["components"]["schemas"]
    for name in [name for name, schema in schemas.items() if "discriminator" in schema]:
        _require_tags(schemas, schemas[name])
    for name, schema in schemas.items():
        if (
            members := [*_branches(schema)]
            if "if" in schema
            else schema.get("x-open-union") and schema["oneOf"]
        ):
            kept = {
                key: value for key, value in schema.items() if key in ("description", "x-evidence")
            }
            schemas[name] = {**kept, **_merge(members, schemas)}
    for operation in _operations(portable):
        _declare_headers(operation, portable["components"])
    for content in _find(portable, "content"):
        _keep_json(content)
    _tag_examples(portable["components"].get("examples", {}))
    plain = _rewrite(portable, _without_extensions)
    schemas = plain["components"]["schemas"]
    # members of unions
    while unused := schemas.keys() - set(re.findall(r"#/components/schemas/(\w+)", str(plain))):
        for name in unused:
            del schemas[name]
    return plain


def _operations(document: Any) -> Iterator[Schema]:
    for item in document["paths"].values():
        yield from (item[method] for method in METHODS if method in item)


def _require_tags(schemas: dict[str, Schema], union: Schema) -> None:
    tag = union["discriminator"]["propertyName"]
    for reference in union["discriminator"]["mapping"].values():
        member = _target({"$ref": reference}, schemas)
        member["required"] = [tag, *(name for name in member.get("required", ()) if name != tag)]


def _merge(members: Iterable[Schema], schemas: dict[str, Schema]) -> Schema:
    """Return one record with the fields of all members of a union, and any others; a field is
    required if all require it.
    """
    records = [_target(member, schemas) if "$ref" in member else member for member in members]
    forms: dict[str, list[Schema]] = {}
    for record in records:
        for name, form in record.get("properties", {}).items():
            forms.setdefault(name, []).append(form)
    required = [
        name for name in forms if all(name in record.get("required", ()) for record in records)
    ]
    properties = {name: _combine(found, schemas) for name, found in forms.items()}
    return {"type": "object", "properties": properties, "additionalProperties": True} | (
        {"required": required} if required else {}
    )


def _combine(forms: list[Schema], schemas: dict[str, Schema]) -> Schema:
    """Return the form of a field that members of a union have in different forms."""
    if known := [form["const"] for form in forms if "const" in form]:
        return {
            "type": forms[-1].get("type", "string"),
            "description": "One of " + ", ".join(f"`{value}`" for value in known) + ", or another.",
        }
    references = {form["$ref"]: form for form in forms if "$ref" in form}
    if len(references) > 1:
        return _merge(references.values(), schemas)
    form = max(forms, key=lambda form: "null" in str(form.get("type", form)))
    return {key: value for key, value in form.items() if key != "default"}


def _target(reference: Schema, schemas: dict[str, Schema]) -> Schema:
    return schemas[reference["$ref"].rsplit("/", 1)[1]]


def _branches(schema: Schema) -> Iterator[Schema]:
    if "if" in schema:
        yield from _branches(schema["then"])
        yield from _branches(schema["else"])
    elif "anyOf" in schema:
        yield from schema["anyOf"]
    else:
        yield schema


def _declare_headers(operation: Schema, components: Schema) -> None:
    for response in operation["responses"].values():
        target = (
            components["responses"][response["$ref"].rsplit("/", 1)[1]]
            if "$ref" in response
            else response
        )
        headers = target.setdefault("headers", {})
        for header, name in EVERY_ANSWER.items():
            headers.setdefault(header, {"$ref": f"#/components/headers/{name}"})
    if "requestBody" in operation:
        operation.setdefault("parameters", []).append(
            {"$ref": f"#/components/parameters/{EVERY_CALL}"}
        )


def _keep_json(content: Schema) -> None:
    """Leave out other forms where JSON exists: headers choose them, which stock clients set for all
    calls alike.
    """
    if JSON in content:
        for other in [media_type for media_type in content if media_type != JSON]:
            del content[other]


def _tag_examples(node: Any) -> None:
    """Give a tag to chunks of text in examples that clients of 2025 sent without one."""
    for value in node.values() if is_mapping(node) else node if is_list(node) else ():
        _tag_examples(value)
    if is_mapping(node) and "tokens" in node and "type" not in node and len(node) == 1:
        node["type"] = "encoded_text"


def _without_extensions(schema: Schema) -> Schema:
    """Return a schema without our extensions. Another value of an open enum is any text."""
    plain = {key: value for key, value in schema.items() if key not in OURS}
    if isinstance(plain.get("description"), str) and isinstance(plain.get("default"), dict | list):
        del plain["default"]  # generators write it as no language allows
    if "prefixItems" in plain:
        del plain["prefixItems"]
        plain["items"] = {"type": "number", "format": "double"}
    if any(member.get("type") == "array" for member in plain.get("anyOf", ())):
        del plain["anyOf"]
    if plain.get("type") == ["integer", "number"]:
        plain["type"] = "number"
    if plain.get("type") in ("number", ["number", "null"]):
        plain["format"] = "double"
    if schema.get("x-open-enum"):
        plain["examples"] = plain.pop("enum")
    if schema.get("x-open"):
        plain["examples"] = [plain.pop("const")]
    return plain


def _rewrite(node: Any, change: Callable[[Schema], Schema]) -> Any:
    if is_mapping(node):
        return change({key: _rewrite(value, change) for key, value in node.items()})
    return [_rewrite(value, change) for value in node] if is_list(node) else node


def _find(node: Any, key: str) -> Iterator[Schema]:
    if is_mapping(node):
        for name, value in node.items():
            if name == key and is_mapping(value):
                yield value
            yield from _find(value, key)
    elif is_list(node):
        for value in node:
            yield from _find(value, key)


def _always(_: object) -> bool:
    return True


def _to_text(document: Any) -> str:
    yaml: Any = YAML()
    yaml.width = 120
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.representer.ignore_aliases = _always
    out = io.StringIO()
    yaml.dump(document, out)
    return out.getvalue()
