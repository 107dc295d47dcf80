"""Everything about a server that can be chosen, with its defaults."""

from __future__ import annotations

from pathlib import Path

import attrs
from tinker_wire import models

DEFAULT_DATA_DIR = Path("~/.tinker/local")


def _expanded(path: str | Path | None) -> Path:
    return Path(DEFAULT_DATA_DIR if path is None else path).expanduser()


@attrs.frozen(kw_only=True)
class Settings:
    """Settings of one server. Seconds and bytes are in the names; every limit answers with an error that names it.

    ``data_dir``: where checkpoints live; made on the first save. None means ``~/.tinker/local``.
    ``api_key``: what clients must send as their key; None accepts anything, also nothing.
    ``any_base_model``: True serves the one loaded model under every name asked for, so that scripts written for another
    server run unchanged; False refuses names other than the loaded model's.

    ``hold_seconds``: how long ``retrieve_future`` waits for a result before it says "try again"; 0 never waits. Clients
    give up after 45 s, so stay below 40.
    ``inline_result_bytes``: results larger than this are announced by size first, to clients that can take that.
    ``result_seconds``, ``max_results``, ``max_result_bytes``: how long and how many finished results are kept. Those that
    were fetched go first. A result that is gone answers 410.

    ``max_request_bytes``: largest body, before and after decompression (413).
    ``max_sessions``, ``max_models``, ``max_samplers``: how many may live at once, over all clients (403). Sessions silent
    for ``idle_session_seconds`` are ended when room is needed; clients send a heartbeat every ten seconds.
    ``max_queued_requests``: submitted and not finished (429). ``max_samples``: of one request (400).

    ``sample_batch_tokens``: prompt and continuation tokens of the requests that are sampled together.
    ``gap_seconds``: requests of a model run by number. A number that fails to arrive (its client had an error after
    taking it) is given up after this long, and the requests behind it go on.

    ``client_config``, ``client_dynamic_config``: what clients are told when they ask for their settings.
    ``max_telemetry_events``: how many reported events are kept, the newest.
    """

    data_dir: Path = attrs.field(default=None, converter=_expanded)
    api_key: str | None = attrs.field(default=None, repr=False)
    any_base_model: bool = False
    hold_seconds: float = 30.0
    inline_result_bytes: int = 1 << 20
    result_seconds: float = 3600.0
    max_results: int = 10_000
    max_result_bytes: int = 1 << 30
    max_request_bytes: int = 256 << 20
    max_sessions: int = 1000
    max_models: int = 100
    max_samplers: int = 10_000
    idle_session_seconds: float = 600.0
    max_queued_requests: int = 20_000
    max_samples: int = 1024
    sample_batch_tokens: int = 1 << 16
    gap_seconds: float = 120.0
    max_telemetry_events: int = 1000
    client_config: models.ClientConfigResponse = attrs.field(factory=models.ClientConfigResponse)
    client_dynamic_config: models.ClientDynamicConfigResponse = attrs.field(factory=models.ClientDynamicConfigResponse)
