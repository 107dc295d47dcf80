"""Turn `x-client` of an operation into the client methods that ask it: `class RestOperations` and
its like.

    x-client:
      - {client: rest, name: get_sampler}

A method takes the operation's parameters and the fields of its body: those in the path first, then
the body, then the query.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass

from codegen.document import METHODS, DocumentNode, Refusal
from codegen.operations import OperationSpec, Parameter
from codegen.schemas import Alias, Field, Models, RecordSpec

CLIENT_METHOD = frozenset(
    {"client", "name", "summary", "description", "returns", "path", "dates", "twin"}
)
PATH_ARGUMENT = frozenset({"name", "description", "kind"})
#: What every method takes besides, as the template declares it.
OPTIONS = {
    "extra_headers": (
        "Headers of this call only. They replace the client's of the same name, in any case."
    ),
    "timeout": (
        "The longest time for the call and its retries, in seconds; APITimeoutError after it."
    ),
}
NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Argument:
    """An argument of a method, and how the request function and its body call it."""

    name: str
    annotation: str
    doc: str
    default: str | None = None

    @property
    def declaration(self) -> str:
        return f"{self.name}: {self.annotation}" + (
            "" if self.default is None else f" = {self.default}"
        )


@dataclass(frozen=True)
class PathArgument:
    """One argument that holds all values of the operation's path, as `tinker_path` does; `kind`
    says which it must be of.
    """

    name: str
    doc: str
    kind: str | None


@dataclass(frozen=True)
class ClientMethod:
    client: str
    name: str
    summary: str
    description: str
    operation: OperationSpec
    body: list[Argument]
    parameters: list[Argument]
    path: PathArgument | None = None
    #: The result of the future, after the words "A future of".
    returns: str = ""
    #: Parameters that are text on the wire and a date in Python.
    dates: frozenset[str] = frozenset()
    #: Whether there is a coroutine of the name `..._async` too.
    has_twin: bool = True

    @property
    def arguments(self) -> list[Argument]:
        """Return the arguments in their order; optional ones come last."""
        locations = {item.python_name: item.location for item in self.operation.parameters}
        in_path = [item for item in self.parameters if locations[item.name] == "path"]
        others = [item for item in self.parameters if locations[item.name] != "path"]
        if self.path is not None:
            in_path = [Argument(self.path.name, "str", self.path.doc)]
        ordered = [*in_path, *self.body, *others]
        return sorted(ordered, key=lambda item: item.default is not None)

    @property
    def checked(self) -> list[Argument]:
        """Return the arguments that the client may refuse before there is a request."""
        return [item for item in self.arguments if self.path is None or item.name != self.path.name]

    @property
    def request(self) -> str:
        """Return the source of the request: a call of the operation's function."""
        fields = ", ".join(f"{item.name}={item.name}" for item in self.body)
        body = [f"models.{self.operation.body}({fields})"] if self.operation.body else []
        values = [f"{item.python_name}={self.value_of(item)}" for item in self.operation.parameters]
        return (
            f"{self.operation.tag}_api.{self.operation.operation_id}({', '.join([*body, *values])})"
        )

    def value_of(self, parameter: Parameter) -> str:
        """Return the source of the value of one of the operation's parameters."""
        name = parameter.python_name
        if self.path is not None and parameter.location == "path":
            return f"parts[{parameter.name!r}]"
        if name not in self.dates:
            return name
        return (
            f"{name}.isoformat()"
            if parameter.required
            else f"None if {name} is None else {name}.isoformat()"
        )


def read_client_methods(
    root: DocumentNode, operations: list[OperationSpec], models: Models, refusals: list[Refusal]
) -> dict[str, list[ClientMethod]]:
    """Return the methods of each client, in the order of the document."""
    found: dict[str, list[ClientMethod]] = {}
    by_id = {operation.operation_id: operation for operation in operations}
    for node in client_nodes(root):
        try:
            for element in node["x-client"].elements():
                method = read_client_method(element, by_id.get(node.get("operationId")), models)
                check_new(element, method, found.setdefault(method.client, []))
                found[method.client].append(method)
        except Refusal as refusal:
            refusals.append(refusal)
    return found


def client_nodes(root: DocumentNode) -> Iterator[DocumentNode]:
    """Yield the operations that clients have methods for."""
    for _, item in root["paths"].items():
        yield from (node for name, node in item.items() if name in METHODS and "x-client" in node)


def read_client_method(
    node: DocumentNode, operation: OperationSpec | None, models: Models
) -> ClientMethod:
    node.only(CLIENT_METHOD, "a client method")
    if operation is None or operation.expected:
        raise node.refusal("no method can be made of this operation")
    dates = read_dates(node, operation)
    method = ClientMethod(
        client=read_name(node, "client"),
        name=read_name(node, "name"),
        summary=node.text("summary") or operation.summary,
        description=node.text("description")
        or ("" if "summary" in node else operation.description),
        operation=operation,
        body=body_arguments(node, operation, models),
        parameters=[argument_of(parameter, dates) for parameter in operation.parameters],
        returns=node.text("returns"),
        dates=dates,
        has_twin="twin" not in node or node.flag("twin"),
        path=read_path_argument(node["path"], operation) if "path" in node else None,
    )
    check_arguments(node, method)
    return method


def read_name(node: DocumentNode, key: str) -> str:
    name = node.text(key)
    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        raise node.refusal(f"{key} must be a snake_case name, not {name!r}")
    return name


def read_path_argument(node: DocumentNode, operation: OperationSpec) -> PathArgument:
    node.only(PATH_ARGUMENT, "a path argument")
    if not operation.parameters_in("path"):
        raise node.refusal("the operation has no path parameters")
    return PathArgument(
        read_name(node, "name"), node.text("description"), node.text("kind") or None
    )


def read_dates(node: DocumentNode, operation: OperationSpec) -> frozenset[str]:
    """Return the parameters that `dates` names; each is text without a default."""
    names = (
        frozenset(str(element.value) for element in node["dates"].elements())
        if "dates" in node
        else frozenset[str]()
    )
    text = {
        item.python_name
        for item in operation.parameters
        if item.annotation == "str" and item.default is None
    }
    if not names <= text:
        raise node["dates"].refusal(
            f"{', '.join(sorted(names - text))} must be text parameters without a default"
        )
    return names


def body_arguments(node: DocumentNode, operation: OperationSpec, models: Models) -> list[Argument]:
    """Return the fields of the body as arguments."""
    records = [
        item
        for item in models.definitions
        if isinstance(item, RecordSpec) and item.name == operation.body
    ]
    fields = [item for record in records for item in record.fields]
    if operation.multipart:
        raise node.refusal(f"{operation.body} is a form; write this method by hand")
    if operation.binary and operation.body is None:
        raise node.refusal(
            f"the body of {operation.operation_id} is bytes; write this method by hand"
        )
    if any(item.factory is not None for item in fields):
        raise node.refusal(
            f"{operation.body} has defaults that are always sent; write this method by hand"
        )
    return [
        Argument(item.name, qualify(item, models), item.doc, "None" if item.optional else None)
        for item in fields
    ]


def qualify(item: Field, models: Models) -> str:
    """Return the annotation of a field as it is written outside of models.py."""
    return re.sub(
        r"(?<![\w.'\"])[A-Z]\w*", lambda match: resolve(match[0], models), item.annotation
    )


def resolve(name: str, models: Models) -> str:
    """Return how a name of models.py is written outside of it; a second name of a scalar is that
    scalar.
    """
    named = [item for item in models.definitions if item.name == name]
    if not named:
        return name
    (item,) = named
    if isinstance(item, Alias) and item.annotation in ("int", "float", "str", "bool"):
        return item.annotation
    return f"models.{name}"


def argument_of(parameter: Parameter, dates: frozenset[str]) -> Argument:
    annotation = "datetime.date" if parameter.python_name in dates else parameter.annotation
    if parameter.required:
        return Argument(parameter.python_name, annotation, parameter.doc)
    if parameter.default is not None:
        return Argument(parameter.python_name, annotation, parameter.doc, parameter.default)
    return Argument(parameter.python_name, f"{annotation} | None", parameter.doc, "None")


def check_arguments(node: DocumentNode, method: ClientMethod) -> None:
    names = [*OPTIONS, *(item.name for item in method.arguments)]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise node.refusal(f"two arguments are called {', '.join(doubled)}")


def check_new(node: DocumentNode, method: ClientMethod, others: list[ClientMethod]) -> None:
    """Refuse a method whose name, or whose twin's name, its client has already."""
    taken = {name for other in others for name in (other.name, f"{other.name}_async")}
    if not taken.isdisjoint({method.name, f"{method.name}_async"}):
        raise node.refusal(f"the client {method.client} has {method.name} already")
