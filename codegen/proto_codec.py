"""The codec of client and server: for each message of the .proto, what writes it and what reads it.

A message is a class of `tinker.types` with the same name and fields, unless one of the tables here
or a function of its name in `tinker/_wire/proto_values.py` says otherwise.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from codegen.bindings import TEMPLATES
from codegen.document import Refusal
from codegen.text import format_text

VALUES = "tinker._wire.proto_values"
#: The messages that are a body, and what `encode_` and `decode_` are followed by.
ROOTS = {
    "ForwardBackwardRequest": "forward_backward",
    "ForwardBackwardOutput": "loss_output",
    "SampleResponse": "sample",
}
#: The types of users that have another name than their message, where no function tells.
TYPES = {
    "Chunk": "ModelInputChunk",
    "LossConfigValue": "float | str",
    "ForwardBackwardRequest": "ForwardBackwardCall",
}
#: The arguments of users' types that have another name than the field.
ARGUMENTS = {
    "SampledSequence.tokens": "tokens_np",
    "SampledSequence.logprobs": "logprobs_np",
    "SampledSequence.topk_sampled_logprobs": "topk_logprobs_np",
    "SampleResponse.prompt_logprobs": "prompt_logprobs_np",
    "SampleResponse.topk_prompt_logprobs": "topk_prompt_logprobs_np",
}
#: The attributes that hold the value of a field, where that is not the one of the argument's name.
ATTRIBUTES = {"Datum.model_input": "model_input.chunks", "EncodedTextChunk.tokens": "array"}
#: The messages whose values may be refused by the type of users, and what an error says first.
REFUSED = {
    "Tensor": "bad tensor: ",
    "BatchedTensor": "bad batched tensor: ",
    "ImageChunk": "an image: ",
    "PromptProvenanceSpan": "",
    "SampledProvenanceSpan": "",
}
#: Fields whose value is mostly one array: what stands before it is made once for each size.
ARRAY_HEADS = {
    "Datum.model_input": "EncodedTextChunk.tokens",
    "Datum.loss_fn_inputs": "Tensor.dense",
}
#: The elements that are written ahead of the rest of the body; an error names the one meant.
AHEAD = "ForwardBackwardRequest.data"
#: The message that is read in one piece if it has the usual layout: a number, and arrays.
USUAL = "SampledSequence"

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    _FIELD.TYPE_DOUBLE: "double",
    _FIELD.TYPE_BOOL: "bool",
    _FIELD.TYPE_STRING: "text",
    _FIELD.TYPE_BYTES: "bytes",
    _FIELD.TYPE_ENUM: "enum",
    _FIELD.TYPE_MESSAGE: "message",
    **dict.fromkeys((_FIELD.TYPE_INT32, _FIELD.TYPE_INT64), "int"),
    **dict.fromkeys((_FIELD.TYPE_UINT32, _FIELD.TYPE_UINT64), "uint"),
}
_REPEATED = ("message", "map", "integers")
_IN_MAPS = ("message", "double")
_WIRE_TYPES = {"double": 1, "int": 0, "uint": 0, "bool": 0, "enum": 0}  # any other has a length
_ARRAYS = {"int32": "<i4", "int64": "<i8", "float32": "<f4", "bfloat16": "<u2"}
_PYTHON_TYPES = {
    "double": "float",
    "bool": "bool",
    "text": "str",
    "bytes": "bytes",
    "enum": "str",
    "int": "int",
    "uint": "int",
}


@dataclass(frozen=True)
class CodecField:
    """One field: what it holds, and where users find it."""

    message: str
    name: str
    number: int
    #: double, int, uint, bool, enum, text, bytes, array, message or map; integers are a list.
    kind: str
    #: The message, the enum, or the type of the array.
    type: str
    #: The names of all fields of which only one has a value.
    oneof: list[str]
    is_repeated: bool
    has_presence: bool
    #: What a map has as its values.
    value: CodecField | None = None

    @property
    def key(self) -> int:
        """The first byte: the number and the wire type."""
        return self.number << 3 | (2 if self.kind == "integers" else _WIRE_TYPES.get(self.kind, 2))

    @property
    def path(self) -> str:
        """The name with that of the message."""
        return f"{self.message}.{self.name}"

    @property
    def argument(self) -> str:
        """The name of the argument that takes it."""
        return ARGUMENTS.get(self.path, self.name)

    @property
    def attribute(self) -> str:
        """The attribute that holds it."""
        return ATTRIBUTES.get(self.path, self.argument)


@dataclass(frozen=True)
class CodecMessage:
    """One message, and what it is to users."""

    name: str
    fields: list[CodecField]
    #: The type to read, and the one to write.
    made: str
    taken: str
    has_make: bool
    has_take: bool
    refuses: bool
    #: The fields that are read.
    read: list[CodecField]
    #: All of it is one choice.
    is_union: bool

    @property
    def snake(self) -> str:
        """The name in the names of functions."""
        return snake(self.name)

    @property
    def is_container(self) -> bool:
        """Whether it has any number of parts: these and all else are read as they are found."""
        return any(field.is_repeated and field.kind != "integers" for field in self.fields)

    @property
    def needs_dtype(self) -> bool:
        """Whether the type of an array is known to the message around this one only."""
        return not any(field.name == "dtype" for field in self.fields) and any(
            field.type == "dtype" for field in self.fields
        )


class CodecReader:
    """Reads the descriptor of the file, with its comments, and the functions written by hand."""

    def __init__(self, file: descriptor_pb2.FileDescriptorProto, values: str) -> None:
        self._messages = {
            message.name: (index, message) for index, message in enumerate(file.message_type)
        }
        self._comments = {
            tuple(one.path): one.trailing_comments.strip() for one in file.source_code_info.location
        }
        nodes = ast.parse(values).body
        self._functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
        self.own_types = {node.name for node in nodes if isinstance(node, ast.ClassDef)}

    def read(self) -> dict[str, CodecMessage]:
        """Return what the bodies consist of, each message behind those in it."""
        found: dict[str, CodecMessage] = {}
        for name in ROOTS:
            self._add(name, found)
        return found

    def _add(self, name: str, found: dict[str, CodecMessage]) -> None:
        if name in found:
            return
        index, message = self._messages[name]
        fields = [
            field
            for at, one in enumerate(message.field)
            for field in self._read_field(message, one, index, at)
        ]
        for field in fields:
            inner = field.value or field
            if inner.kind == "message":
                self._add(inner.type, found)
        default = TYPES.get(name, name)
        make, take = (self._functions.get(f"{verb}_{snake(name)}") for verb in ("make", "take"))
        wanted = (
            {argument.arg for argument in make.args.args}
            if make
            else {field.name for field in fields}
        )
        made = ast.unparse(make.returns) if make and make.returns else default
        annotation = take.args.args[0].annotation if take else None
        found[name] = CodecMessage(
            name=name,
            fields=fields,
            made=made,
            taken=ast.unparse(annotation) if annotation else made.removesuffix(" | None"),
            has_make=make is not None,
            has_take=take is not None,
            read=[field for field in fields if field.name in wanted],
            refuses=f"refuse_{snake(name)}" in self._functions,
            is_union=bool(fields) and all(len(field.oneof) == len(fields) for field in fields),
        )

    def _read_field(
        self,
        message: descriptor_pb2.DescriptorProto,
        field: descriptor_pb2.FieldDescriptorProto,
        index: int,
        at: int,
    ) -> Iterator[CodecField]:
        """Yield the field, unless the comment says that it is not read."""
        comment = self._comments.get((4, index, 2, at), "")
        kind, type_name, value = (
            _SCALARS.get(field.type, ""),
            field.type_name.rpartition(".")[2],
            None,
        )
        is_repeated = field.label == _FIELD.LABEL_REPEATED
        entry = next((nested for nested in message.nested_type if nested.name == type_name), None)
        if entry is not None:
            kind, (_, inner) = "map", entry.field
            (value,) = self._read_field(entry, inner, -1, -1)
        elif is_repeated and kind == "int":
            kind = "integers"
        if kind == "bytes" and comment in ("int32", "int64", "float32", "dtype"):
            kind, type_name, comment = "array", comment, ""
        elif kind == "text" and comment != "unused":
            type_name, comment = comment, ""
        is_known = kind in _REPEATED if is_repeated else kind != ""
        if (
            comment not in ("", "unused")
            or not is_known
            or (value is not None and value.kind not in _IN_MAPS)
        ):
            raise Refusal(
                f"{message.name}.{field.name}", "is of a kind that the codec does not know"
            )
        if comment != "unused":
            choice = (
                field.oneof_index
                if field.HasField("oneof_index") and not field.proto3_optional
                else None
            )
            oneof = [
                one.name
                for one in message.field
                if one.HasField("oneof_index") and one.oneof_index == choice
            ]
            yield CodecField(
                message.name,
                field.name,
                field.number,
                kind,
                type_name,
                oneof,
                is_repeated,
                has_presence=field.HasField("oneof_index"),
                value=value,
            )


def write_codec(file: descriptor_pb2.FileDescriptorProto, root: Path) -> str:
    """Return the text of the codec."""
    reader = CodecReader(
        file, root.joinpath(*VALUES.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    )
    messages = reader.read()
    loader = FileSystemLoader(TEMPLATES)
    environment = Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    filters: dict[str, Any] = {
        "snake": snake,
        "words": words,
        "python": python_type,
        "key": key_bytes,
    }
    environment.filters.update(filters)
    text = environment.get_template("codec.py.jinja").render(
        source=file.name,
        messages=messages,
        roots=ROOTS,
        enums={enum.name: name_values(enum) for enum in file.enum_type},
        arrays=_ARRAYS,
        refused=REFUSED,
        heads={path: find_field(messages, head) for path, head in ARRAY_HEADS.items()},
        ahead=find_field(messages, AHEAD),
        usual=messages[USUAL],
        types=sorted(types_of(messages) - reader.own_types),
        own_types=sorted(types_of(messages) & reader.own_types),
    )
    return format_text(text)


def find_field(messages: dict[str, CodecMessage], path: str) -> CodecField:
    message, _, name = path.partition(".")
    return next(field for field in messages[message].fields if field.name == name)


def types_of(messages: dict[str, CodecMessage]) -> set[str]:
    """Return the names of types in the text."""
    texts = " ".join(f"{message.made} {message.taken}" for message in messages.values())
    return set(re.findall(r"[A-Z]\w+", texts)) - {"None", "Sequence"}


def python_type(field: CodecField, messages: dict[str, CodecMessage]) -> str:
    """Return the type of what is read."""
    if field.value is not None:
        return f"dict[str, {python_type(field.value, messages)}]"
    if field.kind == "integers":
        return "list[int]"
    return messages[field.type].made if field.kind == "message" else _PYTHON_TYPES[field.kind]


def name_values(enum: descriptor_pb2.EnumDescriptorProto) -> dict[str, int]:
    """Return the values by their names in JSON."""
    prefix = f"{snake(enum.name).upper()}_"
    prefix = (
        prefix
        if all(value.name.startswith(prefix) for value in enum.value)
        else f"{enum.name.upper()}_"
    )
    return {value.name.removeprefix(prefix).lower(): value.number for value in enum.value}


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def words(name: str) -> str:
    return snake(name).replace("_", " ")


def key_bytes(key: int) -> str:
    """Return the literal of a key as it stands before a field."""
    pieces = [key >> 7 * place & 0x7F for place in range(max(1, -(-key.bit_length() // 7)))]
    return (
        'b"' + "".join(f"\\x{piece | 0x80:02x}" for piece in pieces[:-1]) + f'\\x{pieces[-1]:02x}"'
    )
