"""A protobuf message in the form of the recordings: its fields by name, arrays of bytes as numbers."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

#: How the decoded form calls a field of bytes, and the numbers in it.
ARRAYS = {
    "tokens": ("tokens_int32", "<i4"),
    "token_ids": ("token_ids_int32", "<i4"),
    "logprobs": ("logprobs_float32", "<f4"),
    "prompt_logprobs": ("prompt_logprobs_float32 (null=NaN)", "<f4"),
    "offsets": ("offsets_int64_bytes", "<i8"),
    "crow_indices": ("crow_indices", "<i8"),
    "col_indices": ("col_indices", "<i8"),
}
DTYPES = {"DTYPE_FLOAT32": "<f4", "DTYPE_INT64": "<i8", "DTYPE_INT32": "<i4"}


def decode(message: Any, dtype: str = "") -> dict[str, Any]:
    """Return the fields that are set; a message may say what the numbers in it are."""
    kind = message.DESCRIPTOR.fields_by_name.get("dtype")
    if kind is not None:
        dtype = DTYPES.get(kind.enum_type.values_by_number[message.dtype].name, "")
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if isinstance(value, bytes):
            name, form = ARRAYS.get(field.name, (field.name, dtype))
            found[name] = numbers(value, form) if form else base64.b64encode(value).decode()
        elif is_map:
            found[field.name] = {key: plain(field, one, dtype) for key, one in value.items()}
        elif isinstance(value, str) or not hasattr(value, "__len__"):
            found[field.name] = plain(field, value, dtype)
        else:
            found[field.name] = [plain(field, one, dtype) for one in value]
    return found


def numbers(content: bytes, form: str) -> list[Any]:
    return [None if one != one else one for one in np.frombuffer(content, form).tolist()]


def plain(field: Any, value: Any, dtype: str) -> Any:
    if hasattr(value, "ListFields"):
        return decode(value, dtype)
    return field.enum_type.values_by_number[value].name if field.enum_type else value
