"""The conformance kit: our server passes every check, and each fault of other servers is found."""

from __future__ import annotations

import json
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import attrs
import httpx
import pytest
from click.testing import CliRunner
from support.contract import the_contract
from support.recordings import exchanges
from support.tampering import (
    Stepped,
    Tampering,
    always,
    asking,
    body,
    head,
    is_of,
    reusing,
    stepless,
    unclipped,
    unseeded,
)
from tinker_wire.operations import OPERATIONS

from tinker._wire import proto
from tinker.cli import main
from tinker.testing import Nonconformance, Outcome, check_ids, run, verify
from tinker.testing.conformance import all_checks
from tinker.testing.conformance.outcome import LIMITS, SEVERITY, Observation, Report, Row
from tinker.testing.conformance.report import as_junit, as_markdown, findings

Serve = Callable[..., str]
KEY = "tml-key"


# ----------------------------------------------------------------------------------- our own server


@pytest.mark.parametrize("check_id", check_ids(slow=True))
def test_our_server_supports_it(server: str, check_id: str) -> None:
    """Nothing contradicts the document, differs from it, or is absent but what vLLM alone does."""
    if check_id == "training.custom_loss":
        pytest.importorskip("torch")
    (row,) = run(server, api_key=KEY, slow=True, only=[check_id]).checks
    told = [how for how in row.how if "json_schema needs vLLM" not in how]
    assert (row.outcome, told) == (Outcome.ABSENT if row.how else Outcome.SUPPORTED, [])


def test_keys_are_sent_and_needed(serve: Serve) -> None:
    """With a key that the server does not know every check of a required operation fails."""
    url = serve(api_key=KEY)
    assert verify("admin.wrong_key", url, api_key=KEY, strict=True).how == ()
    assert not run(url, api_key="tml-other", only=["training.learns"]).passed()


def test_every_operation_is_checked() -> None:
    """The kit walks the contract, but for operations that are assumed, which nobody has seen."""
    checked = {name for one in all_checks() for name in one.operations}
    assert checked <= OPERATIONS.keys()
    assert OPERATIONS.keys() - checked == the_contract().assumed - checked


def test_every_check_is_one_statement() -> None:
    """Each check says in one sentence what must hold, and no two say the same."""
    statements = [one.statement for one in all_checks()]
    assert all(statement.endswith(".") and "\n" not in statement for statement in statements)
    assert len(set(statements)) == len(statements)


# ------------------------------------------------------------------------------------ other servers


@pytest.mark.parametrize(
    ("profile", "check_id", "outcome", "words"),
    [
        ("skyrl", "training.model", Outcome.DIFFERS, "the model id is 'model_"),
        ("skyrl", "training.run", Outcome.DIFFERS, "a time without a zone"),
        ("skyrl", "training.learns", Outcome.DIFFERS, "the metric total_loss:sum"),
        ("skyrl", "losses.ppo", Outcome.DIFFERS, "the metric total_loss:sum"),
        ("skyrl", "losses.dro", Outcome.ABSENT, "422"),
        ("skyrl", "wires.sparse", Outcome.ABSENT, "Sparse loss_fn_input"),
        ("skyrl", "sequence.late_arrival", Outcome.CONTRADICTION, "ran before the gradient"),
        (
            "skyrl",
            "futures.unknown",
            Outcome.CONTRADICTION,
            "must refuse the request_id 'no-such-request' with 404 or 410",
        ),
        ("skyrl", "weights.missing", Outcome.DIFFERS, "a poll with status 400"),
        ("skyrl", "weights.resume", Outcome.ABSENT, "422"),
        ("skyrl", "weights.inflight", Outcome.DIFFERS, "has its old weights"),
        ("skyrl", "sampling.samples", Outcome.DIFFERS, "0 sample_sequence_ids for 3 samples"),
        ("minimal-json", "service.client_config", Outcome.ABSENT, "404"),
        ("minimal-json", "wires.protobuf", Outcome.ABSENT, "415"),
        ("minimal-json", "wires.json_body", Outcome.SUPPORTED, ""),
        ("minimal-json", "sequence.repetition", Outcome.SUPPORTED, ""),
        ("minimal-json", "errors.older_bodies", Outcome.SUPPORTED, ""),
        ("minimal-json", "weights.delete", Outcome.CONTRADICTION, "delete_checkpoint answers 404"),
    ],
)
def test_how_other_servers_differ_is_told(
    server_like: Callable[[str], str], profile: str, check_id: str, outcome: Outcome, words: str
) -> None:
    """Of what our server passes for, the kit says what that server is known for."""
    (row,) = run(server_like(profile), only=[check_id], clock=Stepped().clock).checks
    assert row.outcome is outcome, row
    assert words in " ".join(row.how)


# -------------------------------------------------------------------------------- faults of engines


@pytest.mark.parametrize(
    ("engine", "check_id", "outcome", "words"),
    [
        (stepless, "training.learns", Outcome.CONTRADICTION, "eight steps took the loss"),
        (unclipped, "losses.clipping", Outcome.CONTRADICTION, "moves the logprobs"),
        (stepless, "sequence.pipeline", Outcome.CONTRADICTION, "the step is lost"),
        (reusing, "training.fresh", Outcome.CONTRADICTION, "uses the gradient of an unloaded one"),
        (reusing, "losses.clipping", Outcome.SUPPORTED, ""),
    ],
)
def test_an_engine_that_computes_wrongly_is_found(
    serve: Serve, engine: Callable[[], Any], check_id: str, outcome: Outcome, words: str
) -> None:
    """Lost, doubled and wrong gradients, steps and values show in what the server answers."""
    (row,) = run(serve(engine()), only=[check_id]).checks
    assert row.outcome is outcome
    assert words in " ".join(row.how)


# -------------------------------------------------------------------------------- faults of answers


def stream(change: Callable[[list[bytes]], list[bytes]]) -> Tampering:
    """Change the events of a sample that is streamed."""

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if not is_of(request, "stream_sample"):
            return response
        events = change(response.content.removesuffix(b"\n\n").split(b"\n\n"))
        content = b"".join(event + b"\n\n" for event in events)
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=content)

    return Tampering(answer)


@pytest.mark.parametrize(
    ("check_id", "transport", "outcome", "words"),
    [
        (
            "sessions.begin",
            body("create_session", lambda v: v.update(session_id=7)),
            Outcome.CONTRADICTION,
            "session_id",
        ),
        (
            "sessions.begin",
            body("create_session", lambda v: v.pop("session_id")),
            Outcome.CONTRADICTION,
            "session_id",
        ),
        (
            "training.info",
            body("get_info", lambda v: v.pop("model_data")),
            Outcome.CONTRADICTION,
            "model_data",
        ),
        (
            "training.info",
            body("get_info", lambda v: v.update(lora_rank=9)),
            Outcome.CONTRADICTION,
            "it says 9",
        ),
        (
            "training.unload",
            body("retrieve_future", lambda v: v.update(status="unloaded")),
            Outcome.SUPPORTED,
            "",
        ),
        (
            "wires.json_body",
            asking("application/x-protobuf, application/json"),
            Outcome.CONTRADICTION,
            "only JSON is",
        ),
        (
            "training.learns",
            body("optim_step", lambda v: v.pop("request_id")),
            Outcome.CONTRADICTION,
            "request_id",
        ),
        (
            "weights.save",
            body("retrieve_future", lambda v: v.pop("path", 0)),
            Outcome.CONTRADICTION,
            "path",
        ),
        (
            "sampling.samples",
            body("asample", lambda v: v.pop("sample_sequence_ids")),
            Outcome.DIFFERS,
            "sample_sequence_ids",
        ),
        ("training.model", head("create_model", 201), Outcome.SUPPORTED, ""),
        ("errors.statuses", head("create_model", 201), Outcome.DIFFERS, "create_model 201"),
        ("training.model", head("create_model", 500), Outcome.CONTRADICTION, "answered 500"),
        ("training.model", head("create_model", 404), Outcome.CONTRADICTION, "answers 404"),
        (
            "training.model",
            head("create_model", media_type="text/html"),
            Outcome.CONTRADICTION,
            "text/html",
        ),
        (
            "sessions.heartbeat",
            always(404, {"detail": "Not Found"}, "session_heartbeat"),
            Outcome.ABSENT,
            "answers 404",
        ),
        (
            "sessions.heartbeat",
            head("session_heartbeat", 404),
            Outcome.DIFFERS,
            "heartbeat of an open session answers 404",
        ),
        ("sessions.heartbeat", head("session_heartbeat", 501), Outcome.ABSENT, "answered 501"),
        (
            "sessions.finish",
            head("session_heartbeat", 200),
            Outcome.CONTRADICTION,
            "where it must refuse",
        ),
        ("futures.unknown", head("retrieve_future", 400), Outcome.DIFFERS, "400 instead of 404"),
        (
            "futures.unknown",
            head("retrieve_future", media_type="text/plain"),
            Outcome.DIFFERS,
            "text/plain",
        ),
        (
            "weights.missing",
            body("retrieve_future", lambda v: v.pop("category", 0)),
            Outcome.CONTRADICTION,
            "category",
        ),
        (
            "weights.missing",
            body("retrieve_future", lambda v: v.update(category="User")),
            Outcome.DIFFERS,
            "'User' is none of",
        ),
        (
            "futures.announcement",
            body(
                "retrieve_future",
                lambda v: v.update({k: 1 for k in v if k == "response_payload_size"}),
            ),
            Outcome.CONTRADICTION,
            "announced are 1 bytes",
        ),
        ("wires.json_body", head("forward_backward", 415), Outcome.ABSENT, "415"),
        ("weights.search", head("checkpoints/search", 405), Outcome.ABSENT, "answers 405"),
        (
            "weights.search",
            body("checkpoints/search", lambda v: v["checkpoints"].clear()),
            Outcome.CONTRADICTION,
            "found are []",
        ),
        (
            "weights.search",
            body("checkpoints/search", lambda v: v.pop("next_cursor", 0)),
            Outcome.CONTRADICTION,
            "no cursor",
        ),
        (
            "uploads.incomplete",
            head("external_weights_upload_start", 501),
            Outcome.ABSENT,
            "answered 501",
        ),
        (
            "uploads.incomplete",
            head("external_weights_upload_finish", 200),
            Outcome.CONTRADICTION,
            "where it must refuse",
        ),
        (
            "uploads.unknown",
            head("external_weights_upload_finish", 400),
            Outcome.DIFFERS,
            "400 instead of 404",
        ),
        ("uploads.adapter", head("save_weights_external", 422), Outcome.ABSENT, "422"),
        ("uploads.adapter", head("toy_adapter.npz", 403), Outcome.CONTRADICTION, "answers 403"),
        ("sampling.stream", head("stream_sample", 404), Outcome.ABSENT, "answers 404"),
        (
            "sampling.stream",
            head("stream_sample"),
            Outcome.CONTRADICTION,
            "not as text/event-stream",
        ),
        ("sampling.stream", stream(lambda events: events[:-1]), Outcome.CONTRADICTION, "'tokens'"),
        (
            "sampling.stream",
            stream(lambda events: events[-1:]),
            Outcome.CONTRADICTION,
            "the stream has 0",
        ),
        (
            "sampling.stream",
            stream(lambda events: [b"data: [7]", *events]),
            Outcome.CONTRADICTION,
            "is not a SampleStreamEvent",
        ),
        (
            "sampling.stream",
            stream(lambda events: [b'data: {"type": "more"}', *events]),
            Outcome.DIFFERS,
            "'more' is none of",
        ),
    ],
)
def test_an_answer_outside_the_document_is_found(
    server: str, check_id: str, transport: Tampering, outcome: Outcome, words: str
) -> None:
    """Wrong types, missing fields, other statuses and media types, sizes that are not kept."""
    (row,) = run(server, only=[check_id], transport=transport).checks
    assert row.outcome is outcome, row
    assert words in " ".join(row.how)


# --------------------------------------------------------------------------------------------- time


@pytest.mark.parametrize(
    ("transport", "words"),
    [
        (
            always(200, {"type": "try_again", "request_id": "r", "queue_state": "active"}),
            "the result of create_model: not done within 60 s",
        ),
        (always(408, {"detail": "later"}), "not done within 60 s"),
        (always(503, {"detail": "busy"}, "create_session"), "answered 503"),
    ],
)
def test_a_server_that_never_answers_is_a_contradiction(
    server: str, transport: Tampering, words: str
) -> None:
    """A check ends with its deadline, whatever the server says until then."""
    stepped = Stepped()
    (row,) = run(
        server,
        only=["training.model"],
        transport=transport,
        clock=stepped.clock,
        deadline_seconds=60,
    ).checks
    assert row.outcome is Outcome.CONTRADICTION
    assert words in row.how[0]
    assert 60 <= stepped.now < 75


def test_too_many_requests_are_waited_out(server: str) -> None:
    """429 is no finding: the request is made again after the time that is asked for."""
    stepped = Stepped()
    refusals = iter([429, 503])

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        status = next(refusals, None) if request.url.path.endswith("create_session") else None
        return response if status is None else httpx.Response(status, headers={"retry-after": "3"})

    (row,) = run(
        server, only=["sessions.begin"], transport=Tampering(answer), clock=stepped.clock
    ).checks
    assert (row.outcome, stepped.now) == (Outcome.SUPPORTED, 6.0)


# -------------------------------------------------------------------------- as a test, as a command


def test_verify_raises_and_skips(server: str) -> None:
    """A contradiction fails a test, a difference where asked for; what is absent skips it."""
    with pytest.raises(Nonconformance, match=r"training.model .*contradiction: .*500"):
        verify("training.model", server, transport=head("create_model", 500))
    assert (
        verify("errors.statuses", server, transport=head("create_model", 201)).outcome
        is Outcome.DIFFERS
    )
    with pytest.raises(Nonconformance, match="differs"):
        verify("errors.statuses", server, transport=head("create_model", 201), strict=True)
    with pytest.raises(unittest.SkipTest, match="404"):
        verify(
            "sessions.heartbeat",
            server,
            transport=always(404, {"detail": "Not Found"}, "session_heartbeat"),
        )
    with pytest.raises(KeyError):
        verify("sessions.nothing", server)


def command(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["conformance", *arguments])


def test_the_command_prints_a_table_and_writes_a_report(server: str, tmp_path: Path) -> None:
    """Each check has a row with its outcome; the report has the same, a badge its color."""
    file = tmp_path / "report.json"
    chosen = ("s*.h*", "futures.*", "*.gap")
    result = command(
        "--base-url",
        server,
        *(part for one in chosen for part in ("--check", one)),
        *("--json", str(file), "--badge", str(tmp_path / "badge.json")),
    )
    assert result.exit_code == 0, result.output
    badge = json.loads((tmp_path / "badge.json").read_text())
    assert badge.items() >= {"schemaVersion": 1, "color": "brightgreen"}.items()
    rows = [line.split()[:2] for line in result.output.splitlines()]
    assert ["service.health", "supported"] in rows
    assert "not run, slow (--slow): sequence.gap" in result.output
    report = json.loads(file.read_text())
    assert report["server"] == server
    assert report["operations"]["healthz"] == "supported"
    assert report["left_out"][0]["check"] == "sequence.gap"
    assert [row["check"] for row in report["checks"]] == [
        row[0] for row in rows if row and row[0] in check_ids()
    ]


def test_the_exit_code_tells_contradictions(serve: Serve, server: str) -> None:
    """1 for a contradiction, with --strict for a difference; 2 when nothing can be checked."""
    idle, hasty = serve(stepless()), serve(hold_seconds=0.0)
    assert command("--base-url", idle, "--check", "training.learns").exit_code == 1
    assert command("--base-url", hasty, "--check", "futures.pending").exit_code == 0
    assert command("--base-url", hasty, "--check", "futures.pending", "--strict").exit_code == 1
    for arguments in (
        ["--base-url", "http://127.0.0.1:9"],
        ["--base-url", "local://toy"],
        ["--base-url", server, "--check", "x"],
    ):
        result = command(*arguments)
        assert result.exit_code == 2, result.output
        assert result.output.startswith("Error: ")
        assert ("and its address" in result.output) == (arguments[1] == "http://127.0.0.1:9")


def test_the_command_lists_and_reports_to_a_pipe(server: str) -> None:
    """--list checks nothing and has each check on one line; --json - writes nothing but JSON."""
    _, *lines = command("--list").output.splitlines()
    assert {line.split()[0] for line in lines} == set(check_ids(slow=True, destructive=True))
    assert len(lines) == len(check_ids(slow=True, destructive=True))
    report = json.loads(
        command("--base-url", server, "--check", "service.health", "--json", "-").output
    )
    assert report["counts"]["supported"] == 1


# ------------------------------------------------------------------------------------------- causes


def test_what_rests_on_a_failing_check_is_blocked_by_it(server: str) -> None:
    """One cause is one finding, with the rows that it blocks, which are not tried."""
    report = run(
        server, only=["sessions.*", "training.*", "losses.*"], transport=head("create_model", 400)
    )
    (finding,) = findings(report)
    assert "create_model answers 400" in finding.title
    assert "training.model" in finding.checks
    assert {"training.learns", "losses.ppo", "training.seed"} <= set(finding.blocked)
    blocked = [row for row in report.checks if row.outcome is Outcome.BLOCKED]
    assert {row.check for row in blocked} == set(finding.blocked)
    assert {row.blocked_by for row in blocked} == {"training.model"}
    assert report.counts[Outcome.BLOCKED] == len(blocked)
    assert report.operations["optim_step"] is Outcome.BLOCKED
    assert (report.passed(), report.was_cut_short) == (False, False)


def row_of(check: str, *seen: Observation, blocked_by: str | None = None) -> Row:
    """Return a row of a report with these observations."""
    outcome = max((one.outcome for one in seen), key=SEVERITY.index, default=Outcome.BLOCKED)
    return Row(
        check=check,
        operations=("get_info",),
        statement=f"{check} holds.",
        outcome=outcome,
        observations=seen,
        blocked_by=blocked_by,
        seconds=0.0,
    )


def test_causes_of_one_kind_are_one_finding() -> None:
    """But for one that blocks, which has all that shows it, and what an absent feature lacks."""
    blocking, other, third = (
        Observation(f"get_info: {text}", f"misfit: {text}", operation="get_info")
        for text in ("no id", "no name", "no time")
    )
    rows = [
        row_of("a", blocking, other),
        row_of("b", blocking, third),
        row_of("c", blocked_by="a"),
        row_of("d", Observation("half of it", outcome=Outcome.ABSENT), Observation("and no more")),
    ]
    rows[3] = attrs.evolve(rows[3], outcome=Outcome.ABSENT)
    found = findings(Report(server="s", contract="1", checks=tuple(rows)))
    assert [(one.observed, one.checks, one.blocked) for one in found] == [
        (("get_info: no id",), ("a", "b"), ("c",)),
        (("get_info: no name", "get_info: no time"), ("a", "b"), ()),
    ]


def test_a_finding_points_to_the_contract_and_to_a_recording(server: str) -> None:
    """A finding has pointers to operation and schema, and the recordings of its exchanges."""
    (finding,) = findings(
        run(
            server,
            only=["training.info"],
            transport=body("get_info", lambda v: v.pop("model_data")),
        )
    )
    assert finding.places == (
        "openapi.yaml#/paths/~1api~1v1~1get_info/post",
        "openapi.yaml#/components/schemas/GetInfoResponse",
    )
    for place in finding.places:
        assert look_up(place.partition("#")[2])
    exchange = finding.exchanges["get_info"]
    assert exchange.request == "POST /api/v1/get_info"
    assert "model_data" in exchange.answered


def look_up(pointer: str) -> object:
    """Return what a JSON pointer into the contract points to."""
    found: Any = the_contract().document
    for part in pointer.split("/")[1:]:
        found = found[part.replace("~1", "/").replace("~0", "~")]
    return found


def test_fields_at_their_default_that_are_refused_are_left_out(
    server_like: Callable[[str], str],
) -> None:
    """As clients do: that is one finding, whose checks are tried all the same."""
    report = run(server_like("strict"), only=["training.*", "sampling.sample*"])
    (finding,) = [one for one in findings(report) if one.title == "Unknown fields are refused."]
    assert "optimizer_config" in finding.observed[0]
    assert not finding.blocked
    assert {row.check: row.outcome for row in report.checks}["training.learns"] is Outcome.SUPPORTED


def test_a_server_that_ignores_seeds_blocks_what_compares_models(serve: Serve) -> None:
    """Models that begin unequal cannot be compared: nothing is said of their order and sums."""
    pytest.importorskip("torch")  # which the server needs for a loss of the user's
    report = run(serve(unseeded()), only=["training.*", "sequence.*"])
    (finding,) = findings(report)
    assert finding.checks == ("training.seed",)
    assert {"training.accumulates", "sequence.repetition", "sequence.late_arrival"} <= set(
        finding.blocked
    )


# ----------------------------------------------------------------------- what is sent, what is left


#: Checks that send on purpose what no client of today sends: broken bodies, those of 2025, unknown
#: fields, no session.
# sent where the user gives it, as in all recordings there are of it
OF_RECORDINGS_ONLY = {".ttl_seconds"}
SENT_ON_PURPOSE = {
    "errors.syntax",
    "errors.older_bodies",
    "sampling.without_session",
    "sampling.of_nothing",
}


class Listening(Tampering):
    """Remembers each request that is answered, and what was answered."""

    def __init__(self, request: Callable[[httpx.Request], httpx.Request] = lambda one: one) -> None:
        super().__init__(self._note, request)
        self.exchanges: list[tuple[httpx.Request, httpx.Response]] = []

    def _note(self, request: httpx.Request, response: httpx.Response) -> httpx.Response:
        self.exchanges.append((request, response))
        return response


def members(value: object, where: str = "") -> set[str]:
    """Return the names in a JSON object and below it; lists count for each of their items."""
    if isinstance(value, dict):
        below = (members(item, f"{where}.{key}") for key, item in value.items())
        return {f"{where}.{key}" for key in value}.union(*below)
    return (
        set().union(*(members(item, f"{where}[]") for item in value))
        if isinstance(value, list)
        else set()
    )


def recorded_members() -> dict[str, set[str]]:
    """Address -> the names that every recorded body of a client of today has there."""
    found: dict[str, set[str]] = {}
    for exchange in exchanges():
        if (
            exchange.reading == "sent"
            and exchange.method == "POST"
            and isinstance(exchange.request.json, dict)
        ):
            names = members(exchange.request.json)
            found[exchange.path] = found.get(exchange.path, names) & names
    return found


def test_the_kit_sends_what_clients_send(serve: Serve) -> None:
    """Each body has the fields of every recorded one, but where a check is about others."""
    wanted, listening, url = recorded_members(), Listening(), serve(api_key=KEY)
    lacking: dict[str, set[str]] = {}
    for check_id in check_ids():
        if check_id in SENT_ON_PURPOSE:
            continue
        run(url, api_key=KEY, only=[check_id], transport=listening)
    for request, _ in listening.exchanges:
        if request.headers.get("content-type") != "application/json" or not request.content:
            continue
        names = (
            wanted.get(request.url.path, set())
            - members(json.loads(request.content))
            - OF_RECORDINGS_ONLY
        )
        # each loss has a graph of its own
        names = {name for name in names if not name.startswith(".graph.")}
        if names:
            lacking.setdefault(request.url.path, set()).update(names)
    assert lacking == {}


def left(url: str) -> list[str]:
    """Return the paths of the checkpoints on a server."""
    listed = httpx.get(f"{url}/api/v1/checkpoints", headers={"X-API-Key": KEY}).json()[
        "checkpoints"
    ]
    return [one["tinker_path"] for one in listed]


@pytest.mark.parametrize(
    ("check_id", "transport"),
    [
        ("weights.save", body("retrieve_future", lambda result: result.pop("path", None))),
        ("weights.sampler_name", body("retrieve_future", lambda result: result.pop("path", None))),
        ("uploads.adapter", always(500, {"detail": "no memory"}, "load_weights")),
        ("weights.copy", body("weights_info", lambda found: found.pop("base_model"))),
    ],
)
def test_a_check_that_ends_early_leaves_no_checkpoint(
    serve: Serve, check_id: str, transport: Tampering
) -> None:
    """What a check saves, uploads or copies is deleted also where what comes next fails."""
    url = serve()
    assert not run(
        url, api_key=KEY, only=[check_id], transport=transport, deadline_seconds=5
    ).passed()
    assert left(url) == []


def test_what_the_kit_makes_is_freed(serve: Serve) -> None:
    """Sessions, which have the kit's tag, are finished, models unloaded, checkpoints deleted."""
    pytest.importorskip("torch")  # which the server needs for a loss of the user's
    listening, url = Listening(), serve()
    chosen = ["weights.*", "uploads.*", "training.*", "sessions.*", "errors.*"]
    report = run(url, api_key=KEY, only=chosen, transport=listening)
    assert report.passed(strict=True)
    assert left(url) == []
    made: dict[str, set[str]] = {"session": set(), "model": set()}
    gone: dict[str, set[str]] = {"session": set(), "model": set()}
    for request, response in listening.exchanges:
        if not response.is_success:
            continue
        if request.url.path.endswith("/create_session"):
            made["session"].add(response.json()["session_id"])
            assert json.loads(request.content)["tags"] == ["conformance"]
        elif request.url.path.endswith("/create_model"):
            made["model"].add(response.json()["model_id"])
        elif request.url.path.endswith("/unload_model"):
            gone["model"].add(json.loads(request.content)["model_id"])
        elif request.url.path.endswith("/finish"):
            gone["session"].add(request.url.path.split("/")[-2])
    assert made["session"] == gone["session"]
    assert made["model"] <= gone["model"]


def test_a_server_that_is_full_blocks_and_is_waited_for_once(server: str) -> None:
    """429 to the end of its time blocks a check; the next one waits no more. It exits with 3."""
    stepped = Stepped()
    transport = always(429, {"detail": "no more models"}, "create_model", **{"retry-after": "7"})
    report = run(
        server, only=["training.*"], transport=transport, clock=stepped.clock, deadline_seconds=60
    )
    assert {row.blocked_by for row in report.checks} == {LIMITS}
    assert report.passed(strict=True)
    assert report.was_cut_short
    assert 60 <= stepped.now < 75
    assert findings(report) == ()


@pytest.mark.parametrize(
    ("detail", "title"),
    [
        (
            "there is one",
            "A checkpoint cannot be overwritten: save_weights answers 409: there is one",
        ),
        ("there is one. " * 12, "A checkpoint cannot be overwritten"),
    ],
)
def test_a_title_is_what_was_seen(server: str, detail: str, title: str) -> None:
    """What one check saw is its finding's title; of long texts, what stands before the reasons."""

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if json.loads(request.content or b"{}").get("overwrite"):
            return httpx.Response(409, json={"detail": detail})
        return response

    found = findings(
        run(
            server, only=["weights.name_conflict"], transport=Tampering(answer), deadline_seconds=60
        )
    )
    assert [one.title for one in found] == [title]


def test_a_refused_request_counts_as_a_number(server: str) -> None:
    """The kit says so, with both statuses, where the request after a refused one is refused."""
    refused: list[str] = []

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if not request.url.path.endswith("/forward_backward"):
            return response
        call = proto.decode_forward_backward(request.content)
        if call.loss_fn != "no_such_loss" and call.model_id not in refused:
            return response
        refused.append(call.model_id)
        return httpx.Response(400, json={"detail": "expected 1"})

    *_, row = run(
        server, only=["training.loss", "futures.failure"], transport=Tampering(answer)
    ).checks
    assert row.how[0].startswith(
        "after request 1, which was refused with 400, forward_backward answers 400: expected 1"
    )


def test_where_sessions_cannot_be_finished_one_serves_all_checks(server: str) -> None:
    """The server is asked once to finish one; models have numbers of their own in it."""
    pytest.importorskip("torch")  # which the server needs for a loss of the user's

    def lose(one: httpx.Request) -> httpx.Request:
        is_finish = one.url.path.endswith("/finish")
        return httpx.Request("POST", one.url.copy_with(path="/nothing")) if is_finish else one

    listening = Listening(lose)
    assert run(server, only=["training.*"], transport=listening).passed(strict=True)
    assert sum(is_of(request, "create_session") for request, _ in listening.exchanges) <= 2


class Reaping(httpx.BaseTransport):
    """A server that holds polls for 40 s, and ends sessions that are silent for 30 s."""

    def __init__(self, time: Stepped, *, finishes: bool) -> None:
        self.beats: list[str] = []
        self.ended: list[str] = []
        self._time, self._finishes = time, finishes
        self._heard: dict[str, float] = {}
        self._inner = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        path, body = request.url.path, request.read()
        if path.endswith("/finish") and not self._finishes:
            return httpx.Response(404, json={"detail": "Not Found"})
        if path.endswith("/session_heartbeat"):
            self.beats.append(json.loads(body)["session_id"])
            self._heard[self.beats[-1]] = self._time.now
        if path.endswith("/retrieve_future"):
            for _ in range(40):
                self._time.sleep(1.0)
                self._reap(request)
        response = self._inner.handle_request(request)
        response.read()
        if path.endswith("/finish"):
            self._heard.pop(path.split("/")[-2], None)
        if path.endswith("/create_session"):
            self._heard[response.json()["session_id"]] = self._time.now
        return response

    def _reap(self, request: httpx.Request) -> None:
        for session in [one for one, heard in self._heard.items() if self._time.now - heard > 30]:
            del self._heard[session]
            self.ended.append(session)
            url = request.url.copy_with(path=f"/api/v1/sessions/{session}/finish")
            body = {"reason": {"type": "errored"}, "detail": None}
            self._inner.handle_request(httpx.Request("POST", url, json=body)).read()


@pytest.mark.parametrize("finishes", [True, False])
def test_sessions_are_kept_alive_while_polls_are_held(server: str, finishes: bool) -> None:
    """No session is silent for long, also one that checks share; then nothing more is sent."""
    stepped = Stepped()
    reaping = Reaping(stepped, finishes=finishes)
    only = [
        "training.model",
        "training.info",
        "training.loss",
        "training.learns",
        "losses.cross_entropy",
    ]
    report = run(server, only=only, transport=reaping, clock=stepped.clock, deadline_seconds=3000)
    assert {row.outcome for row in report.checks} == {Outcome.SUPPORTED}, report
    assert reaping.ended == []
    beaten = len(reaping.beats)
    assert beaten >= stepped.now / 10 - len(only)
    stepped.sleep(100.0)
    assert len(reaping.beats) == beaten  # the run is over


def test_sessions_are_kept_alive_between_short_polls(server: str) -> None:
    """A heartbeat goes out every ten seconds of a long wait, as clients send it."""
    beats: list[str] = []

    def answer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if request.url.path.endswith("/session_heartbeat"):
            beats.append(json.loads(request.content)["session_id"])
        if request.url.path.endswith("/retrieve_future"):
            return httpx.Response(408, json={"detail": "later"})
        return response

    run(server, only=["training.info"], transport=Tampering(answer), clock=Stepped().clock)
    assert 4 <= len(beats) <= 6
    assert len(set(beats)) == 1


# ------------------------------------------------------------------------------------------ reports


def test_the_reports_say_the_same(serve: Serve, tmp_path: Path) -> None:
    """JUnit fails and skips as the outcomes say; Markdown has the findings, the badge counts."""
    pytest.importorskip("torch")  # which the server needs for a loss of the user's
    names = {"json": "r.json", "junit": "r.xml", "markdown": "r.md", "badge": "badge.json"}
    files = [
        part for option, name in names.items() for part in (f"--{option}", str(tmp_path / name))
    ]
    url = serve(stepless())
    chosen = [
        "--only",
        "training.*",
        "--only",
        "sequence.pipeline",
        "--skip",
        "*.dimuon",
        "--label",
        "Stepless <1>",
    ]
    assert command("--base-url", url, *chosen, *files).exit_code == 1
    report = json.loads((tmp_path / "r.json").read_text())
    (finding,) = report["findings"]
    assert finding["checks"] == ["training.step"]
    assert "sequence.pipeline" in finding["blocked"]
    suite = ElementTree.fromstring((tmp_path / "r.xml").read_text())[0]
    assert int(suite.get("failures", "")) == report["counts"]["contradiction"] == 1
    assert (
        int(suite.get("skipped", ""))
        == report["counts"]["blocked"] + report["counts"]["absent"] + 1
    )
    markdown = (tmp_path / "r.md").read_text()
    assert "# Conformance of Stepless &lt;1&gt;" in markdown
    assert f"`{finding['places'][0]}`" in markdown
    assert finding["exchanges"]["optim_step"]["recording"] in markdown
    assert json.loads((tmp_path / "badge.json").read_text())["message"].startswith(
        f"{report['counts']['supported']} of "
    )


def test_what_servers_say_breaks_no_report(server: str) -> None:
    """Text of servers is quoted: it makes neither markup nor broken XML."""
    transport = always(400, {"detail": "<b>|`x\x00"}, "create_model")
    report = run(server, only=["training.model"], transport=transport)
    assert "<b>" not in as_markdown(report).decode()
    assert ElementTree.fromstring(as_junit(report))[0].get("failures") == "1"
