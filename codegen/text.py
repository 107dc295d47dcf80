"""Writes docstrings, and checks and formats the generated text."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from openapi_python_client.strings import safe_for_docstring

from codegen.client_methods import OPTIONS, ClientMethod
from codegen.operations import OperationSpec

LINE_LENGTH = 120
SECTIONS = ("Args:", "Returns:", "Raises:")


def operation_doc(operation: OperationSpec) -> str:
    """Return the docstring of a generated function."""
    parts = [
        operation.summary,
        "Deprecated." if operation.deprecated else "",
        operation.description,
    ]
    parts.append(
        f"`{operation.method} "
        f"{operation.path}`{'; servers may lack it' if operation.optional else ''}."
    )
    arguments = [f"- `{item.python_name}`: {item.doc}" for item in operation.parameters if item.doc]
    if operation.expected:
        arguments.insert(0, "- `expected`: The type of the result that the request promises.")
    return "\n\n".join(part for part in (*parts, "\n".join(arguments)) if part)


def method_doc(method: ClientMethod) -> str:
    """Return the docstring of a client method: its summary, its arguments, its result and its
    errors.
    """
    docs = {item.name: item.doc for item in method.arguments} | OPTIONS
    arguments = [f"    {name}: {' '.join(doc.split())}" for name, doc in docs.items() if doc]
    parts = [method.summary, method.description, "\n".join(["Args:", *arguments])]
    if method.returns:
        parts.append(f"Returns:\n    A future of {method.returns}")
    elif method.operation.answer == "None":
        parts.append("Returns:\n    A future without a value, done when the server has answered.")
    refusals = "Raises:\n    ValueError: At once, for an argument that cannot be right."
    return "\n\n".join(part for part in (*parts, refusals) if part)


def docstring(text: str, indent: int) -> str:
    """Return a docstring literal, wrap to the line length; paragraphs and list items of the text
    stay apart.
    """
    body = "\n\n".join(
        wrap(paragraph, LINE_LENGTH - indent) for paragraph in re.split(r"\n\s*\n", text.strip())
    )
    escaped = str(safe_for_docstring(body))
    if "\n" in escaped or escaped.endswith('"') or len(escaped) + indent + 6 > LINE_LENGTH:
        escaped += "\n"
    return textwrap.indent(f'"""{escaped}"""', " " * indent).lstrip(" ")


def wrap(paragraph: str, width: int) -> str:
    if paragraph.startswith(SECTIONS):
        return "\n".join(wrap_item(line, width) for line in paragraph.splitlines())
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


def wrap_item(line: str, width: int) -> str:
    return textwrap.fill(
        line, width - 3, subsequent_indent=" " * 8, break_long_words=False, break_on_hyphens=False
    )


def finish(output: Path) -> None:
    """Compile the written files, then format them; an error of either is a fault of a template."""
    for path in sorted(output.rglob("*.py")):
        compile(path.read_text(encoding="utf-8"), str(path), "exec")
    ruff("check", "--fix", "--select", "F401,F811,I", "--target-version", "py311", str(output))
    ruff("format", "--target-version", "py311", str(output))


def format_text(text: str) -> str:
    """Return the text of one file as :func:`finish` leaves it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.py"
        path.write_text(text, encoding="utf-8")
        finish(Path(folder))
        return path.read_text(encoding="utf-8")


def ruff(command: str, *arguments: str) -> None:
    # Wherever the output lies: some folder names, and what git ignores, are passed over by default.
    everywhere = ("--config", "exclude = []", "--no-respect-gitignore")
    common = ("--isolated", "--no-cache", "--quiet", *everywhere, "--line-length", str(LINE_LENGTH))
    subprocess.run([sys.executable, "-m", "ruff", command, *common, *arguments], check=True)
