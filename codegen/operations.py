"""Turn `paths` into the input of the operation templates: one function and one table row per
operation.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable
from dataclasses import dataclass

from codegen.document import (
    MEDIA_TYPE,
    METHODS,
    MULTIPART,
    OPERATION,
    PARAMETER,
    PATH_ITEM,
    REQUEST_BODY,
    RESPONSE,
    DocumentNode,
    Refusal,
    component,
    is_list,
    is_mapping,
)
from codegen.python_defaults import source_of
from codegen.python_types import annotate, types_of
from codegen.schemas import doc_of
from codegen.security import check_security

JSON = "application/json"
#: Its schema is the record in the data of each event.
EVENTS = "text/event-stream"
#: Names that a generated function uses itself; a parameter of that name would shadow them.
TAKEN = frozenset(
    {"body", "expected", "models", "datetime", "Request", "Binary", "Sequence", "T", "form_body"}
)

#: Names that a module of generated functions imports; a function of that name would shadow them.
TAKEN_FUNCTIONS = frozenset(
    {"models", "datetime", "msgspec", "form_body", "header_values", "path_value", "query_string"}
)

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
class OperationSpec:
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
    #: The methods of clients that call it, as users know them: `RestClient.get_sampler`.
    client_methods: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """Return the signature: the body by position, everything else by name."""
        kinds = [f"models.{self.body}"] * (self.body is not None) + ["Binary"] * self.binary
        body = [f"body: {' | '.join(kinds)}"] if kinds else []
        named = ["expected: type[T]"] if self.expected else []
        named += [parameter.declaration for parameter in self.parameters]
        return [*body, *(["*", *named] if named else [])]

    @property
    def answer(self) -> str:
        """Return the type of the reply."""
        if self.expected:
            return "T"
        return (
            f"models.{self.reply}"
            if self.reply
            else "bytes"
            if self.response_media_types
            else "None"
        )

    @property
    def multipart(self) -> bool:
        return MULTIPART in self.request_media_types

    @property
    def binary(self) -> bool:
        return any(name not in (JSON, MULTIPART) for name in self.request_media_types)

    @property
    def accepts(self) -> tuple[str, ...]:
        return self.response_media_types or (JSON,)

    @property
    def path_source(self) -> str:
        """Return the path as a Python expression that inserts checked values."""
        if "{" not in self.path:
            return repr(self.path)
        names = {parameter.name: parameter.python_name for parameter in self.parameters_in("path")}
        return (
            'f"'
            + re.sub(
                r"{(\w+)}",
                lambda match: f"{{path_value({match[1]!r}, {names[match[1]]})}}",
                self.path,
            )
            + '"'
        )

    def parameters_in(self, location: str) -> list[Parameter]:
        return [parameter for parameter in self.parameters if parameter.location == location]


def read_operations(
    root: DocumentNode, python_name: PythonName, refusals: list[Refusal]
) -> list[OperationSpec]:
    """Read every operation of the document, in its order."""
    operations: list[OperationSpec] = []
    seen: dict[str, str] = {}
    for path, item in root["paths"].items():
        try:
            item.only(PATH_ITEM, "a path")
            check_path(path, item)
        except Refusal as refusal:
            refusals.append(refusal)
            continue
        for method in (name for name in item.mapping() if name in METHODS):
            try:
                operations.append(read_operation(path, method, item, python_name, seen))
            except Refusal as refusal:
                refusals.append(refusal)
    return operations


def check_path(path: str, item: DocumentNode) -> None:
    if not re.fullmatch(r"(/([A-Za-z0-9_.-]+|{[a-z][a-z0-9_]*}))+", path):
        raise item.refusal("a path is made of plain segments and whole-segment {parameters}")


def read_operation(
    path: str, method: str, item: DocumentNode, python_name: PythonName, seen: dict[str, str]
) -> OperationSpec:
    node = item[method]
    node.only(OPERATION, "an operation")
    operation_id = read_operation_id(node, python_name, seen)
    check_security(node)
    parameters = read_parameters(path, item, node, python_name)
    body, request_media_types = read_body(node)
    reply, response_media_types = read_reply(node)
    expected = is_reply_expected(node)
    return OperationSpec(
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
        client_methods=read_client_method_names(node),
    )


def read_client_method_names(node: DocumentNode) -> tuple[str, ...]:
    generated = node["x-client"].elements() if "x-client" in node else []
    written = node["x-methods"].elements() if "x-methods" in node else []
    names = [
        f"{method.text('client').capitalize()}Client.{method.text('name')}" for method in generated
    ]
    return (*names, *(str(name.value) for name in written))


def read_operation_id(node: DocumentNode, python_name: PythonName, seen: dict[str, str]) -> str:
    operation_id = node.get("operationId")
    if not isinstance(operation_id, str):
        raise node.refusal("operationId is missing")
    if (
        not re.fullmatch(r"[a-z][a-z0-9_]*", operation_id)
        or python_name(operation_id) != operation_id
    ):
        raise node["operationId"].refusal(
            f"{operation_id!r} cannot be a function name; use snake_case"
        )
    if operation_id in TAKEN_FUNCTIONS:
        raise node["operationId"].refusal(
            f"{operation_id!r} is a name that the generated module uses itself"
        )
    if operation_id in seen:
        raise node["operationId"].refusal(
            f"{operation_id!r} is already the operation at {seen[operation_id]}"
        )
    seen[operation_id] = node.pointer
    return operation_id


def read_tag(node: DocumentNode, python_name: PythonName) -> str:
    tags = node.get("tags")
    if not is_list(tags) or len(tags) != 1 or not isinstance(tags[0], str):
        raise node.refusal("exactly one tag is needed: it names the module")
    tag = tags[0]
    if tag not in [declared.get("name") for declared in node.root["tags"]]:
        raise node["tags"].refusal(f"{tag!r} is not declared in the tags of the document")
    if python_name(tag) != tag:
        raise node["tags"].refusal(f"{tag!r} cannot be a module name; use snake_case")
    return tag


def is_reply_expected(node: DocumentNode) -> bool:
    if node.get("x-reply", "expected") != "expected":
        raise node["x-reply"].refusal("only `expected` is understood")
    return "x-reply" in node


def read_result(node: DocumentNode) -> str | None:
    """Return the record that the future of a submitted request promises."""
    if "x-result" not in node:
        return None
    node["x-result"].only(frozenset({"$ref"}), "a result")
    return record_name(node["x-result"], node["x-result"].ref_name("schemas"))


def record_name(node: DocumentNode, name: str) -> str:
    """Check that a body or reply is a record: only a class can be the expected type
    of an exchange.
    """
    if "properties" not in component(node, "schemas", name):
        raise node.refusal(f"{name} is not a record, so it cannot be a whole body; wrap it")
    return name


# --------------------------------------------------------------------------------------- parameters


def read_parameters(
    path: str, item: DocumentNode, node: DocumentNode, python_name: PythonName
) -> list[Parameter]:
    nodes = [
        parameter
        for owner in (item, node)
        if "parameters" in owner
        for parameter in owner["parameters"].elements()
    ]
    parameters = [
        read_parameter(parameter.resolve("parameters"), python_name) for parameter in nodes
    ]
    check_unique(node, parameters)
    declared = [parameter.name for parameter in parameters if parameter.location == "path"]
    in_path = re.findall(r"{(\w+)}", path)
    if sorted(declared) != sorted(in_path):
        raise node.refusal(
            f"the path has the parameters {in_path}, the operation declares {declared}"
        )
    return parameters


def check_unique(node: DocumentNode, parameters: list[Parameter]) -> None:
    names = [parameter.python_name for parameter in parameters]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise node.refusal(f"two parameters become {', '.join(doubled)}")


def read_parameter(node: DocumentNode, python_name: PythonName) -> Parameter:
    node.only(PARAMETER, "a parameter")
    location, name = node.get("in"), node.get("name")
    if location not in ("path", "query", "header") or not isinstance(name, str):
        raise node.refusal("a parameter needs a name and stands in path, query or header")
    required = node.flag("required")
    if location == "path" and not required:
        raise node.refusal("a path parameter needs `required: true`")
    return Parameter(
        name=name,
        python_name=parameter_name(node, python_name(name)),
        location=location,
        annotation=parameter_type(node, location),
        doc=doc_of(node),
        required=required,
        default=parameter_default(node, required),
    )


def parameter_name(node: DocumentNode, name: str) -> str:
    if name in TAKEN or keyword.iskeyword(name) or not name.isidentifier():
        raise node["name"].refusal(f"{name!r} cannot be a parameter of a generated function")
    return name


def parameter_type(node: DocumentNode, location: str) -> str:
    if "schema" not in node:
        raise node.refusal("a parameter needs a schema")
    schema = node["schema"]
    if "const" in schema.mapping():
        raise schema.refusal("a constant parameter; use a string with one documented value")
    check_serialization(node, schema, location)
    annotation = annotate(schema, sequences=True, scope="models.")
    if (
        location == "path"
        and annotation not in ("str", "int")
        and not annotation.startswith("models.")
    ):
        raise schema.refusal("a path parameter is a string, an integer or an enum")
    if (
        "null" in types_of(schema)
        or "object" in types_of(schema)
        or "bytes" in annotation
        or "tuple[" in annotation
    ):
        raise schema.refusal("not a type that a parameter can carry")
    return annotation


def check_serialization(node: DocumentNode, schema: DocumentNode, location: str) -> None:
    """Check how a value is spelled: lists are comma-joined in a query and nowhere else; every other
    value has one spelling.
    """
    styles = {"path": "simple", "query": "form", "header": "simple"}
    if node.get("style", styles[location]) != styles[location]:
        raise node["style"].refusal(f"only {styles[location]!r} is understood")
    if "array" not in types_of(schema):
        if "$ref" in schema and "enum" not in component(
            schema, "schemas", schema.ref_name("schemas")
        ):
            raise schema.refusal("only an enum may be referred to here")
        return
    if location != "query" or node.get("explode") is not False:
        raise node.refusal(
            "a list parameter stands in a query and says `explode: false`: it is sent comma-joined"
        )


def parameter_default(node: DocumentNode, required: bool) -> str | None:
    schema = node["schema"]
    if "default" not in schema:
        return None
    if required:
        raise schema["default"].refusal("a required parameter has no default")
    if is_list(schema.get("default")) or is_mapping(schema.get("default")):
        raise schema["default"].refusal("only a scalar default is understood")
    return source_of(schema["default"], schema)


# ------------------------------------------------------------------------------------------- bodies


def read_body(node: DocumentNode) -> tuple[str | None, tuple[str, ...]]:
    """Return the record that a request carries and the media types it may take."""
    if "requestBody" not in node:
        return None, ()
    body = node["requestBody"].resolve("requestBodies")
    body.only(REQUEST_BODY, "a request body")
    if not body.flag("required"):
        raise body.refusal("a request body needs `required: true`")
    if MULTIPART in body["content"]:
        return record_name(body, read_form(body["content"])), (MULTIPART,)
    name, media_types = read_content(body["content"])
    if EVENTS in media_types:
        raise body["content"].refusal(f"{EVENTS} is not a form of a request body")
    return name and record_name(body, name), media_types


def read_form(content: DocumentNode) -> str:
    """Return the schema of a form, which has no other media type."""
    if len(content.mapping()) > 1:
        raise content.refusal(f"{MULTIPART} stands alone")
    media = content[MULTIPART]
    media.only(MEDIA_TYPE, "a media type")
    if "schema" not in media:
        raise media.refusal("a schema is missing")
    return json_schema(media["schema"])


def read_content(content: DocumentNode) -> tuple[str | None, tuple[str, ...]]:
    """Return the schema of the JSON form or of events, if there is one, and all media types in the
    order of the document.
    """
    name: str | None = None
    media_types: list[str] = []
    for media_type, media in content.items():
        media.only(MEDIA_TYPE, "a media type")
        if "schema" not in media:
            raise media.refusal("a schema is missing")
        if media_type == JSON:
            name = json_schema(media["schema"])
        elif media_type == EVENTS:
            name = event_schema(media["schema"])
        elif media["schema"].value != {"type": "string", "format": "binary"}:
            raise media["schema"].refusal(
                "a media type other than JSON needs {type: string, format: binary}"
            )
        media_types.append(media_type)
    if EVENTS in media_types and len(media_types) > 1:
        raise content.refusal(
            f"{EVENTS} stands alone: nothing decodes both a stream and another form"
        )
    return name, tuple(media_types)


def json_schema(schema: DocumentNode) -> str:
    if "$ref" not in schema.mapping():
        raise schema.refusal("an unnamed body; name it in components.schemas and refer to it")
    schema.only(frozenset({"$ref"}), "a body")
    return schema.ref_name("schemas")


def event_schema(event: DocumentNode) -> str:
    """Return the schema of the data of each event of a stream."""
    event.only(frozenset({"description", "type", "required", "properties"}), "an event")
    if event["required"].value != ["data"] or list(event["properties"].mapping()) != ["data"]:
        raise event.refusal("an event has `data`, which is required, and nothing else")
    data = event["properties"]["data"]
    data.only(
        frozenset({"description", "type", "contentMediaType", "contentSchema"}),
        "the data of an event",
    )
    if (data["type"].value, data["contentMediaType"].value) != ("string", JSON):
        raise data.refusal(f"the data of an event is a string of {JSON}")
    return json_schema(data["contentSchema"])


def read_reply(node: DocumentNode) -> tuple[str | None, tuple[str, ...]]:
    """Return the record of the one 2xx answer and its media types; the other answers are checked
    and not generated.
    """
    if "responses" not in node:
        raise node.refusal("responses are missing")
    replies: list[tuple[str | None, tuple[str, ...]]] = []
    for status, response in node["responses"].items():
        read = read_response(status, response)
        if status.startswith("2"):
            replies.append(read)
    if len(replies) != 1:
        raise node["responses"].refusal(
            f"exactly one 2xx answer is needed, here are {len(replies)}"
        )
    return replies[0]


def read_response(status: str, node: DocumentNode) -> tuple[str | None, tuple[str, ...]]:
    if not re.fullmatch(r"[2345][0-9]{2}|default", status):
        raise node.refusal(f"{status!r} is neither a status nor `default`")
    response = node.resolve("responses")
    response.only(RESPONSE, "a response")
    if "content" not in response:
        return None, ()
    return read_content(response["content"])
