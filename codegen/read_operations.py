"""Turns `paths` into what the operation templates write: one function and one table row per operation."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable
from dataclasses import dataclass

from document import (
    MEDIA_TYPE,
    METHODS,
    OPERATION,
    PARAMETER,
    PATH_ITEM,
    REQUEST_BODY,
    RESPONSE,
    Node,
    Refused,
    component,
    is_list,
    is_mapping,
)
from python_defaults import source_of
from python_types import annotate, types_of
from read_schemas import doc_of

JSON = "application/json"
#: Names that a generated function uses itself; a parameter of that name would shadow them.
TAKEN = frozenset({"body", "expected", "models", "datetime", "Request", "Binary", "Sequence", "T"})

PythonName = Callable[[str], str]


@dataclass(frozen=True)
class Parameter:
    name: str
    python_name: str
    location: str
    annotation: str
    doc: str
    required: bool
    default: str | None = None

    @property
    def declaration(self) -> str:
        if self.required:
            return f"{self.python_name}: {self.annotation}"
        if self.default is not None:
            return f"{self.python_name}: {self.annotation} = {self.default}"
        return f"{self.python_name}: {self.annotation} | None = None"

    @property
    def pair(self) -> str:
        return f"({self.name!r}, {self.python_name})"


@dataclass(frozen=True)
class Operation:
    operation_id: str
    tag: str
    method: str
    path: str
    summary: str
    description: str
    parameters: list[Parameter]
    body: str | None
    reply: str | None
    expected: bool
    result: str | None
    request_media_types: tuple[str, ...]
    response_media_types: tuple[str, ...]
    optional: bool
    deprecated: bool

    @property
    def arguments(self) -> list[str]:
        """The signature: the body by position, everything else by name."""
        body = [f"body: models.{self.body}{' | Binary' if self.binary else ''}"] if self.body else []
        named = ["expected: type[T]"] if self.expected else []
        named += [parameter.declaration for parameter in self.parameters]
        return [*body, *(["*", *named] if named else [])]

    @property
    def answer(self) -> str:
        """The type of the reply."""
        return "T" if self.expected else f"models.{self.reply}" if self.reply else "None"

    @property
    def binary(self) -> bool:
        return any(name != JSON for name in self.request_media_types)

    @property
    def accepts(self) -> tuple[str, ...]:
        return self.response_media_types or (JSON,)

    @property
    def path_source(self) -> str:
        """The path as a Python expression that inserts checked values."""
        if "{" not in self.path:
            return repr(self.path)
        names = {parameter.name: parameter.python_name for parameter in self.located("path")}
        return 'f"' + re.sub(r"{(\w+)}", lambda match: f"{{path_value({match[1]!r}, {names[match[1]]})}}", self.path) + '"'

    def located(self, location: str) -> list[Parameter]:
        return [parameter for parameter in self.parameters if parameter.location == location]


def read_operations(root: Node, python_name: PythonName, refusals: list[Refused]) -> list[Operation]:
    """Read every operation of the document, in its order."""
    operations: list[Operation] = []
    seen: dict[str, str] = {}
    for path, item in root["paths"].items():
        try:
            item.only(PATH_ITEM, "a path")
            check_path(path, item)
        except Refused as refused:
            refusals.append(refused)
            continue
        for method in (name for name in item.mapping() if name in METHODS):
            try:
                operations.append(read_operation(path, method, item, python_name, seen))
            except Refused as refused:
                refusals.append(refused)
    return operations


def check_path(path: str, item: Node) -> None:
    if not re.fullmatch(r"(/([A-Za-z0-9_.-]+|{[a-z][a-z0-9_]*}))+", path):
        raise item.refused("a path is made of plain segments and whole-segment {parameters}")


def read_operation(path: str, method: str, item: Node, python_name: PythonName, seen: dict[str, str]) -> Operation:
    node = item[method]
    node.only(OPERATION, "an operation")
    operation_id = read_operation_id(node, python_name, seen)
    parameters = read_parameters(path, item, node, python_name)
    body, request_media_types = read_body(node)
    reply, response_media_types = read_reply(node)
    expected = reads_expected(node)
    return Operation(
        operation_id=operation_id,
        tag=read_tag(node, python_name),
        method=method.upper(),
        path=path,
        summary=node.text("summary"),
        description=node.text("description"),
        parameters=parameters,
        body=body,
        reply=record_name(node, reply) if reply and not expected else None,
        expected=expected,
        result=read_result(node),
        request_media_types=request_media_types,
        response_media_types=response_media_types,
        optional=node.flag("x-optional"),
        deprecated=node.flag("deprecated"),
    )


def read_operation_id(node: Node, python_name: PythonName, seen: dict[str, str]) -> str:
    operation_id = node.get("operationId")
    if not isinstance(operation_id, str):
        raise node.refused("operationId is missing")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", operation_id) or python_name(operation_id) != operation_id:
        raise node["operationId"].refused(f"{operation_id!r} cannot be a function name; use snake_case")
    if operation_id in seen:
        raise node["operationId"].refused(f"{operation_id!r} is already the operation at {seen[operation_id]}")
    seen[operation_id] = node.pointer
    return operation_id


def read_tag(node: Node, python_name: PythonName) -> str:
    tags = node.get("tags")
    if not is_list(tags) or len(tags) != 1 or not isinstance(tags[0], str):
        raise node.refused("exactly one tag is needed: it names the module")
    tag = tags[0]
    if tag not in [declared.get("name") for declared in node.root["tags"]]:
        raise node["tags"].refused(f"{tag!r} is not declared in the tags of the document")
    if python_name(tag) != tag:
        raise node["tags"].refused(f"{tag!r} cannot be a module name; use snake_case")
    return tag


def reads_expected(node: Node) -> bool:
    if node.get("x-reply", "expected") != "expected":
        raise node["x-reply"].refused("only `expected` is understood")
    return "x-reply" in node


def read_result(node: Node) -> str | None:
    """The record that the future of a submitted request promises."""
    if "x-result" not in node:
        return None
    node["x-result"].only(frozenset({"$ref"}), "a result")
    return record_name(node["x-result"], node["x-result"].ref_name("schemas"))


def record_name(node: Node, name: str) -> str:
    """A body or reply must be a record: only a class can be the expected type of an exchange."""
    if "properties" not in component(node, "schemas", name):
        raise node.refused(f"{name} is not a record, so it cannot be a whole body; wrap it")
    return name


# ---------------------------------------------------------------------------------------------- parameters


def read_parameters(path: str, item: Node, node: Node, python_name: PythonName) -> list[Parameter]:
    nodes = [parameter for owner in (item, node) if "parameters" in owner for parameter in owner["parameters"].elements()]
    parameters = [read_parameter(parameter.resolved("parameters"), python_name) for parameter in nodes]
    check_unique(node, parameters)
    declared = [parameter.name for parameter in parameters if parameter.location == "path"]
    in_path = re.findall(r"{(\w+)}", path)
    if sorted(declared) != sorted(in_path):
        raise node.refused(f"the path has the parameters {in_path}, the operation declares {declared}")
    return parameters


def check_unique(node: Node, parameters: list[Parameter]) -> None:
    names = [parameter.python_name for parameter in parameters]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise node.refused(f"two parameters become {', '.join(doubled)}")


def read_parameter(node: Node, python_name: PythonName) -> Parameter:
    node.only(PARAMETER, "a parameter")
    location, name = node.get("in"), node.get("name")
    if location not in ("path", "query", "header") or not isinstance(name, str):
        raise node.refused("a parameter needs a name and stands in path, query or header")
    required = node.flag("required")
    if location == "path" and not required:
        raise node.refused("a path parameter needs `required: true`")
    return Parameter(
        name=name,
        python_name=parameter_name(node, python_name(name)),
        location=location,
        annotation=parameter_type(node, location),
        doc=doc_of(node),
        required=required,
        default=parameter_default(node, required),
    )


def parameter_name(node: Node, name: str) -> str:
    if name in TAKEN or keyword.iskeyword(name) or not name.isidentifier():
        raise node["name"].refused(f"{name!r} cannot be a parameter of a generated function")
    return name


def parameter_type(node: Node, location: str) -> str:
    if "schema" not in node:
        raise node.refused("a parameter needs a schema")
    schema = node["schema"]
    if "const" in schema.mapping():
        raise schema.refused("a constant parameter; use a string with one documented value")
    check_serialization(node, schema, location)
    annotation = annotate(schema, sequences=True, scope="models.")
    if location == "path" and annotation not in ("str", "int") and not annotation.startswith("models."):
        raise schema.refused("a path parameter is a string, an integer or an enum")
    if "null" in types_of(schema) or "object" in types_of(schema) or "bytes" in annotation or "tuple[" in annotation:
        raise schema.refused("not a type that a parameter can carry")
    return annotation


def check_serialization(node: Node, schema: Node, location: str) -> None:
    """Lists are comma-joined in a query and nowhere else; every other value has one spelling."""
    styles = {"path": "simple", "query": "form", "header": "simple"}
    if node.get("style", styles[location]) != styles[location]:
        raise node["style"].refused(f"only {styles[location]!r} is understood")
    if "array" not in types_of(schema):
        if "$ref" in schema and "enum" not in component(schema, "schemas", schema.ref_name("schemas")):
            raise schema.refused("only an enum may be referred to here")
        return
    if location != "query" or node.get("explode") is not False:
        raise node.refused("a list parameter stands in a query and says `explode: false`: it is sent comma-joined")


def parameter_default(node: Node, required: bool) -> str | None:
    schema = node["schema"]
    if "default" not in schema:
        return None
    if required:
        raise schema["default"].refused("a required parameter has no default")
    if is_list(schema.get("default")) or is_mapping(schema.get("default")):
        raise schema["default"].refused("only a scalar default is understood")
    return source_of(schema["default"], schema)


# ---------------------------------------------------------------------------------------------- bodies


def read_body(node: Node) -> tuple[str | None, tuple[str, ...]]:
    """The record that a request carries and the media types it may take."""
    if "requestBody" not in node:
        return None, ()
    body = node["requestBody"].resolved("requestBodies")
    body.only(REQUEST_BODY, "a request body")
    if not body.flag("required"):
        raise body.refused("a request body needs `required: true`")
    name, media_types = read_content(body["content"])
    if name is None:
        raise body["content"].refused(f"a request body needs {JSON}")
    return record_name(body, name), media_types


def read_content(content: Node) -> tuple[str | None, tuple[str, ...]]:
    """The schema of the JSON form, if there is one, and all media types in the order of the document."""
    name: str | None = None
    media_types: list[str] = []
    for media_type, media in content.items():
        media.only(MEDIA_TYPE, "a media type")
        if "schema" not in media:
            raise media.refused("a schema is missing")
        if media_type == JSON:
            name = json_schema(media["schema"])
        elif media["schema"].value != {"type": "string", "format": "binary"}:
            raise media["schema"].refused("a media type other than JSON needs {type: string, format: binary}")
        media_types.append(media_type)
    return name, tuple(media_types)


def json_schema(schema: Node) -> str:
    if "$ref" not in schema.mapping():
        raise schema.refused("an unnamed body; name it in components.schemas and refer to it")
    schema.only(frozenset({"$ref"}), "a body")
    return schema.ref_name("schemas")


def read_reply(node: Node) -> tuple[str | None, tuple[str, ...]]:
    """The record of the one 2xx answer and its media types; the other answers are checked and not generated."""
    if "responses" not in node:
        raise node.refused("responses are missing")
    replies: list[tuple[str | None, tuple[str, ...]]] = []
    for status, response in node["responses"].items():
        read = read_response(status, response)
        if status.startswith("2"):
            replies.append(read)
    if len(replies) != 1:
        raise node["responses"].refused(f"exactly one 2xx answer is needed, here are {len(replies)}")
    return replies[0]


def read_response(status: str, node: Node) -> tuple[str | None, tuple[str, ...]]:
    if not re.fullmatch(r"[2345][0-9]{2}|default", status):
        raise node.refused(f"{status!r} is neither a status nor `default`")
    response = node.resolved("responses")
    response.only(RESPONSE, "a response")
    if "content" not in response:
        return None, ()
    name, media_types = read_content(response["content"])
    if name is None:
        raise response["content"].refused(f"an answer with a body needs {JSON}")
    return name, media_types
