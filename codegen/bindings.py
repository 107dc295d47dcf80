"""Renders the bindings of a document: openapi-python-client parses it, and the templates in this
folder write the text.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openapi_python_client import Project
from openapi_python_client.config import Config, ConfigFile, MetaType
from openapi_python_client.parser import GeneratorData
from openapi_python_client.parser.errors import GeneratorError
from openapi_python_client.strings import PythonIdentifier

from codegen.client_methods import ClientMethod, read_client_methods
from codegen.document import (
    COMPONENTS,
    DOCUMENT,
    MULTIPART,
    DocumentNode,
    Refusal,
    is_list,
    is_mapping,
)
from codegen.files import Wanted, exactly, files_below
from codegen.limits import Constant, read_limits
from codegen.operations import JSON, OperationSpec, read_operations
from codegen.public_names import public_modules
from codegen.runs import read_submitted
from codegen.schemas import Models, read_models
from codegen.security import check_document_security
from codegen.spelling import drop_titles, spell_nulls
from codegen.text import docstring, finish, method_doc, operation_doc

TEMPLATES = Path(__file__).resolve().parent / "templates"
HEADER = "# generated from openapi.yaml; do not edit"


@dataclass(frozen=True)
class Contract:
    """The whole document as the templates need it."""

    models: Models
    operations: list[OperationSpec]
    tags: dict[str, str]
    clients: dict[str, list[ClientMethod]]
    limits: list[Constant]
    #: The version of the official client that is covered whole; empty where the document does not
    #: say.
    surface: str


class Bindings(Project):
    """openapi-python-client's project with output of our own: its parsing and naming, our text."""

    contract: Contract

    def build(self) -> Sequence[GeneratorError]:
        """Render every file below the output folder; return the parser's complaints."""
        filters: dict[str, Any] = {
            "docstring": docstring,
            "literal": repr,
            "operation_doc": operation_doc,
        }
        filters |= {"method_doc": method_doc, "class_name": class_name}
        self.env.filters.update(filters)
        self.package_dir.mkdir(parents=True, exist_ok=True)
        self._create_package()
        self._build_models()
        self._build_api()
        self._build_clients()
        self._build_runs()
        return self._get_errors()

    def _create_package(self) -> None:
        info = self.openapi
        title, contract_version = (
            info.title.get_untrusted_value(),
            info.version.get_untrusted_value(),
        )
        names = {"title": title, "version": contract_version, "surface": self.contract.surface}
        self._write("__init__.py", "package.py.jinja", **names)
        self._write("runtime.py", "runtime.py.jinja")
        (self.package_dir / "py.typed").touch()

    def _build_models(self) -> None:
        self._write("models.py", "models.py.jinja", models=self.contract.models)
        self._write("limits.py", "limits.py.jinja", limits=self.contract.limits)

    def _build_api(self) -> None:
        operations = self.contract.operations
        self._write("operations.py", "operations.py.jinja", operations=operations)
        self._write("api/__init__.py", "api_package.py.jinja")
        for tag in dict.fromkeys(operation.tag for operation in operations):
            tagged = [operation for operation in operations if operation.tag == tag]
            description = self.contract.tags[tag] or f"The operations of {tag}."
            self._write(f"api/{tag}.py", "api.py.jinja", operations=tagged, description=description)

    def _build_clients(self) -> None:
        clients = self.contract.clients
        tags = sorted({method.operation.tag for methods in clients.values() for method in methods})
        if clients:
            self._write("clients.py", "clients.py.jinja", clients=clients, tags=tags)

    def _build_runs(self) -> None:
        if submitted := read_submitted(self.contract.operations, self.contract.models):
            runs = [item for item in submitted if item.is_of_run]
            self._write("runs.py", "runs.py.jinja", submitted=submitted, runs=runs)

    def _write(self, name: str, template: str, **values: object) -> None:
        path = self.package_dir / name
        path.parent.mkdir(exist_ok=True)
        text = self.env.get_template(template).render(header=HEADER, **values)
        path.write_text(text, encoding="utf-8")


def make_bindings(root: Path, document: Any) -> Wanted:
    """Return the files of generated/tinker_wire; an ExceptionGroup with every reason where there
    can be none.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "tinker_wire"
        if refusals := generate(document, output, public_modules(root / "tinker" / "types")):
            raise ExceptionGroup("the document is refused", refusals)
        return exactly(root / "generated" / "tinker_wire", files_below(output))


def generate(document: Any, output: Path, public: Mapping[str, str] | None = None) -> list[Refusal]:
    """Write the bindings of a document into an empty folder; return every reason not to.

    `public` says from which modules users import which records; a record says that it is of that
    module.
    """
    refusals: list[Refusal] = []
    document = spell_nulls(document)
    contract = read(DocumentNode.of_document(document), refusals, public or {})
    if refusals or contract is None:
        return refusals
    bindings = parse(drop_titles(document), output)
    if isinstance(bindings, GeneratorError):
        return [refusal_of(bindings)]
    bindings.contract = contract
    refusals = [*missing_endpoints(bindings), *(refusal_of(error) for error in bindings.build())]
    if not refusals:
        finish(output)
    return refusals


def read(root: DocumentNode, refusals: list[Refusal], public: Mapping[str, str]) -> Contract | None:
    """Read the document in the words of the templates."""
    try:
        check_document(root)
        tags = dict(read_tags(root))
        models, operations = (
            read_models(root, refusals, public),
            read_operations(root, python_name, refusals),
        )
        clients = {} if refusals else read_client_methods(root, operations, models, refusals)
        surface = root["info"].text("x-official-surface")
        return Contract(models, operations, tags, clients, read_limits(root), surface)
    except Refusal as refusal:
        refusals.append(refusal)
        return None


def parse(document: Any, output: Path) -> Bindings | GeneratorError:
    """Let openapi-python-client validate the document."""
    config = Config.from_sources(
        ConfigFile(
            literal_enums=True, content_type_overrides=binary_media_types(document), post_hooks=[]
        ),
        MetaType.NONE,
        document_source="openapi.yaml",
        file_encoding="utf-8",
        overwrite=True,
        output_path=output,
    )
    data = GeneratorData.from_dict(document, config=config)
    if isinstance(data, GeneratorError):
        return data
    return Bindings(openapi=data, config=config, custom_template_path=TEMPLATES)


def binary_media_types(value: Any) -> dict[str, str]:
    """Map every media type but JSON to bytes, for the parser: it would drop the types it does not
    know.
    """
    if is_list(value):
        return merge(binary_media_types(item) for item in value)
    if not is_mapping(value):
        return {}
    content = value.get("content")
    here = (
        {name: "application/octet-stream" for name in content if name not in (JSON, MULTIPART)}
        if is_mapping(content)
        else {}
    )
    return here | merge(binary_media_types(item) for item in value.values())


def merge(parts: Iterable[dict[str, str]]) -> dict[str, str]:
    return {name: value for part in parts for name, value in part.items()}


def check_document(root: DocumentNode) -> None:
    root.only(DOCUMENT, "the document")
    for section in ("info", "tags", "paths", "components"):
        if section not in root:
            raise root.refusal(f"{section} is missing")
    root["components"].only(COMPONENTS, "components")
    if "schemas" not in root["components"]:
        raise root["components"].refusal("schemas is missing")
    check_document_security(root)


def read_tags(root: DocumentNode) -> Iterator[tuple[str, str]]:
    for tag in root["tags"].elements():
        tag.only(frozenset({"name", "description"}), "a tag")
        yield tag.text("name"), tag.text("description")


def missing_endpoints(bindings: Bindings) -> list[Refusal]:
    """Return operations that the parser dropped without a word."""
    collections = bindings.openapi.endpoint_collections_by_tag.values()
    known = {str(endpoint.name) for collection in collections for endpoint in collection.endpoints}
    return [
        Refusal(
            f"#/paths ({operation.operation_id})",
            "openapi-python-client did not parse this operation",
        )
        for operation in bindings.contract.operations
        if operation.operation_id not in known
    ]


def refusal_of(error: GeneratorError) -> Refusal:
    return Refusal(
        "openapi-python-client", " ".join(f"{error.header} {error.detail or ''}".split())
    )


def class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def python_name(name: str) -> str:
    return str(PythonIdentifier(name, prefix="field_"))
