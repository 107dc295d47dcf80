"""The outputs of `tinker_public.proto`: the module of Google's runtime, its stub, and our codec.

The module holds the compiled messages as bytes and asks no more of the runtime than version 4.21
has; what protoc writes for Python works with no older runtime than its own.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2

from codegen.files import Wanted
from codegen.proto_codec import write_codec

SOURCE = "tinker_public.proto"
MODULE = "tinker.proto.tinker_public_pb2"
CODEC = "tinker._wire.proto"
FIRST_LINE = (
    f'"""The messages of {SOURCE}, for Google\'s protobuf runtime; made by '
    '`python -m codegen generate`."""'
)
WIDTH = 100
#: Names of one message that servers written for version 0.25 use, in addition to today's.
OLDER = "TopkLogprobs", "TopkPromptLogprobs", "length", "prompt_length"
#: A field has one name in a message's description, so the class of the message learns the other.
ADD_OLDER_NAME = '''def _add_older_name(kind: Any, name: str, older: str) -> Any:
    """Let messages of a class be made, read and written with an older name of a field too."""
    make, assign = kind.__init__, kind.__setattr__

    def make_with_either(self: Any, **fields: Any) -> None:
        if older in fields:
            fields[name] = fields.pop(older)
        make(self, **fields)

    def assign_either(self: Any, attribute: str, value: Any) -> None:
        assign(self, name if attribute == older else attribute, value)

    def read(self: Any) -> Any:
        return getattr(self, name)

    kind.__init__, kind.__setattr__ = make_with_either, assign_either
    setattr(kind, older, property(read))
    return kind
'''


def make_modules(root: Path, document: Any) -> Wanted:
    """Return the text of the module, of its stub, and of the codec."""
    file, stub = compile_source(root)
    module, codec = (root.joinpath(*name.split(".")).with_suffix(".py") for name in (MODULE, CODEC))
    texts = {module.with_suffix(".pyi"): write_stub(stub), codec: write_codec(file, root)}
    file.ClearField("source_code_info")
    return {module: write_module(file), **texts}


def compile_source(root: Path) -> tuple[descriptor_pb2.FileDescriptorProto, str]:
    """Return the descriptor of the file with its comments, and protoc's stub."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder) / "set"
        options = [f"-I{root}", f"-o{compiled}", "--include_source_info", f"--pyi_out={folder}"]
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", *options, str(root / SOURCE)], check=True
        )
        (file,) = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file
        for message in _list_messages(file.message_type):
            for field in message.field:
                field.ClearField("json_name")
        return file, (Path(folder) / f"{MODULE.rpartition('.')[2]}.pyi").read_text()


def _list_messages(
    messages: Iterable[descriptor_pb2.DescriptorProto],
) -> Iterator[descriptor_pb2.DescriptorProto]:
    for message in messages:
        yield message
        yield from _list_messages(message.nested_type)


def write_module(file: descriptor_pb2.FileDescriptorProto) -> str:
    """Return the text of the module."""
    descriptor = file.SerializeToString(deterministic=True)
    pieces = "\n".join(
        f"    {descriptor[at : at + WIDTH // 2]!r}" for at in range(0, len(descriptor), WIDTH // 2)
    )
    message, older_message, field, older_field = OLDER
    return f'''{FIRST_LINE}

from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.internal import builder


{ADD_OLDER_NAME}

DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(
{pieces}
)
builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())
builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, "{MODULE}", globals())
{older_message} = _add_older_name(globals()["{message}"], "{field}", "{older_field}")
'''


def write_stub(stub: str) -> str:
    """Return the text of the stub: protoc's, with every type known and the older names."""
    message, older_message, field, older_field = OLDER
    known = re.sub(r"_Mapping(?![\[\w])(?! as)", "_Mapping[str, object]", stub).replace(
        "Mapping as _Mapping[str, object]", "Mapping as _Mapping"
    )
    start = known.index(f"class {message}(")
    body = known[start:].replace(
        f"\n    {field}: int\n", f"\n    {field}: int\n    {older_field}: int\n", 1
    )
    body = body.replace(
        f"{field}: _Optional[int] = ...)",
        f"{field}: _Optional[int] = ..., {older_field}: _Optional[int] = ...)",
        1,
    )
    return f"{FIRST_LINE}\n# pyright: basic\n\n{known[:start]}{body}\n{older_message} = {message}\n"
