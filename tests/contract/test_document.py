"""The document describes itself: its version, and which limits are guesses."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import tinker_wire

import tinker
from codegen.diff.contracts import compare
from codegen.diff.findings import DiffFinding
from codegen.diff.sources import read_source
from codegen.document import LIMITS, METHODS, Refusal

ROOT = Path(__file__).resolve().parents[2]
SEEN = """
    parameters/CheckpointId parameters/DayQuery parameters/RequestIteration
    UserSearchOwner.owner_urns ClientFinishedSessionStatusQuery.reasons SessionSearchRequest.display_name
    SessionSearchRequest.statuses SessionSearchRequest.limit CheckpointSearchRequest.limit
    CreateModelRequest.model_seq_id LoadWeightsRequest.model_seq_id CopyWeightsRequest.model_seq_id
    ForwardBackwardRequest.seq_id ForwardRequest.seq_id OptimStepRequest.seq_id SaveWeightsRequest.seq_id
    SaveWeightsForSamplerRequest.seq_id SaveWeightsExternalRequest.seq_id LoadWeightsRequest.seq_id SampleRequest.seq_id
    CreateSamplingSessionRequest.sampling_session_seq_id SaveWeightsForSamplerRequest.sampling_session_seq_id
    CreateCustomLossRequest.custom_loss_seq_id CreateCustomLossRequest.inputs CustomLossInput.name CustomLossInput.rank
    CustomLossGraph.format DimuonParams.learning_rate DimuonOptimizerConfig.version TtlSeconds
    SaveWeightsExternalRequest.age_encryption_recipients SampleRequest.topk_prompt_logprobs SampleRequest.topk_sample_logprobs
    SampleRequest.prompt_alt_tokens_k
    SampleRequest.prompt_logprobs_last_n TokenLogprob TelemetrySendRequest.events Checkpoint.checkpoint_id
"""
#: Limits that a client or a server was seen to keep, or that are a form and no limit: the only ones
#: that are not assumed.
KNOWN_LIMITS = frozenset(SEEN.split())


def limited(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each schema with a limit, and where it stands."""
    for name, schema in document["components"]["schemas"].items():
        yield from _limited(name, schema)
    for name, parameter in document["components"]["parameters"].items():
        yield from _limited(f"parameters/{name}", parameter["schema"])


def _limited(place: str, schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if LIMITS & schema.keys():
        yield place, schema
    for name, inner in schema.get("properties", {}).items():
        yield from _limited(f"{place}.{name}", inner)
    if "items" in schema:
        yield from _limited(place, schema["items"])


def test_guessed_limits_are_marked(document: dict[str, Any]) -> None:
    """A limit is either listed as observed or marked as assumed; never both."""
    found = list(limited(document))
    assert len(found) > 90
    unmarked = {place for place, schema in found if not schema.get("x-assumed")}
    advice = (
        "write `x-assumed: true` beside it in openapi.yaml, or, if it was observed, its name in "
        "SEEN of test_document.py"
    )
    assert [f"the limit of {place}: {advice}" for place in sorted(unmarked - KNOWN_LIMITS)] == []
    assert [
        f"{place} has no limit, or is assumed: take it out of SEEN"
        for place in sorted(KNOWN_LIMITS - unmarked)
    ] == []
    assert {place for place, schema in found if schema.get("x-assumed")} & KNOWN_LIMITS == set()


def test_only_limits_are_assumed(document: dict[str, Any]) -> None:
    """The mark belongs to limits only: any other assumption is in the evidence."""
    text = (ROOT / "openapi.yaml").read_text(encoding="utf-8")
    marked = [place for place, schema in limited(document) if schema.get("x-assumed")]
    assert text.count("x-assumed: true") - text.count("`x-assumed: true`") == len(marked)


def test_the_contract_has_a_version_of_its_own(document: dict[str, Any]) -> None:
    """`info.version` heads the changelog; the official surface is the version we report."""
    info = document["info"]
    assert info["version"] == tinker_wire.CONTRACT_VERSION
    assert info["x-official-surface"] == tinker_wire.OFFICIAL_SURFACE == tinker.__version__
    page = (ROOT / "docs" / "contract" / "versions.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (\d+\.\d+\.\d+)$", page, re.MULTILINE)
    assert versions[0] == info["version"]
    assert versions == sorted(
        versions, key=lambda one: [int(number) for number in one.split(".")], reverse=True
    )


def unlisted_results(document: dict[str, Any]) -> list[str]:
    """Say which results of futures `FutureAnswer` does not list, and what to write where."""
    lines = (ROOT / "openapi.yaml").read_text(encoding="utf-8").splitlines()
    last = max(
        number
        for number, line in enumerate(lines, 1)
        if line.startswith("              - {$ref: '#/components/schemas/")
    )
    listed = document["components"]["schemas"]["FutureAnswer"]["else"]["else"]["else"]["anyOf"]
    operations = [
        item[method] for item in document["paths"].values() for method in METHODS if method in item
    ]
    return [
        (
            f"{one['operationId']}: write `- {{$ref: '{one['x-result']['$ref']}'}}` after line "
            f"{last} of openapi.yaml, in FutureAnswer"
        )
        for one in operations
        if "x-result" in one and one["x-result"] not in listed
    ]


def test_every_result_of_a_future_is_listed(document: dict[str, Any]) -> None:
    """What `x-result` promises is among the answers of `retrieve_future`."""
    assert unlisted_results(document) == []


def test_an_unlisted_result_is_found(document: dict[str, Any]) -> None:
    """A new result that is missing in `FutureAnswer` is named with the line to write it after."""
    grown = copy.deepcopy(document)
    grown["paths"]["/api/v1/optim_step"]["post"]["x-result"] = {
        "$ref": "#/components/schemas/MergeWeightsResponse"
    }
    (found,) = unlisted_results(grown)
    text, line = (
        (ROOT / "openapi.yaml").read_text(encoding="utf-8").splitlines(),
        re.search(r"after line (\d+)", found),
    )
    assert line is not None
    assert "/UnloadModelResponse'" in text[int(line[1]) - 1]


def lowest_version(before: str, findings: Sequence[DiffFinding]) -> str:
    """Return the version that these changes demand, as docs/contract/versions.md says."""
    first, second, _ = (int(number) for number in before.split("."))
    if any({"clients", "servers"} & set(one.breaks) for one in findings):
        return f"{first + 1}.0.0"
    return f"{first}.{second + 1}.0" if findings else before


def too_low(before: str, now: str, findings: Sequence[DiffFinding]) -> str | None:
    """Say what to write where the version is lower than the changes since a release demand."""
    needed = lowest_version(before, findings)
    if [int(number) for number in now.split(".")] >= [int(number) for number in needed.split(".")]:
        return None
    return (
        f"write `version: {needed}` under `info` in openapi.yaml, and `## {needed}` at the top of "
        "docs/contract/versions.md"
    )


def test_the_version_is_raised_since_the_release(document: dict[str, Any]) -> None:
    """The version is as much higher than the last release's as the changes demand."""
    commit = tomllib.loads((ROOT / "tools" / "released.toml").read_text(encoding="utf-8"))["commit"]
    try:
        released = read_source(commit)
    except (OSError, Refusal):
        pytest.skip("a shallow clone does not contain the last release")
    findings = compare(released, read_source(str(ROOT)))
    assert (
        too_low(released.document["info"]["version"], document["info"]["version"], findings) is None
    )


def test_a_version_that_is_too_low_is_found() -> None:
    """An addition demands the second number, a break the first; what to write is said."""
    added, broken = DiffFinding("r", "#", "s", ()), DiffFinding("r", "#", "s", ("servers",))
    assert "`version: 1.3.0` under `info`" in str(too_low("1.2.0", "1.2.1", [added]))
    assert "`version: 2.0.0` under `info`" in str(too_low("1.2.0", "1.3.0", [added, broken]))
    assert too_low("1.2.0", "1.3.0", [added]) is too_low("1.2.0", "1.2.0", []) is None


# ------------------------------------------------------------------------------- words and examples


def described(document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Everything that a reader may ask about, from operations to properties."""
    components = document["components"]
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                yield f"{method} {path}", item[method]
    for section in ("parameters", "headers", "responses", "securitySchemes"):
        yield from ((f"{section}/{name}", node) for name, node in components[section].items())
    for name, schema in components["schemas"].items():
        yield name, schema
        yield from (
            (f"{name}.{field}", node) for field, node in schema.get("properties", {}).items()
        )


def test_everything_is_described(document: dict[str, Any]) -> None:
    """Each operation, schema and property has a description of at least a sentence."""
    found = list(described(document))
    assert len(found) > 700
    assert [place for place, node in found if not node.get("description", "").strip()] == []
    assert [place for place, node in found if node["description"].strip()[-1] not in ".`:?"] == []


def test_descriptions_say_more_than_names(document: dict[str, Any]) -> None:
    """No description is a few letters, and none repeats the summary of its operation."""
    found = list(described(document))
    assert [place for place, node in found if len(node["description"]) < 6] == []
    assert [
        place for place, node in found if node.get("summary", "") == node["description"].strip()
    ] == []


def test_every_body_has_an_example(document: dict[str, Any]) -> None:
    """Each request and each successful answer with a JSON body shows one."""
    lacking = [
        f"{place} {where}"
        for place, node in described(document)
        if "operationId" in node
        for where, media in json_contents(node, document)
        if not media.get("examples") and not media.get("example")
    ]
    assert lacking == []


def json_contents(operation: Any, document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the JSON forms of an operation's request and of its successes."""
    responses = operation["responses"].items()
    bodies = [("request", operation.get("requestBody", {}))] + [
        (status, node) for status, node in responses if status[0] == "2"
    ]
    for where, node in bodies:
        target = (
            document["components"]["responses"][node["$ref"].rsplit("/", 1)[1]]
            if "$ref" in node
            else node
        )
        if "application/json" in target.get("content", {}):
            yield where, target["content"]["application/json"]


def examples(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each schema with each of its examples, anywhere in a part of the document."""
    if isinstance(node, list):
        for item in node:
            yield from examples(item)
    if not isinstance(node, dict):
        return
    if "schema" in node and isinstance(node.get("examples"), dict):
        yield from ((node["schema"], example) for example in node["examples"].values())
    if "schema" in node and "example" in node:
        yield node["schema"], node["example"]
    if isinstance(node.get("examples"), list):
        yield from ((node, example) for example in node["examples"])
    for value in node.values():
        yield from examples(value)


def misfits(document: dict[str, Any]) -> list[str]:
    """Return the examples that do not fit their schema."""
    components, found = document["components"], []
    for schema, example in examples(
        {key: value for key, value in document.items() if key != "info"}
    ):
        if isinstance(example, dict) and "$ref" in example:
            example = components["examples"][example["$ref"].rsplit("/", 1)[1]]
        value = example["value"] if isinstance(example, dict) and "value" in example else example
        if schema.get("format") == "binary":
            continue
        check = jsonschema_rs.validator_for(
            {**schema, "components": components}, validate_formats=True
        )
        found += [f"{example}: {error.message}" for error in check.iter_errors(value)]
    return found


def test_examples_fit(document: dict[str, Any]) -> None:
    """Every example fits its schema."""
    assert len(list(examples(document))) > 90
    assert misfits(document) == []


def test_an_example_that_does_not_fit_is_found(document: dict[str, Any]) -> None:
    """An example of which one field is renamed, and one of another type, are found."""
    broken = copy.deepcopy(document)
    broken["components"]["examples"]["client_config_request"]["value"] = {"sdk": "1"}
    broken["components"]["schemas"]["TtlSeconds"]["examples"] = [1]
    assert len(misfits(broken)) >= 2


def speaks_for_itself(schema: dict[str, Any]) -> bool:
    """Whether an example would say nothing that the schema, or another one, does not."""
    inner = schema.get("items", {})
    return (
        not {"$ref", "oneOf", "const", "enum", "prefixItems"}.isdisjoint(schema)
        or "$ref" in inner
        or set(schema["type"] if isinstance(schema["type"], list) else [schema["type"]])
        <= {"boolean", "null"}
    )


def test_every_property_has_an_example(document: dict[str, Any]) -> None:
    """Where an example says something there is one."""
    schemas = document["components"]["schemas"]
    fields = {
        f"{name}.{field}": one
        for name, schema in schemas.items()
        for field, one in schema.get("properties", {}).items()
    }
    with_example = {place: one for place, one in fields.items() if not speaks_for_itself(one)}
    assert len(with_example) > 250
    advice = "write `examples: [...]` beside it in openapi.yaml"
    assert [
        f"{place} has no example: {advice}"
        for place, one in with_example.items()
        if not one.get("examples")
    ] == []
