"""The routes that browsers and monitors ask for, and the files that come with them. Nothing is fetched from elsewhere.

Pages and their files hold no data, so they need no key; what they show is asked for with one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tinker_wire import models

from tinker._wire import json
from tinker.local.errors import APIProblem, Endpoint, answer_errors, error_response
from tinker.local.state import State
from tinker.local.v1.routes import read_any_credential
from tinker.local.web.overview import describe_server
from tinker.local.web.traffic import Traffic, write_metrics

ASSETS = Path(__file__).with_name("assets")
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": json.MEDIA_TYPE,
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: Swagger UI writes styles into its page.
DOCS_POLICY = POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")
HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def web_routes(state: State, traffic: Traffic) -> list[Route]:
    """Make the routes of the pages, their files, the document of the API and the metrics."""

    async def metrics(request: Request) -> Response:
        state.accounts.admit("metrics", read_any_credential(request.headers))
        content, media_type = await state.offload_always(lambda: write_metrics(state, traffic))
        return Response(content, media_type=media_type)

    async def health(_: Request) -> Response:
        return Response(json.encode(models.HealthResponse(status="ok")), media_type=json.MEDIA_TYPE)

    async def overview(request: Request) -> Response:
        state.accounts.admit("overview", read_any_credential(request.headers))
        engines = await state.engines()
        records = await state.offload_always(state.checkpoints.list)
        facts = describe_server(state, engines, traffic, records, request.query_params.get("run", ""))
        return Response(json.encode(facts), headers={**HEADERS, "cache-control": "no-store"}, media_type=json.MEDIA_TYPE)

    return [
        Route("/", _page("index.html"), methods=["GET"]),
        Route("/docs", _page("docs.html", DOCS_POLICY), methods=["GET"]),
        Route("/favicon.ico", _page("icon.svg"), methods=["GET"]),  # for what asks before it reads a page
        Route("/openapi.json", _page("openapi.json"), methods=["GET"]),
        *(Route(f"/assets/{file.name}", _page(file.name), methods=["GET"]) for file in sorted(ASSETS.iterdir())),
        Route("/health", health, methods=["GET"]),  # where load balancers and containers look
        Route("/overview", answer_errors(overview, _refuse), methods=["GET"]),
        Route("/metrics", answer_errors(metrics, _refuse), methods=["GET"]),
    ]


def _page(name: str, policy: str = POLICY) -> Endpoint:
    """Return an endpoint that answers one file."""
    file = ASSETS / name

    async def endpoint(request: Request) -> Response:
        return Response(
            file.read_bytes(), headers={**HEADERS, "content-security-policy": policy}, media_type=MEDIA_TYPES[file.suffix]
        )

    return endpoint


def _refuse(problem: APIProblem) -> Response:
    response = error_response(problem)
    response.headers.update(HEADERS)
    return response
