"""Packages that change internals of the official client, which has no effect on this one, and what to do instead."""

from __future__ import annotations

#: By distribution: its module, and the advice.
PATCHING_PACKAGES = {
    "twinkle-kit": (
        "twinkle_client",
        "twinkle_client.init_tinker_client() has no effect on this client, because it changes internals of the official one; "
        "pass its headers yourself: ServiceClient(wire='json', default_headers_overrides="
        "twinkle_client.http.headers.build_routing_headers(REQUEST_ID, f'Bearer {KEY}'))",
    ),
}
