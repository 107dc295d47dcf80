"""Claims of the pages that no code block shows."""

from __future__ import annotations

from pathlib import Path

import httpx
from starlette.applications import Starlette
from starlette.routing import Mount

import tinker
from tinker._http import messages
from tinker._http.messages import Purpose
from tinker._http.transport import SHORTEST_PATIENCE_SECONDS
from tinker._wire import INLINE_NBYTES
from tinker.local import Settings, State, create_app, open_engine

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_base_url_with_a_path(tmp_path: Path) -> None:
    """A server may live below a path, with or without a slash at its end."""
    state = State(lambda: open_engine("toy"), Settings(data_dir=tmp_path))
    transport = httpx.ASGITransport(Starlette(routes=[Mount("/some/where", app=create_app(state))]))
    for base_url in ("http://host/some/where", "http://host/some/where/"):
        with tinker.ServiceClient(base_url=base_url, transport=transport) as service:
            assert service.get_server_capabilities().supported_models[0].model_name == "tinker/toy"
    state.close()


def test_limits_of_responses() -> None:
    """The limits of silence, time and size are those that the page about failures states."""
    page = (DOCS / "chaos.md").read_text()
    cells = [row.split("|") for row in page.splitlines() if row.startswith("| ")]
    rows = {one[1].strip(): one[2].strip() for one in cells}
    named = {
        "settings, token, start of a session": [Purpose.START],
        "creations, optimizer steps, saves, loads, samples, `RestClient`": [
            Purpose.SESSION,
            Purpose.SAMPLE,
            Purpose.STREAM,
        ],
        "`forward`, `forward_backward`": [Purpose.UPLOAD],
        "asking for a result": [Purpose.POLL],
        "heartbeat": [Purpose.HEARTBEAT],
    }
    assert f"a request of more than {INLINE_NBYTES >> 10} KiB" in page
    assert f"that value, at least {SHORTEST_PATIENCE_SECONDS:g}, at most 20" in page
    for row, purposes in named.items():
        assert [f"{purpose.read_seconds:g}" for purpose in purposes] == [rows[row]] * len(purposes)
    assert messages.ANSWER_SECONDS == 600
    assert "complete ten minutes after its headers" in page
    assert f"plus {messages.CONNECT_SECONDS:g} seconds if a connection is opened first" in page
    assert f"refuses headers of more than {messages.MAX_HEAD_NBYTES >> 10} KiB." in page
    assert (
        f"a sample may have {messages.MAX_RESULT_NBYTES >> 30} GiB, "
        f"{messages.MAX_UNPACKED_NBYTES >> 20} MiB of it"
    ) in page
    assert f"every other response, and every error, {messages.MAX_ANSWER_NBYTES >> 20} MiB" in page


def test_limits_of_the_local_server() -> None:
    """The limits of a server without settings are those that the pages state."""
    limits = Settings(data_dir=Path("unused"))
    servers, rl = ((DOCS / name).read_text() for name in ("servers.md", "rl.md"))
    assert (
        f"the limits are {limits.max_models} models and {limits.max_sessions} sessions" in servers
    )
    assert f"adapters of rank 1 to {limits.max_rank} with torch" in servers
    sizes = (
        f"than {limits.max_request_bytes >> 20} MiB, and uploaded files of more than "
        f"{limits.max_upload_bytes >> 30} GiB"
    )
    assert sizes in servers
    assert f"up to {limits.max_recorded_tokens >> 20} million sampled tokens" in rl
