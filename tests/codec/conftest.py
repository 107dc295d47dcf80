"""The messages of tinker_public.proto as Google's runtime makes them, compiled once."""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

sys.path.insert(0, str(Path(__file__).parent))
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def messages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Message classes by their name without the package."""
    compiled = tmp_path_factory.mktemp("proto") / "set"
    include = resources.files("grpc_tools") / "_proto"
    assert protoc.main(["", f"-I{ROOT}", f"-I{include}", f"-o{compiled}", str(ROOT / "tinker_public.proto")]) == 0
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file:
        pool.Add(file)
    classes = message_factory.GetMessageClassesForFiles(["tinker_public.proto"], pool)
    return {name.rpartition(".")[2]: kind for name, kind in classes.items()}
