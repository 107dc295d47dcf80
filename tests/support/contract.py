"""openapi.yaml as a judge of exchanges: which operation is this, and does what was sent and
answered fit it?

Stricter than the document where it lists what it knows: a field that it does not have is a fault
here, and so is a status outside its list below 400. Validators are compiled once for each schema
and reading. Not thread-safe while compiling.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl

import jsonschema_rs
import yaml

ROOT = Path(__file__).resolve().parents[2]
JSON = "application/json"
EVENTS = "text/event-stream"

#: How a schema is read. `sent`: by a client of today, with every default and no needless null.
#: `taken`: by any client since 2025, which leaves out defaults and tags and sends nulls.
#: `answered`: by a server, with listed enum values only.
Reading = Literal["sent", "taken", "answered"]
#: Keywords whose values are no schemas of the contract: values, and conditions on values.
AS_IT_IS = frozenset({"const", "enum", "default", "required", "if"})
NULL = {"type": "null"}
#: What parses a protobuf body, by the name of the message; raises ValueError.
Parsers = Mapping[str, Callable[[bytes], object]]


class Fault(AssertionError):
    """An exchange does not fit the contract."""


class Operation:
    """One operation of the document with its references resolved."""

    def __init__(self, contract: Contract, method: str, path: str, node: dict[str, Any]) -> None:
        self.contract = contract
        self.method = method.upper()
        self.path = path
        self.node = node
        self.id: str = node["operationId"]
        self.parameters = [contract.resolved(item) for item in node.get("parameters", ())]
        self.result: str | None = schema_name(node["x-result"]) if "x-result" in node else None
        self._path = re.compile("/".join(map(self._segment, path.split("/"))))

    def _segment(self, segment: str) -> str:
        """A path parameter is one segment, but for those whose pattern has a `/`."""
        if not segment.startswith("{"):
            return re.escape(segment)
        name = segment[1:-1]
        (schema,) = [
            item["schema"]
            for item in self.parameters
            if (item["in"], item["name"]) == ("path", name)
        ]
        return f"(?P<{name}>{'.+' if '/' in schema.get('pattern', '') else '[^/]+'})"

    def match(self, path: str) -> re.Match[str] | None:
        return self._path.fullmatch(path)

    def response(self, status: int) -> dict[str, Any]:
        """Return the document's response for a status; `default` covers errors only."""
        responses = self.node["responses"]
        key = str(status) if str(status) in responses else "default"
        if key not in responses or (key == "default" and status < 400):
            raise Fault(f"{self.id}: status {status} is not in the contract")
        return self.contract.resolved(responses[key])

    def __repr__(self) -> str:
        return f"{self.id} ({self.method} {self.path})"


class Contract:
    """The document, with its operations and its compiled schemas."""

    def __init__(self, document: dict[str, Any], parsers: Parsers | None = None) -> None:
        self.document = document
        self.parsers = dict(parsers or {})
        self.operations = {
            node["operationId"]: Operation(self, method, path, node)
            for path, item in document["paths"].items()
            for method, node in item.items()
        }
        self._by_path = sorted(
            self.operations.values(),
            key=lambda operation: literal_segments(operation.path),
            reverse=True,
        )
        self._validators: dict[tuple[str, str], jsonschema_rs.Draft202012Validator] = {}
        self._schemas: dict[str, dict[str, Any]] = {}

    @property
    def assumed(self) -> set[str]:
        """The ids of the operations that are assumed, not recorded."""
        return {
            one.id
            for one in self.operations.values()
            if one.node.get("x-evidence", "").startswith("assumed")
        }

    def resolved(self, node: dict[str, Any]) -> dict[str, Any]:
        """Return the node, or the component that it refers to."""
        if "$ref" not in node:
            return node
        value: Any = self.document
        for key in node["$ref"].removeprefix("#/").split("/"):
            value = value[key]
        return value

    def find(self, method: str, path: str) -> Operation:
        """Return the operation at a path under the base URL; Fault when there is none."""
        for operation in self._by_path:
            if operation.method == method.upper() and operation.match(path):
                return operation
        raise Fault(f"{method} {path} is not in the contract")

    def check_request(
        self,
        method: str,
        path: str,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
        reading: Reading = "sent",
    ) -> Operation:
        """Return the operation of a request that fits, its body uncompressed; else Fault."""
        operation = self.find(method, path)
        lower = {name.lower(): value for name, value in (headers or {}).items()}
        self._check_credential(operation, lower)
        self._check_parameters(operation, path, query, lower, reading)
        body = operation.node.get("requestBody")
        if body is None:
            if content:
                raise Fault(f"{operation.id}: a body where none is expected")
        else:
            self._check_content(operation.id, body["content"], lower, content, reading)
        return operation

    def check_response(
        self,
        operation: Operation,
        status: int,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
        result: str | None = None,
    ) -> None:
        """Fault when a response does not fit, or is not the future's `result` type."""
        where = f"{operation.id} {status}"
        response = operation.response(status)
        lower = {name.lower(): value for name, value in (headers or {}).items()}
        self._check_headers(where, response.get("headers", {}), lower)
        if not content and (status >= 400 or "content" not in response):
            return
        if "content" not in response:
            raise Fault(f"{where}: a body where none is expected")
        value = self._check_content(where, response["content"], lower, content, "answered", result)
        if result is not None and value is not None and status == 200 and is_result(value):
            self.check_value(result, value, "answered", where)

    def check_value(self, schema: str, value: object, reading: Reading, where: str = "") -> None:
        """Fault when a JSON value does not fit a named schema."""
        self._check({"$ref": f"#/components/schemas/{schema}"}, value, reading, where or schema)

    # --------------------------------------------------------------------------- parts of a message

    def _check_credential(self, operation: Operation, headers: Mapping[str, str]) -> None:
        needed = operation.node.get("security", self.document["security"])
        for name in (name for requirement in needed for name in requirement):
            header = self.document["components"]["securitySchemes"][name]["name"]
            if header.lower() not in headers:
                raise Fault(f"{operation.id}: the header {header} is missing")

    def _check_parameters(
        self,
        operation: Operation,
        path: str,
        query: str,
        headers: Mapping[str, str],
        reading: Reading,
    ) -> None:
        match = operation.match(path)
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
        given = {
            "path": match.groupdict() if match else {},
            "query": dict(pairs),
            "header": headers,
        }
        known = {item["name"] for item in operation.parameters if item["in"] == "query"}
        if unknown := given["query"].keys() - known:
            raise Fault(f"{operation.id}: the query has no {', '.join(sorted(unknown))}")
        for item in operation.parameters:
            name = item["name"].lower() if item["in"] == "header" else item["name"]
            values = given[item["in"]]
            if name in values:
                self._check_text(
                    f"{operation.id} {item['in']} {name}", item["schema"], values[name], reading
                )
            elif item.get("required") or (reading == "sent" and "default" in item["schema"]):
                raise Fault(f"{operation.id}: {item['in']} {name} is missing")

    def _check_headers(
        self, where: str, declared: Mapping[str, Any], headers: Mapping[str, str]
    ) -> None:
        for name, reference in declared.items():
            header = self.resolved(reference)
            if name.lower() in headers:
                self._check_text(
                    f"{where} {name}", header["schema"], headers[name.lower()], "answered"
                )
            elif header.get("required"):
                raise Fault(f"{where}: the header {name} is missing")

    def _check_text(self, where: str, schema: dict[str, Any], text: str, reading: Reading) -> None:
        kind = self.resolved(schema).get("type")
        value: object = text
        if kind in ("integer", "number", "boolean"):
            try:
                value = json.loads(text)
            except ValueError as error:
                raise Fault(f"{where}: {text!r} is no {kind}") from error
        self._check(schema, value, reading, where)

    def _check_content(
        self,
        where: str,
        declared: Mapping[str, Any],
        headers: Mapping[str, str],
        content: bytes,
        reading: Reading,
        result: str | None = None,
    ) -> object:
        """Return the JSON value of a body that fits, or None for a body in another form."""
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type not in declared:
            raise Fault(
                f"{where}: a body as {media_type or 'nothing'}, not as {' or '.join(declared)}"
            )
        if media_type == EVENTS:
            data = declared[EVENTS]["schema"]["properties"]["data"]
            self._check_events(where, data["contentSchema"], content, reading)
            return None
        if media_type != JSON:
            self._parse(
                where, declared[media_type]["x-protobuf-message"].split(" or "), content, result
            )
            return None
        try:
            value: object = json.loads(content)
        except ValueError as error:
            raise Fault(f"{where}: not JSON: {error}") from error
        self._check(declared[JSON]["schema"], value, reading, where)
        return value

    def _check_events(
        self, where: str, schema: dict[str, Any], content: bytes, reading: Reading
    ) -> None:
        """Check that each event's data fits; our server sends each in one line."""
        for line in content.decode().splitlines():
            if line and not line.startswith(":"):
                if not line.startswith("data: "):
                    raise Fault(f"{where}: not a line of an event: {line[:100]}")
                self._check(schema, json.loads(line.removeprefix("data: ")), reading, where)

    def _parse(self, where: str, messages: list[str], content: bytes, result: str | None) -> None:
        """Parse a protobuf body as the one message that is due, if there is a parser."""
        due = [name for name in messages if result in (None, name.rpartition(".")[2])]
        if not due:
            raise Fault(f"{where}: protobuf where {result} is promised")
        if len(due) == 1 and due[0] in self.parsers:
            try:
                self.parsers[due[0]](content)
            except ValueError as error:
                raise Fault(f"{where}: not a {due[0]}: {error}") from error

    # -------------------------------------------------------------------------------------- schemas

    def _check(self, schema: dict[str, Any], value: object, reading: Reading, where: str) -> None:
        errors = list(self._validator(schema, reading).iter_errors(value))
        if errors:
            told = "; ".join(
                f"{'/'.join(map(str, error.instance_path)) or 'body'}: {error.message}"
                for error in errors[:3]
            )
            raise Fault(f"{where}: {told[:2000]}")

    def _validator(
        self, schema: dict[str, Any], reading: Reading
    ) -> jsonschema_rs.Draft202012Validator:
        key = json.dumps(schema, sort_keys=True), reading
        if key not in self._validators:
            if reading not in self._schemas:
                schemas = self.document["components"]["schemas"]
                self._schemas[reading] = {
                    name: read_as(node, reading) for name, node in schemas.items()
                }
            root = {**read_as(schema, reading), "components": {"schemas": self._schemas[reading]}}
            self._validators[key] = jsonschema_rs.Draft202012Validator(root, validate_formats=True)
        return self._validators[key]


def literal_segments(path: str) -> int:
    """How exactly a path template names its operation."""
    return sum(not segment.startswith("{") for segment in path.split("/"))


def is_result(answer: object) -> bool:
    """Whether what `retrieve_future` answers in JSON is the result itself."""
    if not isinstance(answer, dict):
        return True
    return not (
        "error" in answer
        or answer.get("type") == "try_again"
        or answer.get("status") == "complete_metadata"
    )


def schema_name(reference: Mapping[str, Any]) -> str:
    """Return the name of the schema that a reference names."""
    return reference["$ref"].rpartition("/")[2]


def read_as(schema: Any, reading: Reading) -> Any:
    """Return a schema of the document as plain JSON Schema, as strict as the reading asks for."""
    if isinstance(schema, list):
        return [read_as(item, reading) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "discriminator" in schema:
        return union_as(schema, reading)
    if reading != "answered" and "x-open-enum" in schema:
        return {key: value for key, value in schema.items() if key != "enum"}
    if NULL in schema.get("oneOf", ()):
        (other,) = [item for item in schema["oneOf"] if item != NULL]
        # names the misfit, where oneOf only reports that no alternative fits
        return {"if": NULL, "else": other}
    plain = {key: schema[key] for key in schema.keys() & AS_IT_IS}
    read = {
        key: read_as(value, reading)
        for key, value in schema.items()
        if key not in AS_IT_IS | {"properties", "examples"}
    }
    return plain | read | (record_as(schema, reading) if "properties" in schema else {})


def record_as(schema: dict[str, Any], reading: Reading) -> dict[str, Any]:
    """Fields of a record, which has no others; today's clients send every default."""
    properties = {name: read_as(value, reading) for name, value in schema["properties"].items()}
    required = set(schema.get("required", ()))
    always = {
        name
        for name, value in schema["properties"].items()
        if "default" in value or "const" in value
    }
    constants = {name for name, value in schema["properties"].items() if "const" in value}
    if reading == "sent":
        properties = {
            name: value if name in required else without_null(value)
            for name, value in properties.items()
        }
        required |= always
    if reading == "taken":
        required -= constants
    return {"properties": properties, "required": sorted(required), "additionalProperties": False}


def without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema for a value that is not null."""
    if isinstance(schema.get("type"), list):
        return {**schema, "type": [kind for kind in schema["type"] if kind != "null"]}
    return schema["else"] if schema.get("if") == NULL else schema


def union_as(schema: dict[str, Any], reading: Reading) -> dict[str, Any]:
    """Return a tagged union by its tag; old clients send none, and servers no unknown one."""
    tag, mapping = schema["discriminator"]["propertyName"], schema["discriminator"]["mapping"]
    if reading == "taken" and "x-open-union" not in schema:
        return {"oneOf": schema["oneOf"]}
    known = {} if "x-open-union" in schema and reading != "answered" else {"enum": list(mapping)}
    return {
        "type": "object",
        "required": [tag],
        "properties": {tag: {"type": "string", **known}},
        "allOf": [
            {"if": {"properties": {tag: {"const": name}}}, "then": {"$ref": target}}
            for name, target in mapping.items()
        ],
    }


def load(path: Path = ROOT / "openapi.yaml") -> dict[str, Any]:
    """Return the document as plain values; libyaml is ten times as fast as codegen."""
    document: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return document


@cache
def the_contract() -> Contract:
    """Return this repository's contract, read once, without parsers of protobuf."""
    return Contract(load())
