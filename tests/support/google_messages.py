"""The messages of tinker_public.proto as Google's runtime makes them."""

from __future__ import annotations

import tempfile
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[2]


@cache
def google_messages() -> dict[str, Any]:
    """Message classes by their name without the package, compiled once in a process."""
    include = resources.files("grpc_tools") / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder) / "set"
        assert (
            protoc.main(
                [
                    "",
                    f"-I{ROOT}",
                    f"-I{include}",
                    f"-o{compiled}",
                    str(ROOT / "tinker_public.proto"),
                ]
            )
            == 0
        )
        files = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    classes = message_factory.GetMessageClassesForFiles(["tinker_public.proto"], pool)
    return {name.rpartition(".")[2]: kind for name, kind in classes.items()}
