"""Finds the two contracts: files, folders, or revisions of this repository."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codegen.diff.proto_files import ProtoFile, ProtoReader
from codegen.document import Refusal, is_mapping
from codegen.files import ROOT, load, load_text

DOCUMENT, PROTO = "openapi.yaml", "tinker_public.proto"


@dataclass(frozen=True)
class ContractSource:
    """One side of the comparison: the document, the messages, or both."""

    document: Any = None
    proto: ProtoFile | None = None
    proto_name: str = PROTO


def read_source(name: str) -> ContractSource:
    """Read a contract: a YAML or JSON document, a `.proto`, a folder with both, or a revision such
    as `HEAD~1`.

    Raises:
        Refusal: There is no such thing, or it cannot be read.
    """
    path = Path(name)
    if path.is_dir():
        return read_folder(path)
    if path.suffix in (".yaml", ".yml", ".json", ".proto"):
        return read_file(path)
    return read_revision(name)


def read_file(path: Path) -> ContractSource:
    if path.suffix == ".proto":
        return ContractSource(proto=read_proto(read_text(path), path.name), proto_name=path.name)
    return ContractSource(document=check_document(load(path), path.name))


def read_folder(path: Path) -> ContractSource:
    document, proto = path / DOCUMENT, path / PROTO
    if not document.exists() and not proto.exists():
        raise Refusal(str(path), f"neither {DOCUMENT} nor {PROTO} is here")
    return ContractSource(
        check_document(load(document), str(document)) if document.exists() else None,
        read_proto(read_text(proto), proto.name) if proto.exists() else None,
    )


def read_revision(name: str) -> ContractSource:
    document, proto = (file_at_revision(name, file) for file in (DOCUMENT, PROTO))
    return ContractSource(
        check_document(load_text(document, f"{name}:{DOCUMENT}"), name), read_proto(proto, PROTO)
    )


def file_at_revision(revision: str, file: str) -> str:
    """Return a file as it was committed; it is read from git and not checked out."""
    command = ["git", "-C", str(ROOT), "show", "--end-of-options", f"{revision}:{file}"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise Refusal(
            revision,
            f"neither a file, a folder nor a revision with {file}: "
            f"{done.stderr.decode(errors='replace').strip()}",
        )
    return done.stdout.decode("utf-8")


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Refusal(path.name, f"not UTF-8: {error}") from error


def read_proto(text: str, name: str) -> ProtoFile:
    return ProtoReader(text, name).read()


def check_document(document: Any, name: str) -> Any:
    """Refuse anything but an OpenAPI document: every comparison of it would be empty."""
    if not is_mapping(document) or "paths" not in document:
        raise Refusal(name, "not an OpenAPI document: it has no paths")
    return document
