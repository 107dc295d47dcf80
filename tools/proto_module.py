"""Make the module of Google's runtime from `tinker_public.proto`: `python tools/proto_module.py [--check]`.

It holds the compiled messages as bytes and asks no more of the runtime than version 4.21 has; what protoc writes for Python
works with no older runtime than its own. Beside it goes protoc's stub for type checkers. With `--check` nothing is written, and
what is not fresh is an error.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from google.protobuf import descriptor_pb2

ROOT = Path(__file__).resolve().parents[1]
SOURCE = "tinker_public.proto"
MODULE = "tinker.proto.tinker_public_pb2"
FILE = ROOT.joinpath(*MODULE.split(".")).with_suffix(".py")
FIRST_LINE = f'"""The messages of {SOURCE}, for Google\'s protobuf runtime; made by tools/proto_module.py."""'
WIDTH = 100
#: Names of one message that servers written for version 0.25 use, beside those of today.
OLDER = "TopkLogprobs", "TopkPromptLogprobs", "length", "prompt_length"


def compile_source() -> tuple[bytes, str]:
    """Return the descriptor of the file, as the runtime takes it, and protoc's stub."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder) / "set"
        options = [f"-I{ROOT}", f"-o{compiled}", f"--pyi_out={folder}"]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, str(ROOT / SOURCE)], check=True)
        (file,) = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file
        for message in _list_messages(file.message_type):
            for field in message.field:
                field.ClearField("json_name")
        return file.SerializeToString(deterministic=True), (Path(folder) / f"{FILE.stem}.pyi").read_text()


def _list_messages(messages: Iterable[descriptor_pb2.DescriptorProto]) -> Iterator[descriptor_pb2.DescriptorProto]:
    for message in messages:
        yield message
        yield from _list_messages(message.nested_type)


def write_module(descriptor: bytes) -> str:
    """Return the text of the module."""
    pieces = "\n".join(f"    {descriptor[at : at + WIDTH // 2]!r}" for at in range(0, len(descriptor), WIDTH // 2))
    message, older_message, field, older_field = OLDER
    return f'''{FIRST_LINE}

from google.protobuf import descriptor_pool
from google.protobuf.internal import builder

from tinker.proto._older_names import add_older_name

DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(
{pieces}
)
builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())
builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, "{MODULE}", globals())
{older_message} = add_older_name(globals()["{message}"], "{field}", "{older_field}")
'''


def write_stub(stub: str) -> str:
    """Return the text of the stub: protoc's, with every type known and the older names."""
    message, older_message, field, older_field = OLDER
    known = re.sub(r"_Mapping(?![\[\w])(?! as)", "_Mapping[str, object]", stub).replace(
        "Mapping as _Mapping[str, object]", "Mapping as _Mapping"
    )
    start = known.index(f"class {message}(")
    body = known[start:].replace(f"\n    {field}: int\n", f"\n    {field}: int\n    {older_field}: int\n", 1)
    body = body.replace(
        f"{field}: _Optional[int] = ...)", f"{field}: _Optional[int] = ..., {older_field}: _Optional[int] = ...)", 1
    )
    return f"{FIRST_LINE}\n# pyright: basic\n\n{known[:start]}{body}\n{older_message} = {message}\n"


def main(arguments: list[str]) -> int:
    """Write the module and its stub, or say which are not fresh; return the exit status."""
    descriptor, stub = compile_source()
    wanted = {FILE: write_module(descriptor), FILE.with_suffix(".pyi"): write_stub(stub)}
    stale = {file: text for file, text in wanted.items() if not file.exists() or file.read_text() != text}
    for file, text in stale.items():
        print(file.relative_to(ROOT))
        if "--check" not in arguments:
            file.write_text(text)
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
