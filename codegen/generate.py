"""Writes generated/tinker_wire from openapi.yaml.

    python codegen/generate.py            write it
    python codegen/generate.py --check    say whether the committed tree is what would be written

The document is parsed by openapi-python-client, whose every warning is an error here; the text is rendered from the
document itself with the templates beside this file. What the generator does not understand it refuses.
"""

from __future__ import annotations

import argparse
import difflib
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from document import COMPONENTS, DOCUMENT, Node, Refused, is_list, is_mapping
from openapi_python_client import Project
from openapi_python_client.config import Config, ConfigFile, MetaType
from openapi_python_client.parser import GeneratorData
from openapi_python_client.parser.errors import GeneratorError
from openapi_python_client.strings import PythonIdentifier, safe_for_docstring
from read_operations import JSON, Operation, read_operations
from read_schemas import Models, read_models
from ruamel.yaml import YAML, YAMLError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
HEADER = "# generated from openapi.yaml; do not edit"
LINE_LENGTH = 120


@dataclass(frozen=True)
class Contract:
    """The whole document as the templates need it."""

    models: Models
    operations: list[Operation]
    tags: dict[str, str]


class Bindings(Project):
    """openapi-python-client's project with output of our own: its parsing and naming, our text."""

    contract: Contract

    def build(self) -> Sequence[GeneratorError]:
        """Render every file below the output folder; return what the parser complained about."""
        filters: dict[str, Any] = {"docstring": docstring, "literal": repr, "operation_doc": operation_doc}
        self.env.filters.update(filters)
        self.package_dir.mkdir(parents=True, exist_ok=True)
        self._create_package()
        self._build_models()
        self._build_api()
        return self._get_errors()

    def _create_package(self) -> None:
        info = self.openapi
        title, contract_version = info.title.get_untrusted_value(), info.version.get_untrusted_value()
        self._write("__init__.py", "package.py.jinja", title=title, version=contract_version)
        self._write("runtime.py", "runtime.py.jinja")
        self._write("values.py", "values.py.jinja")
        (self.package_dir / "py.typed").touch()

    def _build_models(self) -> None:
        self._write("models.py", "models.py.jinja", models=self.contract.models)

    def _build_api(self) -> None:
        operations = self.contract.operations
        self._write("operations.py", "operations.py.jinja", operations=operations)
        self._write("api/__init__.py", "api_package.py.jinja")
        for tag in dict.fromkeys(operation.tag for operation in operations):
            tagged = [operation for operation in operations if operation.tag == tag]
            description = self.contract.tags[tag] or f"The operations of {tag}."
            self._write(f"api/{tag}.py", "api.py.jinja", operations=tagged, description=description)

    def _write(self, name: str, template: str, **values: object) -> None:
        path = self.package_dir / name
        path.parent.mkdir(exist_ok=True)
        text = self.env.get_template(template).render(header=HEADER, **values)
        path.write_text(text, encoding="utf-8")


def generate(document: Any, output: Path) -> list[Refused]:
    """Write the bindings of a document into an empty folder; return every reason not to."""
    refusals: list[Refused] = []
    contract = read(Node.of_document(document), refusals)
    if refusals or contract is None:
        return refusals
    bindings = parse(document, output)
    if isinstance(bindings, GeneratorError):
        return [as_refused(bindings)]
    bindings.contract = contract
    refusals = [*missing_endpoints(bindings), *(as_refused(error) for error in bindings.build())]
    if not refusals:
        finish(output)
    return refusals


def read(root: Node, refusals: list[Refused]) -> Contract | None:
    """What the document says, in the words of the templates."""
    try:
        check_document(root)
        tags = dict(read_tags(root))
        return Contract(read_models(root, refusals), read_operations(root, python_name, refusals), tags)
    except Refused as refused:
        refusals.append(refused)
        return None


def parse(document: Any, output: Path) -> Bindings | GeneratorError:
    """Let openapi-python-client validate the document."""
    config = Config.from_sources(
        ConfigFile(literal_enums=True, content_type_overrides=binary_media_types(document), post_hooks=[]),
        MetaType.NONE,
        document_source="openapi.yaml",
        file_encoding="utf-8",
        overwrite=True,
        output_path=output,
    )
    data = GeneratorData.from_dict(document, config=config)
    if isinstance(data, GeneratorError):
        return data
    return Bindings(openapi=data, config=config, custom_template_path=HERE / "templates")


def binary_media_types(value: Any) -> dict[str, str]:
    """Every media type but JSON, told to the parser as bytes: it would drop the types it does not know."""
    if is_list(value):
        return merged(binary_media_types(item) for item in value)
    if not is_mapping(value):
        return {}
    content = value.get("content")
    here = {name: "application/octet-stream" for name in content if name != JSON} if is_mapping(content) else {}
    return here | merged(binary_media_types(item) for item in value.values())


def merged(parts: Iterable[dict[str, str]]) -> dict[str, str]:
    return {name: value for part in parts for name, value in part.items()}


def check_document(root: Node) -> None:
    root.only(DOCUMENT, "the document")
    for section in ("info", "tags", "paths", "components"):
        if section not in root:
            raise root.refused(f"{section} is missing")
    root["components"].only(COMPONENTS, "components")
    if "schemas" not in root["components"]:
        raise root["components"].refused("schemas is missing")


def read_tags(root: Node) -> Iterator[tuple[str, str]]:
    for tag in root["tags"].elements():
        tag.only(frozenset({"name", "description"}), "a tag")
        yield tag.text("name"), tag.text("description")


def missing_endpoints(bindings: Bindings) -> list[Refused]:
    """Operations that the parser dropped without a word."""
    collections = bindings.openapi.endpoint_collections_by_tag.values()
    known = {str(endpoint.name) for collection in collections for endpoint in collection.endpoints}
    return [
        Refused(f"#/paths ({operation.operation_id})", "openapi-python-client did not parse this operation")
        for operation in bindings.contract.operations
        if operation.operation_id not in known
    ]


def as_refused(error: GeneratorError) -> Refused:
    return Refused("openapi-python-client", " ".join(f"{error.header} {error.detail or ''}".split()))


def python_name(name: str) -> str:
    return str(PythonIdentifier(name, prefix="field_"))


# ---------------------------------------------------------------------------------------------- text


def operation_doc(operation: Operation) -> str:
    """The docstring of a generated function."""
    parts = [operation.summary, "Deprecated." if operation.deprecated else "", operation.description]
    parts.append(f"`{operation.method} {operation.path}`{'; servers may lack it' if operation.optional else ''}.")
    arguments = [f"- `{item.python_name}`: {item.doc}" for item in operation.parameters if item.doc]
    if operation.expected:
        arguments.insert(0, "- `expected`: The type of the result that the request promises.")
    return "\n\n".join(part for part in (*parts, "\n".join(arguments)) if part)


def docstring(text: str, indent: int) -> str:
    """A docstring literal, wrapped to the line length; paragraphs and list items of the text stay apart."""
    body = "\n\n".join(wrapped(paragraph, LINE_LENGTH - indent) for paragraph in re.split(r"\n\s*\n", text.strip()))
    escaped = str(safe_for_docstring(body))
    if "\n" in escaped or escaped.endswith('"') or len(escaped) + indent + 6 > LINE_LENGTH:
        escaped += "\n"
    return textwrap.indent(f'"""{escaped}"""', " " * indent).lstrip(" ")


def wrapped(paragraph: str, width: int) -> str:
    items = re.split(r"\n(?=- )", paragraph)
    return "\n".join(
        textwrap.fill(
            " ".join(item.split()),
            width - 3,
            subsequent_indent="  " if item.startswith("- ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for item in items
    )


def finish(output: Path) -> None:
    """Compile what was written, then format it; an error of either is a fault of a template."""
    for path in sorted(output.rglob("*.py")):
        compile(path.read_text(encoding="utf-8"), str(path), "exec")
    ruff("check", "--fix", "--select", "F401,F811,I", "--target-version", "py311", str(output))
    ruff("format", "--target-version", "py311", str(output))


def ruff(command: str, *arguments: str) -> None:
    # Wherever the output lies: some folder names, and what git ignores, are passed over by default.
    everywhere = ("--config", "exclude = []", "--no-respect-gitignore")
    common = ("--isolated", "--no-cache", "--quiet", *everywhere, "--line-length", str(LINE_LENGTH))
    subprocess.run([sys.executable, "-m", "ruff", command, *common, *arguments], check=True)


# ---------------------------------------------------------------------------------------------- files


def load(path: Path) -> Any:
    """The document as plain Python values."""
    try:
        yaml: Any = YAML(typ="safe")
        return yaml.load(path.read_text(encoding="utf-8"))
    except YAMLError as error:
        raise Refused(path.name, f"not YAML: {error}") from error


def files_below(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def replace_tree(new: dict[str, str], folder: Path) -> int:
    """Make the folder hold exactly these files; return how many changed."""
    old = files_below(folder)
    changed = [name for name in new if new[name] != old.get(name)]
    for name in changed:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(new[name], encoding="utf-8")
    removed = [name for name in old if name not in new]
    for name in removed:
        (folder / name).unlink()
    return len(changed) + len(removed)


def differences(new: dict[str, str], old: dict[str, str]) -> list[str]:
    """A readable summary: one line per file, then the first lines of its diff."""
    lines: list[str] = []
    for name in sorted(new.keys() | old.keys()):
        before, after = old.get(name), new.get(name)
        if before != after:
            lines.append(f"{name}: {'missing' if before is None else 'not generated' if after is None else 'differs'}")
            lines += diff_head(before or "", after or "", name) if before is not None and after is not None else []
    return lines


def diff_head(before: str, after: str, name: str, limit: int = 20) -> list[str]:
    diff = difflib.unified_diff(before.splitlines(), after.splitlines(), f"committed/{name}", f"generated/{name}", "", "", 1)
    lines = [f"  {line.rstrip()}" for line in diff]
    return lines[:limit] + ([f"  ... {len(lines) - limit} more lines"] if len(lines) > limit else [])


def check_pins() -> None:
    """Refuse to write with other versions than the pinned ones: the bytes depend on them."""
    for line in (HERE / "requirements.txt").read_text(encoding="utf-8").splitlines():
        name, _, pinned = line.partition("==")
        if pinned and version(name) != pinned:
            raise Refused("codegen/requirements.txt", f"{name} {version(name)} is installed, {pinned} is pinned")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write generated/tinker_wire from openapi.yaml.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the committed tree would change")
    parser.add_argument("--document", type=Path, default=ROOT / "openapi.yaml")
    parser.add_argument("--output", type=Path, default=ROOT / "generated" / "tinker_wire")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        try:
            check_pins()
            refusals = generate(load(options.document), Path(folder) / "tinker_wire")
        except Refused as refused:
            refusals = [refused]
        if refusals:
            print(*dict.fromkeys(f"{options.document.name} {refused}" for refused in refusals), sep="\n", file=sys.stderr)
            return 1
        new = files_below(Path(folder) / "tinker_wire")
    if options.check:
        return report(differences(new, files_below(options.output)), options.output)
    print(f"{replace_tree(new, options.output)} of {len(new)} files changed in {options.output.name}")
    return 0


def report(lines: list[str], output: Path) -> int:
    if lines:
        print(*lines, sep="\n", file=sys.stderr)
        print(f"{output.name} is not what openapi.yaml says; run: python codegen/generate.py", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
