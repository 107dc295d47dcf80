"""The exchange log: it shows what happened and no secrets."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.tls import server_context, write_authority

import tinker
from tinker._basics.shown import HIDDEN
from tinker._http.messages import PreparedRequest, RawResponse
from tinker.observing import ExchangeRecord, log_exchanges
from tinker.observing.logs import Redactor
from tinker.testing import FaultyServer, toy_server

Connect = Callable[..., tinker.ServiceClient]
KEY = "tml-hush-key-1"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJodXNoIn0.aHVzaC1zaWduYXR1cmU"
SECRETS = (KEY, "hush", JWT, "aHVzaC1zaWduYXR1cmU")


@contextlib.contextmanager
def reach(server: FaultyServer, protocol: str | None, folder: Path) -> Iterator[Connect]:
    """Create clients of a server in this process, or on a port with TLS (``ca.pem``)."""
    if protocol is None:
        yield server.service
        return
    write_authority(folder)
    with (
        server.on_port(ssl_context=server_context(protocol)) as url,
        contextlib.ExitStack() as made,
    ):
        yield lambda **how: made.enter_context(tinker.ServiceClient(base_url=url, **how))


def redactor(**fields: Any) -> Redactor:
    given: dict[str, Any] = {
        "method": "POST",
        "url": "https://host/api/v1/x",
        "headers": {"X-API-Key": KEY},
        **fields,
    }
    return Redactor(PreparedRequest(**given, nbytes=sum(map(len, given.get("body", ())))))


def shown_of(value: object, **fields: Any) -> str:
    """Return the body of a request as the log shows it."""
    body = (json.dumps(value).encode(),)
    headers = {"X-API-Key": KEY, "Content-Type": "application/json"}
    return str(redactor(body=body, headers=headers, **fields).request_body())


@pytest.mark.parametrize("protocol", [None, "http/1.1", "h2"])
def test_the_log_of_a_session_shows_no_secret(
    protocol: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training, sampling, links and the exchange of keys are logged without their secrets."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    file = tmp_path / "log.jsonl"
    headers = {"X-Team": "hush-team"}
    with (
        toy_server(api_key=KEY) as server,
        log_exchanges(file),
        reach(server, protocol, tmp_path) as make,
    ):
        service = make(
            api_key=KEY, default_headers_overrides=headers, default_query={"k": "hush-query"}
        )
        training = service.create_lora_training_client("tinker/toy", rank=4)
        path = training.save_weights_for_sampler("s").result(10).path
        rest = service.create_rest_client()
        answer = rest.get_checkpoint_archive_url_from_tinker_path(path).result(10)
        rest.list_sessions(limit=3).result(10)
    text = file.read_text()
    records = [json.loads(line) for line in text.splitlines()]
    assert {"create_session", "create_model", "save_weights_for_sampler", "list_sessions"} <= {
        one["operation"] for one in records
    }
    assert not [secret for secret in (*SECRETS, answer.url) if secret in text]
    listed = next(one for one in records if one["operation"] == "list_sessions")
    assert (listed["method"], listed["path"], listed["status"]) == (
        "GET",
        "/api/v1/sessions?limit=3&offset=0&access_scope=owned",
        200,
    )
    assert listed["request_headers"]["x-api-key"] == listed["request_headers"]["x-team"] == HIDDEN
    assert listed["request_headers"]["user-agent"].startswith("tinker-open-client/")
    assert listed["response_nbytes"] == len(listed["response_body"]) > 0
    assert listed["error"] is None


@pytest.mark.parametrize(
    "value",
    [
        {"jwt": "hush"},
        {"weights_access_token": "hush", "token": "hush"},
        {"a": [{"b": {"client_secret": {"deep": "hush"}}}]},
        {
            "password": "hush",
            "AWS_SECRET_ACCESS_KEY": "hush",
            "apiKey": "hush",
            "Set-Cookie": "hush",
        },
        {"url": "https://storage.example/hush?sig=1", "urls": {"a": "hush"}},
        {"note": f"my key is {KEY}, and {JWT} too"},
        {"note": "see https://me:hush@storage.example/a?X-Amz-Signature=hush"},
        {"note": "Authorization: Bearer hush"},
        {KEY: 1},
        [[f"x{KEY}y"]],
    ],
)
def test_secrets_in_bodies(value: object) -> None:
    """A secret is hidden by its name, by its form, or as a credential of the request."""
    shown = shown_of(value)
    assert not [secret for secret in SECRETS if secret in shown]
    assert HIDDEN in shown


def test_values_that_are_not_secret_are_shown() -> None:
    """Text tokens, limits and names are shown, as bug reports need them."""
    value = {"tokens": [1, 2, 3], "max_tokens": 5, "target_tokens": {"data": [4]}}
    value |= {"name": "a", "found": None, "url": None}
    assert json.loads(shown_of(value)) == value


def test_long_bodies_are_truncated() -> None:
    """Long lists, texts and bodies are truncated, and lists in lists after eight; large and binary
    bodies are shown as a summary.
    """
    assert json.loads(shown_of(list(range(100)))) == [0, 1, 2, 3, 4, 5, 6, 7, "... 100 items"]
    assert len(shown_of("x" * 10_000)) < 300
    assert len(shown_of({str(number): "x" * 150 for number in range(40)})) < 2100
    deep: object = 1
    for _ in range(100):
        deep = [deep]
    assert shown_of(deep) == "[" * 8 + '"..."' + "]" * 8
    assert shown_of("x" * (1 << 21)) == "<application/json>"
    for body, media_type, shown in (
        (b"hush", "application/x-protobuf", "<application/x-protobuf>"),
        (b"{hush", "application/json", "<not JSON>"),
    ):
        headers = {"Content-Type": media_type}
        assert redactor(body=(body,), headers=headers).request_body() == shown
    assert redactor().request_body() is None


def test_the_answer_to_a_credential_is_hidden() -> None:
    """The response to a request that carries a secret is hidden entirely."""
    request = PreparedRequest(
        method="POST", url="https://host/x", headers={}, has_own_credential=True
    )
    response = RawResponse(request, 200, {"content-type": "application/json"}, b'{"other": "hush"}')
    assert Redactor(request).response_body(response) == HIDDEN


def test_failures_are_logged(connect: Connect, wire: Any) -> None:
    """Broken and refused exchanges are logged with the reason; a failing sink changes nothing."""
    seen: list[ExchangeRecord] = []

    def fail(record: ExchangeRecord) -> None:
        raise ZeroDivisionError

    service = connect()
    service.get_server_capabilities()
    wire.drop("get_server_capabilities", apply=False)
    wire.fail("get_server_capabilities", 503, body={"detail": "no"})
    with log_exchanges(seen.append), log_exchanges(fail):
        service.get_server_capabilities()
    mine = [one for one in seen if one.operation == "get_server_capabilities"]
    assert [one.status for one in mine] == [None, 503, 200]
    assert "the connection broke" in str(mine[0].error)
    assert mine[1].response_body == '{"detail":"no"}'
    del seen[:]
    service.get_server_capabilities()
    assert seen == []


def test_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """TINKER_DUMP_HTTP=1 writes to standard error, a path to that file, and 0 nowhere."""
    for value, where in (("1", "stderr"), ("0", "nowhere"), (str(tmp_path / "dump"), "file")):
        monkeypatch.setenv("TINKER_DUMP_HTTP", value)
        with toy_server() as server:
            server.service(api_key=KEY).get_server_capabilities()
        assert ("get_server_capabilities" in capfd.readouterr().err) == (where == "stderr")
    text = (tmp_path / "dump").read_text()
    assert "get_server_capabilities" in text
    assert KEY not in text
