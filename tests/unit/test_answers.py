"""What answers may leave out or set to null: whatever the official client reads, ours reads too."""

from __future__ import annotations

import json
import types
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tinker_wire import models

# Made by tests/compat/surface/answers.py.
FACTS: dict[str, dict[str, dict[str, bool]]] = json.loads(
    (Path(__file__).parents[1] / "compat" / "surface" / "official" / "0.38.0-answers.json").read_text()
)
SHARED = {name: fields for name, fields in FACTS.items() if hasattr(models, name)}
MADE_HERE = {
    "ParsedCheckpointTinkerPath",
    "PromptAltTokens",
    "PromptProvenanceSpan",
    "SampledProvenanceSpan",
    "SaveWeightsExternalResponse",
    "SaveWeightsForSamplerResponse",
    "TelemetryBatch",
    "WhoamiResponse",
}
RESULTS: list[tuple[type[msgspec.Struct], dict[str, Any]]] = [
    (models.GetInfoResponse, {"model_data": {}, "model_id": "m"}),
    (models.UnloadModelResponse, {"model_id": "m"}),
    (models.SaveWeightsResponse, {"path": "tinker://r/weights/a"}),
    (models.SaveWeightsForSamplerResponseInternal, {"path": "tinker://r/sampler_weights/a"}),
    (models.SaveWeightsExternalResponseInternal, {"path": "tinker://r/external_weights/a"}),
    (models.LoadWeightsResponse, {}),
]


def takes_none(annotation: object) -> bool:
    """Whether null fits."""
    if typing.get_origin(annotation) is typing.Annotated:
        return takes_none(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(map(takes_none, typing.get_args(annotation)))
    return annotation in (None, type(None), Any)


def ours(record: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """The fields of a record by the names they have on the wire."""
    return {field.encode_name: field for field in msgspec.structs.fields(record)}


def stricter(record: type[msgspec.Struct], official: dict[str, dict[str, bool]]) -> list[str]:
    """The fields that the official client reads without a value, or as null, and ours does not."""
    pairs = [(ours(record)[name], fact) for name, fact in official.items() if name in ours(record)]
    nulls = [f"{field.name} is not null" for field, fact in pairs if fact["nullable"] and not takes_none(field.type)]
    return [*nulls, *(f"{field.name} is required" for field, fact in pairs if field.required and not fact["required"])]


@pytest.mark.parametrize("name", SHARED)
def test_an_answer_is_read_wherever_the_official_client_reads_it(name: str) -> None:
    """No field of an answer that both clients have is required, or refused as null, by ours alone."""
    assert stricter(getattr(models, name), SHARED[name]) == []


def test_every_answer_is_compared() -> None:
    """The official answers without a record of the same name are those that the client makes itself."""
    assert FACTS.keys() - SHARED.keys() == MADE_HERE


def test_a_stricter_answer_is_found() -> None:
    """The comparison names a field that is required and one that must not be null."""
    official = {"session_id": {"nullable": True, "required": False}}
    assert stricter(models.CreateSessionResponse, official) == ["session_id is not null", "session_id is required"]


@pytest.mark.parametrize(("record", "body"), RESULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_type_that_is_null_is_read(record: type[msgspec.Struct], body: dict[str, Any]) -> None:
    """A server that writes absent fields as null is understood."""
    assert msgspec.convert({**body, "type": None}, record) == msgspec.structs.replace(msgspec.convert(body, record), type=None)
