"""Compare a wheel of the official SDK with openapi.yaml: `python -m codegen follow WHEEL`.

What comes out is what is to be done to follow that release, with the YAML to paste where the wheel
says enough. With two wheels, `python -m codegen follow NEW --since OLD`, it lists what changed
between them instead.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from codegen.document import is_mapping
from codegen.files import HERE, ROOT, load
from codegen.wheel_facts import Facts, literal_values, read_facts

#: Deliberate differences of the document, each with its reason.
DIFFERENCES = HERE / "official_differences.toml"
_SCALARS = {
    "str": "string",
    "int": "integer, format: int64",
    "float": "number",
    "bool": "boolean",
    "datetime": "string, format: date-time",
}
_ANY = "{$ref: '#/components/schemas/JSONValue'}"
_SECTIONS = {
    "paths": "path",
    "headers": "header",
    "classes": "class",
    "values": "choice",
    "messages": "message",
    "enums": "enum",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the list; return 1 when there is something on it."""
    parser = argparse.ArgumentParser(
        description="List what a release of the official SDK changes in the contract."
    )
    parser.add_argument(
        "wheel",
        type=Path,
        help="a wheel of the official SDK, or facts that were read of one (.json)",
    )
    parser.add_argument("--since", type=Path, help="an older wheel, instead of openapi.yaml")
    parser.add_argument(
        "--facts",
        action="store_true",
        help="print the facts of the wheel as JSON, and nothing else",
    )
    parser.add_argument("--document", type=Path, default=ROOT / "openapi.yaml")
    options = parser.parse_args(arguments)
    facts = _load_facts(options.wheel)
    if options.facts:
        print(json.dumps(facts, indent=1, sort_keys=True))
        return 0
    document = load(options.document)
    items = list(
        compare_facts(_load_facts(options.since), facts)
        if options.since
        else compare_document(document, facts)
    )
    print(*(items or [f"{options.document.name} has all of {facts['version']}"]), sep="\n")
    return 1 if items else 0


def _load_facts(file: Path) -> Facts:
    return (
        json.loads(file.read_text(encoding="utf-8")) if file.suffix == ".json" else read_facts(file)
    )


# --------------------------------------------------------------------------------------- two wheels


def compare_facts(old: Facts, new: Facts) -> Iterator[str]:
    """List the additions, removals and changes between two wheels."""
    for section, what in _SECTIONS.items():
        before, after = _as_mapping(old[section]), _as_mapping(new[section])
        yield from (f"removed {what} {name}" for name in sorted(before.keys() - after.keys()))
        for name in sorted(after.keys() - before.keys()):
            yield (
                f"added {what} {name}{_yaml_of(name, after[name]) if section == 'classes' else ''}"
            )
        for name in sorted(before.keys() & after.keys()):
            yield from _changes(f"{what} {name}", before[name], after[name])


def _as_mapping(section: Any) -> dict[str, Any]:
    return section if is_mapping(section) else dict.fromkeys(section)


def _changes(what: str, before: Any, after: Any) -> Iterator[str]:
    if not is_mapping(before):
        if before != after:
            yield f"changed {what}: {before} -> {after}"
        return
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield f"changed {what}.{name}: {_show(before.get(name))} -> {_show(after.get(name))}"


def _show(fact: Any) -> str:
    if isinstance(fact, dict):
        return f"{fact['type']}{' (required)' if fact['required'] else ''}"
    return "nothing" if fact is None else str(fact)


# ------------------------------------------------------------------------- a wheel and the document


def compare_document(document: Any, facts: Facts) -> Iterator[str]:
    """Say what of a wheel the document lacks, and what of its classes the wheel does not have,
    unless that is on purpose.
    """
    known = tomllib.loads(DIFFERENCES.read_text(encoding="utf-8"))
    yield from (
        f"add path {path}" for path in _missing_paths(document, facts) if path not in known["paths"]
    )
    text = str(document).lower()
    yield from (
        f"name header {name}"
        for name in facts["headers"]
        if name not in text and name not in known["headers"]
    )
    schemas = document["components"]["schemas"]
    for name, fields in sorted(facts["classes"].items()):
        if name in known["classes"]:
            continue
        if name not in schemas:
            yield f"add schema {name}{_yaml_of(name, fields)}"
            continue
        properties = schemas[name].get("properties", {})
        for field in sorted(fields.keys() - properties.keys()):
            if f"{name}.{field}" not in known["fields"]:
                yield f"add property {name}.{field}{_yaml_of_field(field, fields[field])}"
        for field in sorted(fields.keys() & properties.keys()):
            if f"{name}.{field}" not in known["fields"]:
                is_required = field in schemas[name].get("required", ())
                yield from _compare_field(
                    f"{name}.{field}", fields[field], properties[field], is_required
                )
                yield from _compare_choices(
                    f"{name}.{field}", fields[field], properties[field], schemas
                )
        for field in sorted(properties.keys() - fields.keys()):
            if f"{name}.{field}" not in known["additions"]:
                yield (
                    f"is property {name}.{field} still sent? {facts['version']} does not have it; "
                    "if it is, write under "
                    f'[additions] of codegen/official_differences.toml: "{name}.{field}" = "WHY"'
                )
    yield from _compare_values(schemas, facts, known)


def _compare_field(name: str, fact: Facts, schema: Any, is_required: bool) -> Iterator[str]:
    """Say where a scalar has another type, may be null in one only, or must be there and is not
    required.
    """
    if fact["required"] and not is_required and "default" not in schema:
        yield f"require {name}"
    yaml: Any = YAML(typ="safe")
    derived: Any = yaml.load(schema_of(fact["type"]))
    ours, theirs = _types(schema), _types(derived)
    if ours and theirs and ours - {"null"} != theirs - {"null"}:
        yield f"change the type of {name}: {sorted(ours)} -> {sorted(theirs)}"
    if ours and theirs and "null" in theirs - ours:
        yield f"allow null in {name}"


def _compare_choices(name: str, fact: Facts, schema: Any, schemas: Any) -> Iterator[str]:
    """Say where a field that takes listed values takes others."""
    theirs = set(literal_values(_bare(ast.parse(fact["type"], mode="eval").body)))
    named = schemas.get(schema.get("$ref", "").rpartition("/")[2], schema)
    ours = {str(value) for value in named.get("enum", [named["const"]] if "const" in named else ())}
    if theirs and ours and theirs != ours:
        yield f"change the values of {name}: {sorted(ours)} -> {sorted(theirs)}"


def _bare(node: ast.expr) -> ast.expr:
    """Return an annotation without its `Optional`."""
    is_optional = isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Optional")
    return node.slice if isinstance(node, ast.Subscript) and is_optional else node


def _types(schema: Any) -> set[str]:
    """Return the JSON types of a scalar, an empty set for any other schema."""
    types = schema.get("type", ())
    listed = {types} if isinstance(types, str) else set(types)
    return listed if listed <= {"string", "integer", "number", "boolean", "null"} else set()


def _missing_paths(document: Any, facts: Facts) -> list[str]:
    known = {
        f"{method.upper()} {re.sub(r'{[^}]*}', '{}', path)}"
        for path, item in document["paths"].items()
        for method in item
    }
    return [path for path in facts["paths"] if path not in known]


def _compare_values(schemas: Any, facts: Facts, known: Any) -> Iterator[str]:
    for name, values in sorted(facts["values"].items()):
        listed = schemas.get(name, {}).get("enum")
        if listed is None or name in known["values"]:
            continue
        yield from (f"add value {name}: {value}" for value in values if value not in listed)
        yield from (
            f"is {name} {value!r} still known? {facts['version']} does not have it"
            for value in listed
            if value not in values
        )


# ------------------------------------------------------------------------------------ YAML to paste


def _yaml_of(name: str, fields: Facts) -> str:
    required = [field for field, fact in fields.items() if fact["required"]]
    lines = [f"    {name}:", "      type: object"]
    lines += [f"      required: [{', '.join(required)}]"] if required else []
    lines += [
        "      properties:",
        *(f"        {field}: {schema_of(fact['type'])}" for field, fact in fields.items()),
    ]
    return "\n" + "\n".join(lines)


def _yaml_of_field(name: str, fact: Facts) -> str:
    return f"\n        {name}: {schema_of(fact['type'])}"


def schema_of(annotation: str) -> str:
    """Return a schema in flow style for an annotation; any value where it does not say one."""
    return _schema(ast.parse(annotation, mode="eval").body)


def _schema(node: ast.expr) -> str:
    if isinstance(node, ast.BinOp):
        return _either(_parts(node))
    if isinstance(node, ast.Subscript):
        return _generic(ast.unparse(node.value).rsplit(".", 1)[-1], node)
    name = ast.unparse(node).strip("'\"").rsplit(".", 1)[-1]
    if name in _SCALARS:
        return f"{{type: {_SCALARS[name]}}}"
    return (
        f"{{$ref: '#/components/schemas/{name}'}}" if name[:1].isupper() and name != "Any" else _ANY
    )


def _generic(kind: str, node: ast.Subscript) -> str:
    arguments = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    if kind in ("Optional", "Union"):
        return _either([*arguments, ast.Constant(None)] if kind == "Optional" else arguments)
    if kind in ("List", "list", "Sequence", "tuple", "Tuple"):
        return f"{{type: array, items: {_schema(arguments[0])}}}"
    if kind in ("Dict", "dict", "Mapping"):
        return f"{{type: object, additionalProperties: {_schema(arguments[1])}}}"
    if values := literal_values(node):
        return (
            f"{{type: string, const: {values[0]}}}"
            if len(values) == 1
            else f"{{type: string, enum: [{', '.join(values)}]}}"
        )
    return _schema(arguments[0]) if kind in ("Annotated", "Required", "NotRequired") else _ANY


def _parts(node: ast.expr) -> list[ast.expr]:
    return [*_parts(node.left), *_parts(node.right)] if isinstance(node, ast.BinOp) else [node]


def _either(parts: list[ast.expr]) -> str:
    some = [
        _schema(part)
        for part in parts
        if not (isinstance(part, ast.Constant) and part.value is None)
    ]
    if len(some) > 1:
        return f"{{oneOf: [{', '.join(some)}]}}"
    if len(some) == len(parts):
        return some[0]
    scalar = re.fullmatch(r"\{type: (\w+)(.*)\}", some[0])
    return (
        f"{{type: [{scalar[1]}, 'null']{scalar[2]}}}"
        if scalar
        else f"{{oneOf: [{some[0]}, {{type: 'null'}}]}}"
    )
