# generated from openapi.yaml; do not edit
"""Configuration, sessions and what the server offers."""

from __future__ import annotations

from typing import TypeVar

from .. import models
from ..runtime import Request, path_value

T = TypeVar("T")


def healthz() -> Request[models.HealthResponse]:
    """Is the server up?

    `GET /api/v1/healthz`; servers may lack it.
    """
    return Request(
        operation="healthz",
        method="GET",
        path="/api/v1/healthz",
        reply=models.HealthResponse,
    )


def client_config(body: models.ClientConfigRequest) -> Request[models.ClientConfigResponse]:
    """Settings the server pushes to a client, asked once.

    Servers without it answer 404; the defaults of ClientConfigResponse then hold.

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
    """Settings that may change while a client runs.

    `POST /api/v1/client/dynamic_config`; servers may lack it.
    """
    return Request(
        operation="client_dynamic_config",
        method="POST",
        path="/api/v1/client/dynamic_config",
        reply=models.ClientDynamicConfigResponse,
        body=body,
    )


def create_session(body: models.CreateSessionRequest) -> Request[models.CreateSessionResponse]:
    """Open a session, the owner of models and samplers.

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
    """Keep a session alive; sent about every ten seconds.

    410 says that the session is finished; a client then stops sending.

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
    """End a session and say how it went; the first reason wins.

    `POST /api/v1/sessions/{session_id}/finish`; servers may lack it.
    """
    return Request(
        operation="finish_session",
        method="POST",
        path=f"/api/v1/sessions/{path_value('session_id', session_id)}/finish",
        reply=None,
        body=body,
    )


def get_server_capabilities() -> Request[models.GetServerCapabilitiesResponse]:
    """Which base models the server offers.

    `GET /api/v1/get_server_capabilities`.
    """
    return Request(
        operation="get_server_capabilities",
        method="GET",
        path="/api/v1/get_server_capabilities",
        reply=models.GetServerCapabilitiesResponse,
    )
