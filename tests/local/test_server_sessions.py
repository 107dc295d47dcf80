"""Session records: lists, searches, projects and traces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.api import Api, Clock, GatedEngine, MakeApi, model_body, sample_body, step_body

from tinker.local.storage import OWNER
from tinker.local.storage.futures import QUEUE, WORK

DONE = {"reason": {"type": "success"}, "detail": "all well"}


@pytest.fixture
def api(make_api: MakeApi, clock: Clock) -> Api:
    """Return a server whose clock the test moves."""
    return make_api(clock=clock)


def session(api: Api, clock: Clock, **fields: Any) -> str:
    """Create a session one second after the last."""
    clock.seconds += 1
    return api.ok("create_session", {"tags": [], "sdk_version": "1", **fields})["session_id"]


def found(api: Api, **conditions: Any) -> list[str]:
    return [
        one["session_id"]
        for one in api.ok("search_sessions", {"user_metadata": {}, **conditions})["sessions"]
    ]


def test_a_session_is_known_after_its_end(api: Api, clock: Clock) -> None:
    """A session that has ended is listed, with the models and samplers that it had."""
    name, newer = session(api, clock), session(api, clock)
    expected = {"training_run_ids": [api.model(name)], "sampler_ids": [api.sampler(name)]}
    api.finish(name)
    assert api.ok("get_session", session_id=name).items() >= expected.items()
    query = {"offset": "1", "access_scope": "accessible"}
    assert api.ok("list_sessions", query=query)["sessions"] == [name] != [newer]
    for operation in ("get_session", "trace_export"):
        assert api.refused(operation, session_id="nobody")[0] == 404


@pytest.mark.parametrize("reason", [{}, {"type": 1}, "success", None])
def test_a_session_ends_for_a_reason_that_has_a_type(
    api: Api, clock: Clock, reason: object
) -> None:
    """A reason without a type is 422, and the session goes on; an unknown type is kept."""
    name = session(api, clock)
    assert (
        api.refused("finish_session", {"reason": reason, "detail": None}, session_id=name)[0] == 422
    )
    api.ok("create_model", model_body(name, 1))
    api.ok("finish_session", {"reason": {"type": "new", "by": 1}, "detail": None}, session_id=name)


def test_a_search_takes_all_conditions_together(api: Api, clock: Clock) -> None:
    """Project, name, metadata, owner and id each narrow the result, alone and together."""
    night = session(
        api, clock, project_id="p", display_name="nightly run", user_metadata={"a": "b", "n": 1}
    )
    day = session(api, clock, project_id="q", display_name="daily run")
    plain = session(api, clock)
    assert found(api) == [plain, day, night]
    assert found(api, project_ids=["p", "q"]) == [day, night]
    assert found(api, project_ids=["default"]) == [plain]
    assert found(api, display_name="night") == [night]
    assert found(api, user_metadata={"a": "b", "n": "1"}) == [night]
    assert found(api, session_id=day) == [day]
    assert found(api, owner={"type": "user", "owner_urns": [OWNER]}) == [plain, day, night]
    assert found(api, owner={"type": "user", "owner_urns": ["urn:other"]}) == []
    assert found(api, project_ids=["p"], display_name="daily") == []


def test_a_search_by_status(make_api: MakeApi, clock: Clock) -> None:
    """A session is active, finished by its client for a reason, or ended for its silence."""
    api = make_api(clock=clock, max_sessions=3, idle_session_seconds=100.0)
    silent = session(api, clock)
    clock.seconds += 100
    failed = session(api, clock)
    api.finish(failed, "errored")
    active = [session(api, clock) for _ in range(3)]
    finished, cancelled = {"type": "client_finished"}, {"type": "cancelled"}
    for statuses, expected in (
        ([{"type": "active"}], active[::-1]),
        ([cancelled], [silent]),
        ([finished, cancelled], [failed, silent]),
        ([{**finished, "reasons": ["success"]}], []),
        ([{**finished, "reasons": ["success", "errored"]}], [failed]),
        ([{"type": "failed"}], []),
    ):
        assert found(api, statuses=statuses) == expected


def test_what_begins_in_a_session_keeps_it_alive(make_api: MakeApi, clock: Clock) -> None:
    """A client that samples without heartbeats is not silent."""
    api = make_api(clock=clock, idle_session_seconds=100.0)
    name = session(api, clock)
    for number in range(3):
        clock.seconds += 60
        api.sampler(name, number)
        api.shared.store.end_idle()
    assert found(api, statuses=[{"type": "active"}]) == [name]


def test_a_search_result_describes_its_session(api: Api, clock: Clock) -> None:
    """A search result has the session's time, owner, status and the size of its checkpoints."""
    name = session(api, clock, project_id="p", display_name="n", user_metadata={"a": "b"})
    model = api.model(name)
    api.result(api.save(model, 1, "a"))
    api.ok("finish_session", DONE, session_id=name)
    (summary,) = api.ok("search_sessions", {"user_metadata": {}})["sessions"]
    assert summary.pop("checkpoint_storage_bytes") > 1000
    assert summary == {
        "session_id": name,
        "created_at": "1970-01-01T00:16:41Z",
        "owner": OWNER,
        "project_id": "p",
        "status": {"type": "client_finished", "reason": {"type": "success"}, "detail": "all well"},
        "checkpoints_count": 1,
        "display_name": "n",
        "user_metadata": {"a": "b"},
    }


def test_a_search_comes_in_pages(api: Api, clock: Clock) -> None:
    """Pages have each session once, also of the same moment; the last names no next one."""
    ids = {session(api, clock) for _ in range(2)} | {api.session() for _ in range(3)}
    seen: list[str] = []
    body: dict[str, Any] = {"user_metadata": {}, "limit": 2}
    for _ in range(3):
        answer = api.ok("search_sessions", body)
        seen += [one["session_id"] for one in answer["sessions"]]
        body["cursor"] = answer.get("next_cursor")
    assert (sorted(seen), body["cursor"]) == (sorted(ids), None)
    for limit in (0, 201):
        assert api.refused("search_sessions", {"limit": limit})[0] == 422


def test_a_session_moves_with_all_it_has(api: Api, clock: Clock) -> None:
    """Runs and checkpoints move with their session into the project, which must have a name."""
    name = session(api, clock)
    api.result(api.save(api.model(name), 1, "a"))
    assert api.call("set_session_project", {"project_id": "p"}, session_id=name).status_code == 204
    assert found(api, project_ids=["p"]) == [name]
    (item,) = api.ok("get_checkpoint_storage_usage", query={"project_id": "p"})["data"]
    assert item["checkpoint_count"] == 1
    assert api.refused("set_session_project", {"project_id": " "}, session_id=name)[0] == 400
    assert api.refused("set_session_project", {"project_id": "p"}, session_id="nobody")[0] == 404


# Traces


def exported(api: Api, name: str) -> dict[str, Any]:
    """Poll until the engine's thread has made the trace."""
    assert api.ok("trace_export", session_id=name) == {"status": "pending"}
    done: list[dict[str, Any]] = []
    while not done or done[-1]["status"] == "pending":
        done.append(api.ok("trace_export", session_id=name))
    assert done[-1]["status"] == "ready"
    answer = api.get(done[-1]["url"])
    trace: dict[str, Any] = json.loads(answer.content)
    return trace


def test_a_trace_shows_what_ran_when(api: Api, clock: Clock) -> None:
    """A trace has each request's time in the queue and its run, on the line of its model."""
    name = session(api, clock)
    model, sampler = api.model(name), api.sampler(name)
    api.result(api.loss(model, 1))
    api.failure(api.loss(model, 2, loss_fn="ppo"))
    api.result(api.sample(sampler))
    events = exported(api, name)["traceEvents"]
    work = [event for event in events if event["ph"] == "X"]
    names = [event["name"] for event in work]
    assert names == ["create_model", "forward_backward", "forward_backward", "asample"]
    assert [event["args"]["failed"] for event in work] == [False, False, True, False]
    assert all(event["pid"] == WORK and event["dur"] >= 0 and event["ts"] >= 0 for event in work)
    waiting = [event for event in events if event["pid"] == QUEUE and event["ph"] in "be"]
    assert [event["ph"] for event in waiting] == ["b", "e"] * 4
    tracks = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert tracks == {model, sampler}


def test_a_trace_measures_with_the_servers_clock(make_api: MakeApi, clock: Clock) -> None:
    """Times are microseconds since the session's start; what is unfinished ends with the export."""
    engine = GatedEngine()
    api = make_api(engine, clock=clock, hold_seconds=0)
    name = api.session()
    created = api.create_model(name)
    api.wait(created)
    clock.seconds += 2
    late = api.ok("optim_step", step_body(created["model_id"], 9))
    clock.seconds += 3
    events = exported(api, name)["traceEvents"]
    (begun, ended) = [
        event for event in events if event["ph"] in "be" and event["name"] == "optim_step"
    ]
    assert (begun["ts"], ended["ts"]) == (2_000_000, 5_000_000)
    assert begun["args"] == {"request_id": late["request_id"], "failed": False, "finished": False}


def test_a_trace_is_made_anew_after_its_time(api: Api, clock: Clock) -> None:
    """A trace is reused until its link has expired; the next call then makes another one."""
    name = session(api, clock)
    assert len(exported(api, name)["traceEvents"]) == 2
    api.model(name)
    url = api.ok("trace_export", session_id=name)["url"]
    assert len(json.loads(api.get(url).content)["traceEvents"]) == 2
    clock.seconds += 3600
    assert api.get(url).status_code == 403
    assert len(exported(api, name)["traceEvents"]) > 2


def test_a_trace_is_bounded(make_api: MakeApi, clock: Clock) -> None:
    """A trace is limited to the newest requests."""
    api = make_api(clock=clock, max_trace_spans=2)
    name = session(api, clock)
    sampler = api.sampler(name)
    futures = [api.ok("asample", sample_body(sampler, number)) for number in range(4)]
    api.results(futures)
    work = [event for event in exported(api, name)["traceEvents"] if event["ph"] == "X"]
    assert [event["args"]["request_id"] for event in work] == [
        future["request_id"] for future in futures[2:]
    ]
