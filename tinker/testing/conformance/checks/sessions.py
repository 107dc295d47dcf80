"""Sessions: begun, kept, found again, finished."""

from __future__ import annotations

import uuid

from tinker_wire import models
from tinker_wire.api import sampling as sampling_api
from tinker_wire.api import service as api
from tinker_wire.runtime import Request

from tinker.testing.conformance.bench import Bench
from tinker.testing.conformance.exchange import NOT_THERE
from tinker.testing.conformance.outcome import Absent
from tinker.testing.conformance.registry import check
from tinker.testing.conformance.trainee import create


@check("create_session", core=True)
def begin(bench: Bench) -> None:
    """Each session gets an id of its own."""
    other = bench.new_session()
    bench.require(bench.session() != other, "two sessions have the same id")
    bench.leave(other)


@check("session_heartbeat")
def heartbeat(bench: Bench) -> None:
    """A heartbeat of a session that lives is answered."""
    bench.call(_heartbeat(bench.session()))


@check("finish_session", "session_heartbeat")
def finish(bench: Bench) -> None:
    """A session may be finished twice, and its heartbeats are answered with 410 from then on."""
    session = bench.new_session()
    bench.finish(session, "errored")
    bench.finish(session, "success")
    bench.refused(_heartbeat(session), 410)


@check("list_sessions")
def newest_first(bench: Bench) -> None:
    """Sessions are listed newest first, in pages."""
    older, newer = bench.session(), bench.new_session()
    first = bench.call(api.list_sessions(limit=1)).sessions
    bench.expect(first == [newer], f"the newest session is {newer!r}, and the first page of one entry holds {first}")
    both = bench.call(api.list_sessions(limit=2)).sessions
    bench.expect(both == [newer, older], f"the newest two are {newer!r} and {older!r}, a page of two holds {both}")
    second = bench.call(api.list_sessions(limit=1, offset=1)).sessions
    bench.expect(second == [older], f"with an offset of 1 the page holds {second}")
    bench.leave(newer)


@check("get_session")
def contents(bench: Bench) -> None:
    """A session names its models and samplers, its metadata and its name."""
    session = bench.new_session(user_metadata={"k": "v"}, display_name="conformance check")
    body = models.CreateSamplingSessionRequest(session_id=session, sampling_session_seq_id=0, base_model=bench.base_model())
    sampler = bench.call(sampling_api.create_sampling_session(body)).sampling_session_id
    trainee = create(bench, session_id=session)
    found = bench.call(api.get_session(session_id=session))
    bench.require(found.training_run_ids == [trainee.model_id], f"the session's runs are {found.training_run_ids}")
    bench.require(found.sampler_ids == [sampler], f"the session's samplers are {found.sampler_ids}")
    bench.expect(found.user_metadata == {"k": "v"}, f"the metadata is {found.user_metadata}")
    bench.expect(found.display_name == "conformance check", f"the display name is {found.display_name!r}")
    bench.leave(session)


@check("search_sessions")
def search(bench: Bench) -> None:
    """Sessions are found by metadata, name and status, page by page, newest first."""
    mark = uuid.uuid4().hex
    made = [bench.new_session(user_metadata={"mark": mark}, display_name=f"search {mark} {i}") for i in range(3)]
    body = models.SessionSearchRequest(user_metadata={"mark": mark}, limit=2)
    page = bench.call(api.search_sessions(body))
    found = [one.session_id for one in page.sessions]
    bench.require(page.next_cursor is not None, f"three sessions are more than a page of two, which names no next: {found}")
    rest = bench.call(api.search_sessions(models.SessionSearchRequest(user_metadata={"mark": mark}, cursor=page.next_cursor)))
    found += [one.session_id for one in rest.sessions]
    bench.require(found == made[::-1], f"of {made}, newest first, are found {found}")
    bench.expect(rest.next_cursor is None, "the last page names a next one")
    _search_by_name_and_status(bench, mark, made)


def _search_by_name_and_status(bench: Bench, mark: str, made: list[str]) -> None:
    def found(**conditions: object) -> list[str]:
        body = models.SessionSearchRequest(**{"user_metadata": {"mark": mark}, **conditions})  # type: ignore[arg-type]
        return [one.session_id for one in bench.call(api.search_sessions(body)).sessions]

    by_name = found(display_name=f"{mark} 1")
    bench.expect(by_name == [made[1]], f"by a part of its name {made[1]!r} is found as {by_name}")
    bench.finish(made[0], "errored")
    finished = found(statuses=[models.ClientFinishedSessionStatusQuery(reasons=["errored"])])
    bench.expect(finished == [made[0]], f"the one that its client finished is {made[0]!r}, found are {finished}")
    active = found(statuses=[models.ActiveSessionStatusQuery()])
    bench.expect(active == made[:0:-1], f"active are {made[:0:-1]}, found are {active}")
    bench.leave(*made[1:])


@check("set_session_project")
def project(bench: Bench) -> None:
    """A session moves into a project; a project that is not there is refused with 400, 403 or 404."""
    body = models.SetSessionProjectRequest(project_id=f"conformance-{uuid.uuid4().hex[:8]}")
    request = api.set_session_project(body, session_id=bench.session())
    there = bench.send(request, content=b"{}").status not in NOT_THERE  # with a body that lacks the project
    if not there:
        raise Absent("there is no set_session_project")
    if bench.send(request).status >= 300:
        bench.refused(request, 400, 403, 404)


@check("trace_export")
def trace(bench: Bench) -> None:
    """An export of a session's timing comes to an end, as a URL or as an error."""
    request = api.trace_export(session_id=bench.session())
    answer = bench.call(request)
    while answer.status == "pending":
        bench.deadline.pause(1.0, "the trace export")
        answer = bench.call(request)
    bench.expect(bool(answer.url) == (answer.status == "ready"), f"with status {answer.status!r} the URL is {answer.url!r}")
    bench.expect(answer.status != "failed" or bool(answer.error), "a failed export says no reason")


def _heartbeat(session_id: str) -> Request[models.SessionHeartbeatResponse]:
    return api.session_heartbeat(models.SessionHeartbeatRequest(session_id=session_id))
