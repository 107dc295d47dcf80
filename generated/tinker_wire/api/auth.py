# generated from openapi.yaml; do not edit
"""Tokens and API keys."""

from __future__ import annotations

from typing import TypeVar

from .. import models
from ..runtime import Request

T = TypeVar("T")


def auth_token(body: models.AuthTokenRequest) -> Request[models.AuthTokenResponse]:
    """Exchange a credential for a short-lived JWT.

    Used if `pjwt_auth_enabled` is true in the client configuration. The header `X-API-Key` has the original
    credential, and the body is an empty object. Every other request then has the JWT in `X-API-Key`. Clients renew
    it after about half of `exp - iat`, and after a 401 whose `WWW-Authenticate` contains `error="invalid_token"`.

    `POST /api/v1/auth/token`; servers may lack it.
    """
    return Request(
        operation="auth_token",
        method="POST",
        path="/api/v1/auth/token",
        reply=models.AuthTokenResponse,
        body=body,
    )


def get_api_key() -> Request[models.SelfApiKeyResponse]:
    """Describe the API key of this request.

    Command-line logins use it to name the key that they store.

    `GET /api/v1/auth/apikey/me`; servers may lack it.
    """
    return Request(
        operation="get_api_key",
        method="GET",
        path="/api/v1/auth/apikey/me",
        reply=models.SelfApiKeyResponse,
    )


def delete_api_key() -> Request[None]:
    """Revoke the API key of this request.

    Used at logout, for keys that were generated for one machine.

    `DELETE /api/v1/auth/apikey/me`; servers may lack it.
    """
    return Request(
        operation="delete_api_key",
        method="DELETE",
        path="/api/v1/auth/apikey/me",
        reply=None,
    )
