"""The endpoints for people and monitors, the request log and the start message."""

from __future__ import annotations

import logging
import re
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.api import Api, MakeApi, datum
from tinker_wire.operations import OPERATIONS

import tinker
import tinker.local
from tinker.local import Settings, running_server
from tinker.local.engines.toy import ToyEngine
from tinker.local.serving import announce, describe_start

KEY = "a key that nobody may read"


def ask(api: Api, path: str, **headers: str) -> httpx.Response:
    """Return the response to a GET."""
    return api.get(path, headers=headers)


def test_the_document_has_every_operation_and_this_server(make_api: MakeApi) -> None:
    """The document lists every operation and this server's URL, without a key."""
    document = ask(make_api(api_key=KEY), "/openapi.json").json()
    assert [server["url"] for server in document["servers"]] == ["./"]
    assert {row.path for row in OPERATIONS.values()} == set(document["paths"])


def test_pages_and_files_come_from_here_alone(make_api: MakeApi) -> None:
    """Pages load only existing paths of this server, and their policy allows no other source."""
    api = make_api(api_key=KEY)
    for path in ("/", "/docs"):
        page = ask(api, path)
        assert page.status_code == 200
        assert "default-src 'none'; script-src 'self';" in page.headers["content-security-policy"]
        for name in re.findall(r'(?:src|href)="([^"]+)"', page.text):
            # a proxy may serve this server below a path
            assert not name.startswith(("/", "http")), name
            assert ask(api, f"/{name}").status_code == 200, name


def test_addresses_are_where_others_look_for_them(make_api: MakeApi) -> None:
    """The icon and the health need no key; the metrics do, also as Prometheus' bearer token."""
    pytest.importorskip("prometheus_client")
    api = make_api(api_key=KEY)
    icon = ask(api, "/favicon.ico")
    assert (icon.status_code, icon.headers["content-type"]) == (200, "image/svg+xml")
    assert ask(api, "/health").json() == api.ok("healthz") == {"status": "ok"}
    assert ask(api, "/metrics").status_code == 401
    assert ask(api, "/metrics", authorization=f"Bearer {KEY}").status_code == 200


def test_metrics_count_requests_tokens_and_clients(api: Api) -> None:
    """The metrics count requests by status, tokens and connected clients."""
    pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    model = api.model()
    api.result(api.loss(model, 1))
    api.result(api.sample(None, base_model="tinker/toy"))
    api.refused("get_session", session_id="none")
    answer = ask(api, "/metrics")
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert samples["tinker_requests_total", "200", "asample"] == 1
    assert samples["tinker_requests_total", "404", "get_session"] == 1
    assert samples["tinker_request_seconds_count", "asample"] == 1
    assert samples["tinker_request_seconds_bucket", "+Inf", "asample"] == 1
    assert samples["tinker_tokens_total", "tinker/toy", "training"] == 2
    assert samples["tinker_tokens_total", "sampling_sample", "tinker/toy"] == 4
    assert samples[("tinker_sessions",)] == samples[("tinker_training_runs",)] == 1
    assert samples["tinker_pending_requests", "sampling", "tinker/toy"] == 0


def test_metrics_have_the_gap_between_sampler_and_trainer(api: Api) -> None:
    """The metrics have the gap of each run's last step, if its losses say what was sampled."""
    pytest.importorskip("prometheus_client")
    model, other = api.model(), api.model()
    sampled = datum([104, 101], [101, 108], logprobs=[-1.0, -2.0], advantages=[1.0, 1.0])
    now = api.metrics(api.loss(model, 1, data=[sampled], loss_fn="importance_sampling"))
    for run, number in ((model, 2), (other, 1)):
        api.result(api.step(run, number))
    samples = [
        line.rpartition(" ")
        for line in ask(api, "/metrics").text.splitlines()
        if "sampler_logprob_gap{" in line
    ]
    assert {name: float(value) for name, _, value in samples} == {
        f'tinker_sampler_logprob_gap{{run="{model}",statistic="{statistic}"}}': now[
            f"sampler_logprob_gap:{statistic}"
        ]
        for statistic in ("mean", "max")
    }


def test_the_log_has_a_line_for_each_request_and_no_secret(
    make_api: MakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    """A line has route, status and time, but no key, query or path, which may hold a token."""
    api = make_api(api_key=KEY)
    with caplog.at_level(logging.INFO, logger="tinker.local.requests"):
        ask(api, "/files/secret-token/checkpoint?also=secret", **{"x-api-key": KEY})
        ask(api, "/nowhere/secret", **{"x-api-key": KEY})
        api.refused("get_session", session_id="secret", headers={"x-api-key": KEY})
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert re.fullmatch(r"\S+ GET /files/\{token\}/\{name:path\} 403 [\d.]+ ms", lines[0])
    assert re.fullmatch(r"\S+ GET \(no such path\) 404 [\d.]+ ms", lines[1])
    assert re.fullmatch(r"\S+ GET /api/v1/sessions/\{session_id\} 404 [\d.]+ ms", lines[2])
    assert not any("secret" in line or KEY in line for line in lines)


def test_a_server_starts_with_what_one_needs_to_know(tmp_path: Path) -> None:
    """The start message has page and document, names a key without showing it, and runs."""
    with running_server(Settings(data_dir=tmp_path)) as url:
        text = describe_start(url, "tinker/toy", has_key=False)
        names: dict[str, Any] = {}
        exec(
            "\n".join(line.strip() for line in text.splitlines() if line.startswith("    ")), names
        )
        assert isinstance(names["training"], tinker.TrainingClient)
    keyed = describe_start("http://127.0.0.1:1", "tinker/toy", has_key=True)
    assert "http://127.0.0.1:1/docs" in keyed
    assert "TINKER_API_KEY" in keyed


def test_a_server_on_every_address_says_how_it_is_reached(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A server on 0.0.0.0 names the loopback for this machine, the host's name for others."""
    for url, here in (
        ("http://0.0.0.0:7", "http://127.0.0.1:7"),
        ("http://[::]:7", "http://[::1]:7"),
    ):
        announce(url, [ToyEngine()])
        text = capsys.readouterr().out
        assert f"(TINKER_BASE_URL={here})" in text
        assert url not in text
        assert f"Other machines use this host's name, {socket.gethostname()}, in place of" in text
    announce("http://127.0.0.1:7", [ToyEngine()])
    assert "Other machines" not in capsys.readouterr().out
