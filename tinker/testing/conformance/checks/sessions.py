"""Sessions: begun, kept, found again, finished."""

from __future__ import annotations

import uuid

import msgspec
from tinker_wire import models
from tinker_wire.api import sampling as sampling_api
from tinker_wire.api import service as api
from tinker_wire.runtime import Request

from tinker._http import ABSENT_STATUSES
from tinker.testing.conformance.context import CheckContext
from tinker.testing.conformance.decoding import detail
from tinker.testing.conformance.outcome import Absent, Differs
from tinker.testing.conformance.registry import check
from tinker.testing.conformance.session import is_without_route


@check("create_session", core=True, basis=True)
def begin(context: CheckContext) -> None:
    """Each session gets an id of its own."""
    one, other = context.new_session(), context.new_session()
    if one == other:  # the other checks use it, and what needs a session of its own is blocked
        context.known.shared_session = one
        context.cleanup.sessions.clear()
    context.require(one != other, "two sessions have the same id")


@check("session_heartbeat")
def heartbeat(context: CheckContext) -> None:
    """A heartbeat of an open session succeeds."""
    request = _heartbeat(context.session())
    answer = context.send(request)
    elsewhere = context.send(msgspec.structs.replace(request, path=f"{request.path}s"))
    if (
        answer.status == 404
        and not is_without_route(answer)
        and answer.content != elsewhere.content
    ):
        how = f"the heartbeat of an open session answers 404: {detail(answer)}"
        raise Differs(how, cause="heartbeat", operation=request.operation)
    context.decode_accepted(request, answer)


@check("finish_session", "session_heartbeat")
def finish(context: CheckContext) -> None:
    """A session can be finished twice; its later heartbeats return 410."""
    session = context.new_session()
    is_kept = context.send(_heartbeat(session)).status < 300
    context.finish(session, "errored")
    context.finish(session, "success")
    if is_kept:
        context.expect_refusal(_heartbeat(session), 410)


@check("list_sessions")
def newest_first(context: CheckContext) -> None:
    """Sessions are listed newest first, in pages."""
    older, newer = context.new_session(), context.new_session()
    first = context.call(api.list_sessions(limit=1)).sessions
    context.expect(
        first == [newer],
        f"the newest session is {newer!r}, and the first page of one entry contains {first}",
    )
    both = context.call(api.list_sessions(limit=2)).sessions
    context.expect(
        both == [newer, older],
        f"the newest two are {newer!r} and {older!r}, a page of two contains {both}",
    )
    second = context.call(api.list_sessions(limit=1, offset=1)).sessions
    context.expect(second == [older], f"with an offset of 1 the page contains {second}")


@check("get_session")
def contents(context: CheckContext) -> None:
    """A session lists its models and samplers, its metadata and its name."""
    session = context.new_session(user_metadata={"k": "v"}, display_name="conformance check")
    body = models.CreateSamplingSessionRequest(
        session_id=session, sampling_session_seq_id=0, base_model=context.base_model()
    )
    sampler = context.call(sampling_api.create_sampling_session(body)).sampling_session_id
    fixture = context.create(session_id=session)
    found = context.call(api.get_session(session_id=session))
    context.require(
        found.training_run_ids == [fixture.model_id],
        f"the session's runs are {found.training_run_ids}",
    )
    context.require(
        found.sampler_ids == [sampler], f"the session's samplers are {found.sampler_ids}"
    )
    context.expect(found.user_metadata == {"k": "v"}, f"the metadata is {found.user_metadata}")
    context.expect(
        found.display_name == "conformance check", f"the display name is {found.display_name!r}"
    )


@check("search_sessions")
def search(context: CheckContext) -> None:
    """Sessions can be found by metadata, name and status, in pages, newest first."""
    mark = uuid.uuid4().hex
    made = [
        context.new_session(user_metadata={"mark": mark}, display_name=f"search {mark} {i}")
        for i in range(3)
    ]
    body = models.SessionSearchRequest(user_metadata={"mark": mark}, limit=2)
    page = context.call(api.search_sessions(body))
    found = [one.session_id for one in page.sessions]
    context.require(
        page.next_cursor is not None,
        f"three sessions are more than a page of two, which names no next: {found}",
    )
    rest = context.call(
        api.search_sessions(
            models.SessionSearchRequest(user_metadata={"mark": mark}, cursor=page.next_cursor)
        )
    )
    found += [one.session_id for one in rest.sessions]
    context.require(found == made[::-1], f"of {made}, newest first, are found {found}")
    context.expect(rest.next_cursor is None, "the last page names a next one")
    _search_by_name_and_status(context, mark, made)


def _search_by_name_and_status(context: CheckContext, mark: str, made: list[str]) -> None:
    def find(**conditions: object) -> list[str]:
        body = models.SessionSearchRequest(**{"user_metadata": {"mark": mark}, **conditions})  # type: ignore[arg-type]
        return [one.session_id for one in context.call(api.search_sessions(body)).sessions]

    by_name = find(display_name=f"{mark} 1")
    context.expect(by_name == [made[1]], f"by a part of its name {made[1]!r} is found as {by_name}")
    context.finish(made[0], "errored")
    finished = find(statuses=[models.ClientFinishedSessionStatusQuery(reasons=["errored"])])
    context.expect(
        finished == [made[0]],
        f"the one that its client finished is {made[0]!r}, found are {finished}",
    )
    active = find(statuses=[models.ActiveSessionStatusQuery()])
    context.expect(active == made[:0:-1], f"active are {made[:0:-1]}, found are {active}")


@check("set_session_project")
def project(context: CheckContext) -> None:
    """A session can be moved into a project; an unknown project is refused with 400, 403 or 404."""
    body = models.SetSessionProjectRequest(project_id=f"conformance-{uuid.uuid4().hex[:8]}")
    request = api.set_session_project(body, session_id=context.session())
    # with a body that lacks the project
    if context.send(request, content=b"{}").status in ABSENT_STATUSES:
        raise Absent("there is no set_session_project")
    if context.send(request).status >= 300:
        context.expect_refusal(request, 400, 403, 404)


@check("trace_export")
def trace(context: CheckContext) -> None:
    """An export of a session's timing ends, with a URL or an error."""
    request = api.trace_export(session_id=context.session())
    answer = context.call(request)
    while answer.status == "pending":
        context.deadline.pause(1.0, "the trace export")
        answer = context.call(request)
    context.expect(
        bool(answer.url) == (answer.status == "ready"),
        f"with status {answer.status!r} the URL is {answer.url!r}",
    )
    context.expect(
        answer.status != "failed" or bool(answer.error), "a failed export says no reason"
    )


def _heartbeat(session_id: str) -> Request[models.SessionHeartbeatResponse]:
    return api.session_heartbeat(models.SessionHeartbeatRequest(session_id=session_id))
