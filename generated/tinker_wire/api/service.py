# generated from openapi.yaml; do not edit
"""Configuration, sessions and what the server offers."""

from __future__ import annotations

from typing import TypeVar

from .. import models
from ..runtime import Request, path_value, query_string

T = TypeVar("T")


def healthz() -> Request[models.HealthResponse]:
    """Check whether the server is up.

    Needs no credential. A server that cannot accept work responds with 503.

    `GET /api/v1/healthz`; servers may lack it.
    """
    return Request(
        operation="healthz",
        method="GET",
        path="/api/v1/healthz",
        reply=models.HealthResponse,
    )


def client_config(body: models.ClientConfigRequest) -> Request[models.ClientConfigResponse]:
    """Get the settings for a client, before its first other request.

    Clients send the original credential here, even if the response enables the JWT exchange. `{}` is a complete
    response: missing settings have the defaults of `ClientConfigResponse`. Servers without this endpoint respond
    with 404, 405 or 501, which means the same.

    `POST /api/v1/client/config`; servers may lack it.
    """
    return Request(
        operation="client_config",
        method="POST",
        path="/api/v1/client/config",
        reply=models.ClientConfigResponse,
        body=body,
    )


def client_dynamic_config(body: models.ClientConfigRequest) -> Request[models.ClientDynamicConfigResponse]:
    """Get the settings that may change while a client runs.

    Clients call this after `client_config`, and again every `refresh_interval_sec` seconds. If a refresh fails, the
    client keeps the last settings.

    `POST /api/v1/client/dynamic_config`; servers may lack it.
    """
    return Request(
        operation="client_dynamic_config",
        method="POST",
        path="/api/v1/client/dynamic_config",
        reply=models.ClientDynamicConfigResponse,
        body=body,
    )


def get_server_capabilities() -> Request[models.GetServerCapabilitiesResponse]:
    """List the base models that the server offers.

    Clients take the names of models from here. A name may contain `/` and `:`.

    `GET /api/v1/get_server_capabilities`.
    """
    return Request(
        operation="get_server_capabilities",
        method="GET",
        path="/api/v1/get_server_capabilities",
        reply=models.GetServerCapabilitiesResponse,
    )


def create_session(body: models.CreateSessionRequest) -> Request[models.CreateSessionResponse]:
    """Open a session, which owns training runs and sampling sessions.

    Each client process opens one session. Clients log the messages in the response for the user; there is no other
    version negotiation. The models and samplers of a session end with it.

    `POST /api/v1/create_session`.
    """
    return Request(
        operation="create_session",
        method="POST",
        path="/api/v1/create_session",
        reply=models.CreateSessionResponse,
        body=body,
    )


def session_heartbeat(body: models.SessionHeartbeatRequest) -> Request[models.SessionHeartbeatResponse]:
    """Keep a session alive; clients call this about every ten seconds.

    410 means that the session is finished, and makes the client stop. Clients ignore other failures, so a session
    must survive a few missing heartbeats (at least 120 s).

    `POST /api/v1/session_heartbeat`; servers may lack it.
    """
    return Request(
        operation="session_heartbeat",
        method="POST",
        path="/api/v1/session_heartbeat",
        reply=models.SessionHeartbeatResponse,
        body=body,
    )


def finish_session(body: models.FinishSessionRequest, *, session_id: str) -> Request[None]:
    """End a session and report how it ended.

    The first reason counts; finishing a finished session changes nothing. Later heartbeats get 410.

    `POST /api/v1/sessions/{session_id}/finish`; servers may lack it.

    - `session_id`: The session id.
    """
    return Request(
        operation="finish_session",
        method="POST",
        path=f"/api/v1/sessions/{path_value('session_id', session_id)}/finish",
        reply=None,
        body=body,
    )


def list_sessions(
    *, limit: int = 20, offset: int = 0, access_scope: models.AccessScope = "owned"
) -> Request[models.ListSessionsResponse]:
    """List the sessions of the user, newest first.

    Returns a page of ids. Use `get_session` for the content of a session, and `search_sessions` to find sessions by
    content.

    `GET /api/v1/sessions`; servers may lack it.

    - `limit`: The largest number of entries in the answer.
    - `offset`: The number of entries to skip.
    - `access_scope`: `owned` is what belongs to the user, `accessible` everything that the user may see.
    """
    return Request(
        operation="list_sessions",
        method="GET",
        path="/api/v1/sessions",
        reply=models.ListSessionsResponse,
        query=query_string(("limit", limit), ("offset", offset), ("access_scope", access_scope)),
    )


def search_sessions(body: models.SessionSearchRequest) -> Request[models.SessionSearchResponse]:
    """Find sessions by metadata, owner, project, name or status.

    Sessions must match all conditions. They are ordered by creation time, newest first. Pass `next_cursor` as
    `cursor` to get the next page; the last page has none.

    `POST /api/v1/sessions/search`; servers may lack it.
    """
    return Request(
        operation="search_sessions",
        method="POST",
        path="/api/v1/sessions/search",
        reply=models.SessionSearchResponse,
        body=body,
    )


def get_session(*, session_id: str, access_scope: models.AccessScope = "owned") -> Request[models.GetSessionResponse]:
    """Get the models and samplers of a session.

    Returns the ids of its training runs and sampling sessions, and the metadata of the user.

    `GET /api/v1/sessions/{session_id}`; servers may lack it.

    - `session_id`: The session id.
    - `access_scope`: `owned` is what belongs to the user, `accessible` everything that the user may see.
    """
    return Request(
        operation="get_session",
        method="GET",
        path=f"/api/v1/sessions/{path_value('session_id', session_id)}",
        reply=models.GetSessionResponse,
        query=query_string(("access_scope", access_scope)),
    )


def set_session_project(body: models.SetSessionProjectRequest, *, session_id: str) -> Request[None]:
    """Move a session, with its runs and checkpoints, into a project.

    The runs and checkpoints of the session move too. If the project does not exist, or belongs to somebody else, the
    request is refused.

    `PUT /api/v1/sessions/{session_id}/project`; servers may lack it.

    - `session_id`: The session id.
    """
    return Request(
        operation="set_session_project",
        method="PUT",
        path=f"/api/v1/sessions/{path_value('session_id', session_id)}/project",
        reply=None,
        body=body,
    )


def trace_export(*, session_id: str) -> Request[models.TraceExportResponse]:
    """Export a timing trace of a session.

    The first call starts the export. While the status is `pending`, clients repeat the call every 5 s. `ready` comes
    with a URL that is valid for about an hour, `failed` with an error text.

    `GET /api/v1/sessions/{session_id}/trace_export`; servers may lack it.

    - `session_id`: The session id.
    """
    return Request(
        operation="trace_export",
        method="GET",
        path=f"/api/v1/sessions/{path_value('session_id', session_id)}/trace_export",
        reply=models.TraceExportResponse,
    )
