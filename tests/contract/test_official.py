"""openapi.yaml and the .proto against wheels of the official SDK and the recorded exchanges."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract.official.decoded import decode
from google.protobuf import descriptor_pb2
from support.google_messages import google_messages
from support.recordings import messages

from codegen.files import ROOT, load
from codegen.follow import DIFFERENCES, compare_document, compare_facts
from codegen.wheel_facts import describe_messages

OFFICIAL = Path(__file__).with_name("official")
LATEST = "0.38.0"
DEFAULTS = (False, [], "STOP_REASON_STOP")


def facts(version: str) -> dict[str, Any]:
    """Return the facts read from a wheel."""
    found: dict[str, Any] = json.loads((OFFICIAL / f"{version}.json").read_text(encoding="utf-8"))
    return found


def test_the_generator_and_the_tests_read_the_same(document: Any) -> None:
    """The document has the same values for both readers of YAML, which are of two versions."""
    assert document == load(ROOT / "openapi.yaml")


# -------------------------------------------------------------------------------- classes and paths


def test_the_document_has_all_of_the_official_sdk(document: Any) -> None:
    """All of the wheel is in openapi.yaml, and nothing else is, but for listed reasons."""
    assert list(compare_document(document, facts(LATEST))) == []


def test_every_listed_difference_is_one(
    document: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A reason for a difference that is none any more must go."""
    empty = tmp_path / "none.toml"
    known = tomllib.loads(DIFFERENCES.read_text(encoding="utf-8"))
    empty.write_text("\n".join(f"[{section}]" for section in known), encoding="utf-8")
    monkeypatch.setattr("codegen.follow.DIFFERENCES", empty)
    text = "\n".join(compare_document(document, facts(LATEST)))
    assert [name for section in known.values() for name in section if name not in text] == []


def test_a_header_that_is_not_named_is_found(document: Any) -> None:
    """The document names each header of the wheel; `test_seeded_faults.py` has other differences."""
    broken = deepcopy(document)
    broken["info"]["description"] = broken["info"]["description"].replace(
        "`x-sdk-method`", "another"
    )
    assert list(compare_document(broken, facts(LATEST))) != []


def test_following_a_release(document: Any) -> None:
    """The changes between releases are named, also backwards, with the YAML of additions."""
    changes = "\n".join(compare_facts(facts("0.35.0"), facts("0.36.0")))
    assert "added path POST /api/v1/sessions/search\n" in changes
    assert (
        "added class ActiveSessionStatusQuery\n    ActiveSessionStatusQuery:\n      type: object\n"
        in changes
    )
    assert list(compare_facts(facts("0.36.0"), facts("0.38.0"))) == [
        "added header www-authenticate",
        "changed class ClientConfigResponse.create_model_via_load_weights: bool -> nothing",
        "changed class SaveWeightsForSamplerRequest.kind: nothing -> SamplingClientKind",
        "changed class StorageBillingEvent.free: nothing -> bool",
        "added choice SamplingClientKind",
    ]
    backwards = list(compare_document(document, facts("0.36.0")))
    assert (
        "is property SaveWeightsForSamplerRequest.kind still sent? 0.36.0 does not have it; if it "
        "is, write under "
        "[additions] of "
        'codegen/official_differences.toml: "SaveWeightsForSamplerRequest.kind" = "WHY"'
    ) in backwards


# ------------------------------------------------------------------------------ since which release

#: What a release reads without a class or a path of its own, so that the table cannot have it:
#: found by text in the wheels.
NOT_IN_CLASSES = {"FutureStatus.queue_state_reason": "0.7.0"}


def dated(document: Any) -> Iterator[tuple[str, str, str]]:
    """Yield each thing that says since which release it is there, that release, the evidence."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield from _dated(f"{method.upper()} {re.sub(r'{[^}]*}', '{}', path)}", operation)
    for name, schema in document["components"]["schemas"].items():
        yield from _dated(name, schema)
        for field, node in schema.get("properties", {}).items():
            yield from _dated(f"{name}.{field}", node)


def _dated(name: str, node: Any) -> Iterator[tuple[str, str, str]]:
    evidence = str(node.get("x-evidence", ""))
    for value, version in re.findall(r"(?:(\w+) )?since (\d+\.\d+\.\d+)", evidence):
        yield f"{name} {value}".strip(), version, evidence


def wrong_dates(document: Any) -> list[str]:
    """Say which evidence names another release than the first that has it."""
    table = json.loads((OFFICIAL / "first_seen.json").read_text(encoding="utf-8"))
    first = table["first"] | NOT_IN_CLASSES
    return [
        (
            f"openapi.yaml: the evidence of {name} says since {version}; first_seen.json says "
            f"{first.get(name, 'nothing')}"
        )
        for name, version, evidence in dated(document)
        if first.get(name) != version
        and (version in table["versions"] or "not on the package index" not in evidence)
    ]


def test_the_first_release_in_evidence_is_the_first_that_has_it(document: Any) -> None:
    """`since` is what all wheels say, or says that the index does not have that release."""
    assert len(list(dated(document))) >= 8
    assert wrong_dates(document) == []


def test_a_wrong_first_release_is_found(document: Any) -> None:
    """A release that is too late, and an unknown one without a note, are found."""
    broken = deepcopy(document)
    broken["components"]["schemas"]["SampleRequest"]["properties"]["topk_sample_logprobs"][
        "x-evidence"
    ] = "since 0.38.0"
    broken["components"]["schemas"]["Checkpoint"]["properties"]["base_model"]["x-evidence"] = (
        "read; since 0.39.0"
    )
    assert [line.split(" says since ")[0].rsplit(" ", 1)[1] for line in wrong_dates(broken)] == [
        "Checkpoint.base_model",
        "SampleRequest.topk_sample_logprobs",
    ]


# ----------------------------------------------------------------------------------------- messages


def messages_of_ours() -> dict[str, Any]:
    """Return the messages and enums of tinker_public.proto."""
    described = descriptor_pb2.FileDescriptorProto()
    next(iter(google_messages().values())).DESCRIPTOR.file.CopyToProto(described)
    return describe_messages(described)


def test_every_message_is_the_official_one() -> None:
    """Each field of the .proto has the official name, number, type and label; so have enums."""
    ours, official = messages_of_ours(), facts(LATEST)
    unused = {"SamplingParams", "StopStrings", "StopTokens"}
    assert official["messages"].keys() - ours["messages"].keys() <= unused
    assert ours["messages"] == {name: official["messages"][name] for name in ours["messages"]}, (
        f"tinker_public.proto differs from {LATEST}; for a newer release write its facts: python "
        "-m codegen follow WHEEL --facts "
        "> tests/contract/official/VERSION.json, and raise LATEST"
    )
    assert ours["enums"] == {name: official["enums"][name] for name in ours["enums"]}


def test_recorded_bytes_mean_what_the_recording_says() -> None:
    """Every recorded message has the fields and values of its decoded form, and no others."""
    kinds, recorded = google_messages(), list(messages())
    assert len(recorded) > 80
    assert [
        place
        for place, name, decoded, content in recorded
        if not is_same(decode(kinds[name].FromString(content)), decoded)
    ] == []


def is_same(found: Any, recorded: Any) -> bool:
    """Whether a value is the recorded one, to float32; a recording also shows some defaults."""
    if isinstance(found, dict):
        shown = {
            name: one for name, one in recorded.items() if name in found or one not in DEFAULTS
        }
        return found.keys() == shown.keys() and all(
            is_same(found[name], shown[name]) for name in found
        )
    if isinstance(found, list):
        return len(found) == len(recorded) and all(map(is_same, found, recorded))
    return bool(
        np.float32(found) == np.float32(recorded) if isinstance(found, float) else found == recorded
    )
