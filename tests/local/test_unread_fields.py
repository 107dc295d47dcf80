"""Unknown fields of bodies."""

from __future__ import annotations

import logging

import pytest
from support.api import Api, MakeApi, loss_body, sample_body
from tinker_wire import models

from tinker.local.call import HEADER, MAX_NAMED, find_unknown_fields

SAMPLE = models.SampleRequest


@pytest.mark.parametrize(
    ("content", "kind", "found"),
    [
        (
            b'{"sampling_params": {"typical_p": 0.1, "top_p": 1}}',
            SAMPLE,
            ["sampling_params.typical_p"],
        ),
        (
            b'{"prompt": {"chunks": [{"type": "encoded_text", "tokens": [1], "x": 2}]}}',
            SAMPLE,
            ["prompt.chunks.x"],
        ),
        (
            b'{"lora_config": {"rank": 1, "dropout": 2}, "colour": 1}',
            models.CreateModelRequest,
            ["lora_config.dropout", "colour"],
        ),
        (b'{"typical_p": null, "type": "sample"}', SAMPLE, []),
        (b'{"user_metadata": {"anything": {"at": "all"}}}', models.CreateModelRequest, []),
        (b'{"a\\nb: c": 1}', SAMPLE, ["a?b??c"]),
        # a header cannot end with an empty name
        (b'{"prompt": {"": 1}, "": 1}', SAMPLE, ["prompt.?", "?"]),
        (
            b'{"events": [{"event": "GENERIC_EVENT", "event_name": "epoch", "x": 1}]}',
            models.TelemetrySendRequest,
            ["events.x"],
        ),
        (b"[1]", SAMPLE, []),
        (b"{", SAMPLE, []),
        (b'{"sampling_params": 5, "prompt": {"chunks": 5}}', SAMPLE, []),
    ],
)
def test_what_a_record_has_no_place_for_is_found(
    content: bytes, kind: type, found: list[str]
) -> None:
    """Unknown fields with a value are found in nested records, but not in free-form maps."""
    assert list(find_unknown_fields(content, kind)) == found


def test_the_field_that_was_probably_meant_is_named() -> None:
    """A misspelling, or another library's name, is matched to the field at its place."""
    content = (
        b'{"sampling_params": {"temprature": 1, "max_new_tokens": 2, "typical_p": 0.1}, "n": 2}'
    )
    assert find_unknown_fields(content, SAMPLE) == {
        "sampling_params.temprature": "temperature",
        "sampling_params.max_new_tokens": "max_tokens",
        "sampling_params.typical_p": None,
        "n": "num_samples",
    }


def test_not_more_is_named_than_a_header_holds() -> None:
    """A request with thousands of unknown fields gets only as many names as a header holds."""
    content = b"{" + b",".join(b'"%d%s": 1' % (number, b"x" * 500) for number in range(1000)) + b"}"
    found = find_unknown_fields(content, SAMPLE)
    assert len(found) == MAX_NAMED
    assert max(map(len, found)) == 100


def test_an_unread_field_is_named_in_the_answer_and_once_in_the_log(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    """An unknown field is named in the response and once in the log, and ignored."""
    body = sample_body(None, base_model="tinker/toy", params={"typical_p": 0.1})
    with caplog.at_level(logging.WARNING, logger="tinker.local"):
        answers = [api.call("asample", body) for _ in range(3)]
        plain = api.call("asample", sample_body(None, base_model="tinker/toy"))
    assert [(answer.status_code, answer.headers[HEADER]) for answer in answers] == [
        (200, "sampling_params.typical_p")
    ] * 3
    assert HEADER not in plain.headers
    assert [record.getMessage() for record in caplog.records] == [
        "asample: unknown field sampling_params.typical_p was ignored"
    ]


def test_a_strict_server_refuses_them(make_api: MakeApi) -> None:
    """A strict server names each unknown field, and does not use up the request's number."""
    api = make_api(strict=True)
    session = api.session()
    wrong = {
        "session_id": session,
        "model_seq_id": 0,
        "base_model": "tinker/toy",
        "lora_config": {"rank": 4, "sed": 2},
    }
    status, detail = api.refused("create_model", wrong)
    told = {
        "loc": ["body", "lora_config", "sed"],
        "msg": "unknown field; did you mean 'seed'?",
        "type": "extra_forbidden",
    }
    assert (status, detail) == (422, [told])
    model = api.model(session)
    assert api.refused("forward_backward", {**loss_body(model, 1), "extra": True})[0] == 422
    assert api.metrics(api.loss(model, 1))["tokens:sum"] == 2
