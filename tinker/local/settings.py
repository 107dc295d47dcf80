"""The settings of a server and their defaults."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import attrs
from tinker_wire import models

from tinker._config import local_dir
from tinker.local.profiles import OFFICIAL, Profile, find_profile

DEFAULT_DATA_DIR = Path("~/.tinker/local")


def _expand_path(path: str | Path | None) -> Path:
    return Path(path or local_dir() or DEFAULT_DATA_DIR).expanduser()


def _to_tuple(hosts: Iterable[str]) -> tuple[str, ...]:
    return tuple(hosts)


def _default_hold_seconds(settings: Settings) -> float:
    return settings.profile.hold_seconds


@attrs.frozen(kw_only=True)
class Settings:
    """Settings of one server. Seconds and bytes are in the names; every limit answers with an error that names it.

    ``data_dir``: where checkpoints live; made on the first save. None means ``TINKER_LOCAL_DIR``, else ``~/.tinker/local``.
    ``api_key``: what clients must send as their key; None accepts anything, also nothing, but on a port no requests of web
    pages, and only those sent to this machine's addresses, to the host it listens on, to that of ``public_url`` or to one of
    ``allowed_hosts``.
    ``any_base_model``: True serves the one loaded model under every name asked for, so that scripts written for another
    server run unchanged; False refuses names other than the loaded model's.
    ``profile``: which server to pass for: ``official`` (all of the contract), ``skyrl`` or ``minimal-json``.

    ``hold_seconds``: how long ``retrieve_future`` waits for a result before it says "try again"; 0 never waits. Clients
    give up after 45 s, so stay below 40. The default is the profile's.
    ``inline_result_bytes``: results larger than this are announced by size first, to clients that can take that.
    ``result_seconds``, ``max_results``, ``max_result_bytes``: how long and how many finished results are kept. Those that
    were fetched go first. A result that is gone answers 410.

    ``max_request_bytes``: largest body, before and after decompression (413).
    ``max_sessions``, ``max_models``, ``max_samplers``: how many may live at once, over all clients (403). Clients send a
    heartbeat every ten seconds: sessions silent for ``silent_session_seconds`` are ended when room is needed, those silent
    for ``idle_session_seconds`` in any case. ``max_rank``: of a new adapter (400).
    ``max_queued_requests``: submitted and not finished (429). ``max_samples``: of one request (400). ``max_custom_losses``: of
    one session (403).

    ``sample_batch_tokens``: prompt and continuation tokens of the requests that are sampled together.
    ``gap_seconds``: requests of a model run by number. A number that fails to arrive (its client had an error after
    taking it) is given up after this long, and the requests behind it go on.

    ``max_uploads``: adapters that clients are sending at once (429). ``max_upload_bytes``: largest file of one (413).

    ``client_config``, ``client_dynamic_config``: what clients are told when they ask for their settings. Where the first
    one says ``pjwt_auth_enabled``, clients must exchange their key for tokens, which are good for ``token_seconds``.
    ``link_seconds``: how long a link to a file is good. ``public_url``: where clients reach this server, where that is not
    the address they used (behind a proxy that adds a path); None means the address they used.
    ``max_telemetry_events``, ``max_audit_entries``: how many reported events and entries of the audit log are kept, the
    newest. ``max_trace_spans``: how many requests of one session its trace shows, the newest.
    """

    data_dir: Path = attrs.field(default=None, converter=_expand_path)
    api_key: str | None = attrs.field(default=None, repr=False)
    allowed_hosts: tuple[str, ...] = attrs.field(default=(), converter=_to_tuple)
    any_base_model: bool = False
    profile: Profile = attrs.field(default=OFFICIAL, converter=find_profile)
    hold_seconds: float = attrs.field(default=attrs.Factory(_default_hold_seconds, takes_self=True))
    inline_result_bytes: int = 1 << 20
    result_seconds: float = 3600.0
    max_results: int = 10_000
    max_result_bytes: int = 1 << 30
    max_request_bytes: int = 256 << 20
    max_sessions: int = 1000
    max_models: int = 100
    max_samplers: int = 10_000
    silent_session_seconds: float = 60.0
    idle_session_seconds: float = 600.0
    max_rank: int = 1024
    max_queued_requests: int = 20_000
    max_samples: int = 1024
    max_custom_losses: int = 1000
    sample_batch_tokens: int = 1 << 16
    gap_seconds: float = 120.0
    max_uploads: int = 16
    max_upload_bytes: int = 4 << 30
    max_telemetry_events: int = 1000
    max_audit_entries: int = 10_000
    max_trace_spans: int = 10_000
    token_seconds: float = 3600.0
    link_seconds: float = 3600.0
    public_url: str | None = None
    client_config: models.ClientConfigResponse = attrs.field(factory=models.ClientConfigResponse)
    client_dynamic_config: models.ClientDynamicConfigResponse = attrs.field(factory=models.ClientDynamicConfigResponse)
