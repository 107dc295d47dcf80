"""The codec that is made from a .proto: what is added there is written and read, and what it cannot have is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import numpy as np
import pytest

pytest.importorskip("openapi_python_client", reason="codegen/requirements.txt is not installed")
pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")

from support.contract import ROOT

from codegen.document import Refusal
from codegen.proto_codec import write_codec
from codegen.proto_module import SOURCE, compile_source
from tinker.types import SampledSequence, SampleResponse, TensorData

ANCHOR = "  optional PromptAltTokens prompt_alt_tokens = 6;\n"


def make_codec(folder: Path, fields: str) -> str:
    """Return the codec of the .proto with more fields in SampleResponse."""
    text = (ROOT / SOURCE).read_text(encoding="utf-8")
    assert text.count(ANCHOR) == 1
    (folder / SOURCE).write_text(text.replace(ANCHOR, ANCHOR + fields), encoding="utf-8")
    values = Path("tinker", "_wire", "proto_values.py")
    (folder / values).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / values, folder / values)
    return write_codec(compile_source(folder)[0], folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("int32 more = 7;", -5),
        ("optional int64 more = 8;", 0),
        ("uint32 more = 99;", 7),
        ("bool more = 9;", True),
        ("string more = 10;", "text"),
        ("bytes more = 11;", b"\0\1"),
        ("bytes more = 2000;  // int32", np.array([1, 2], np.int32)),
        ("optional bytes more = 12;  // float32", np.array([0.5], np.float32)),
        ("repeated int64 more = 13;", [1, -2]),
        ("map<string, double> more = 14;", {"a": 0.5}),
        ("map<string, Tensor> more = 15;", {"a": TensorData([1.0], "float32", [1])}),
        ("optional Tensor more = 16;", TensorData([[1], [2]], "int64", [2, 1])),
        ("repeated Tensor more = 17;", [TensorData([3.0], "float32", [1])]),
        ("StopReason more = 18;", "length"),
    ],
)
def test_a_new_field_is_one_edit(tmp_path: Path, field: str, value: Any) -> None:
    """A field that is added to the .proto is written and read, whatever it is and whatever its number."""
    longer = attrs.make_class(
        "Longer",
        {"more": attrs.field(default=None)},
        bases=(SampleResponse,),
        frozen=True,
        slots=False,
    )
    codec = ModuleType("codec")
    exec(make_codec(tmp_path, f"  {field}\n"), codec.__dict__)
    codec.__dict__["SampleResponse"] = longer
    sent = longer([SampledSequence("stop", tokens=[1])], more=value)
    read = codec.decode_sample(codec.encode_sample(sent))
    assert read.sequences == sent.sequences
    np.testing.assert_equal(read.more, value)
    assert type(read.more) is type(value)


@pytest.mark.parametrize(
    "field",
    [
        "float more = 7;",
        "repeated string more = 7;",
        "repeated uint32 more = 7;",
        "repeated bytes more = 7;  // int32",
        "map<string, string> more = 7;",
        "int32 more = 7;  // int64",
        "bytes more = 7;  // int8",
    ],
)
def test_other_kinds_are_refused(tmp_path: Path, field: str) -> None:
    """A field that the codec cannot have is refused by its name, not left out."""
    with pytest.raises(Refusal, match=r"SampleResponse.more"):
        make_codec(tmp_path, f"  {field}\n")


def test_the_committed_codec_is_current(tmp_path: Path) -> None:
    """The same .proto gives the same text, which is that of the package."""
    assert make_codec(tmp_path, "") == (ROOT / "tinker" / "_wire" / "proto.py").read_text(
        encoding="utf-8"
    )
