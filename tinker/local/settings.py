"""The settings of a server and their defaults."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import attrs
from tinker_wire import models

from tinker._basics.config import local_dir
from tinker.local.call import OFFICIAL, Profile, find_profile
from tinker.local.engines import Placement

DEFAULT_DATA_DIR = Path("~/.tinker/local")
Durability: TypeAlias = Literal["save", "step"]
VLLM = "vllm"


def _expand_path(path: str | Path | None) -> Path:
    return Path(path or local_dir() or DEFAULT_DATA_DIR).expanduser()


def _to_tuple(hosts: Iterable[str]) -> tuple[str, ...]:
    return tuple(hosts)


def _to_samplers(samplers: str | Iterable[str]) -> tuple[str, ...]:
    return (samplers,) if isinstance(samplers, str) else tuple(samplers)


def _check_samplers(
    settings: Settings, field: attrs.Attribute[Any], value: tuple[str, ...]
) -> None:
    if value not in ((), (VLLM,)) and not all(
        one.startswith(("http://", "https://")) for one in value
    ):
        raise ValueError(
            f"sampler is {value!r}; it must be {VLLM!r}, or one or more URLs, which start with "
            "http:// or https://"
        )
    if value == (VLLM,) and settings.quantize:
        raise ValueError(
            f"sampler {VLLM!r} starts a vLLM that samples from the model as it is stored, not from "
            "the quantized one that is "
            "trained; leave out the sampler or quantize"
        )


@attrs.frozen(kw_only=True)
class Settings(Placement):
    """Settings of one server. Seconds and bytes are in the names; every limit answers with an error
    that names it.

    ``data_dir``: where checkpoints live; made on the first save, by ``tinker serve`` at its start.
    None means ``TINKER_LOCAL_DIR``, else ``~/.tinker/local``. ``api_key``: what clients must send
    as their key; None accepts anything, also nothing, but on a port no requests of web pages, and
    only those sent to this machine's addresses, to the host it listens on, to that of
    ``public_url`` or to one of ``allowed_hosts``. ``any_base_model``: True serves the (first)
    loaded model under every name asked for, so that scripts written for another server run
    unchanged; False refuses names other than the loaded model's. ``durability``: what a killed
    server still has when it is started again on the same ``data_dir``. ``save``: the checkpoints.
    ``step``: sessions, runs as they were after the last optimizer step, requests and results, so
    that waiting clients continue; each step then writes the adapter and its optimizer. Not with the
    profile ``skyrl``, and one server for each folder. ``device``: where the torch engine computes:
    ``cpu``, ``cuda``, ``cuda:1``, ``mps``, or ``auto``: the first GPU that CUDA has, else the CPU.
    ``dtype``: the numbers of its model: ``float32``, ``bfloat16``, ``float16``, or ``auto``:
    bfloat16 with CUDA, else float32; adapters are float32. ``device_map``: how transformers spreads
    the model over all GPUs: ``auto``, ``balanced``, ``balanced_low_0`` or ``sequential``; None
    keeps it on one device. ``quantize``: the matrices of its layers in four bits (``nf4``) or eight
    (``int8``); None leaves them as they are stored. ``recompute``: whether training computes
    activations again instead of keeping them: ``always``, ``never``, or ``auto``, where they would
    take half of what is free. ``share_passes``: whether small losses of several runs are computed
    in one pass, which may change their last digits. Not with the durability ``step``. ``sampler``:
    ``vllm`` samples with a vLLM that is started beside the engine, URLs with one or more vLLMs that
    run; without, the engine samples. ``sampler_args``: more arguments for the ``vllm serve`` that
    is started. ``replicas``: how many processes have the whole model and train and sample together,
    as actors of Ray. ``ray``: the address of the cluster that they run in; None starts Ray on this
    machine. ``fsdp``: True splits each layer of the model over them. ``profile``: which server to
    pass for: ``official`` (all of the contract), ``skyrl`` or ``minimal-json``.

    ``strict``: True refuses JSON bodies with unknown fields (422); False names them in the log and
    in the answer's header ``X-Tinker-Unread-Fields``.

    ``hold_seconds``: how long ``retrieve_future`` waits for a result before it says "try again"; 0
    never waits. Clients give up after 45 s, so stay below 40. The default is the profile's.
    ``inline_result_bytes``: results larger than this are announced by size first, to clients that
    can take that. ``result_seconds``, ``max_results``, ``max_result_bytes``: how long and how many
    finished results are kept. Those that were fetched go first. A result that is gone answers 410.

    ``max_request_bytes``: largest body, before and after decompression (413). ``max_sessions``,
    ``max_models``, ``max_samplers``: how many may live at once, over all clients (403; 429 for
    sessions, for which clients wait). Clients send a heartbeat every ten seconds: sessions silent
    for ``silent_session_seconds`` are ended when room is needed, those silent for
    ``idle_session_seconds`` in any case. ``max_rank``: of a new adapter (400).
    ``max_queued_requests``: submitted and not finished (429). ``max_samples``: of one request
    (400). ``max_custom_losses``: of one session (403).

    ``max_recorded_tokens``: sampled tokens, of all sessions, that are recorded for the loss
    ``stable_reinforce``, at about 8 bytes each; beyond it go the sequences that were not used for
    longest. ``recorded_seconds``: a sequence that no training request names for longer is not there
    any more.

    ``sample_batch_tokens``: prompt and continuation tokens of the samples that run at once.
    ``sample_seconds``: a sample that has been running for longer fails. ``gap_seconds``: requests
    of a model run by number. A number that fails to arrive (its client had an error after taking
    it) is given up after this long, and the requests behind it continue.

    ``max_connections``: open at once; None is as many as there are file descriptors for. Beyond
    them the one that has had no request for the longest is closed. ``head_seconds``: how long the
    head of a request may take to arrive, and the TLS handshake before it; ``body_seconds``: its
    body, and one second more for every 500 bytes of it that have come. A connection that takes
    longer is closed.

    ``max_uploads``: adapters that clients are sending at once (429). ``max_upload_bytes``: largest
    file of one (413).

    ``client_config``, ``client_dynamic_config``: what clients are told when they ask for their
    settings. Where the first one says ``pjwt_auth_enabled``, clients must exchange their key for
    tokens, which are good for ``token_seconds``. ``link_seconds``: how long a link to a file is
    good. ``public_url``: where clients reach this server, where that is not the address they used
    (behind a proxy that adds a path); None means the address they used. ``max_telemetry_events``,
    ``max_audit_entries``: how many reported events and entries of the audit log are kept, the
    newest. ``max_trace_spans``: how many requests of one session its trace shows, the newest.
    """

    data_dir: Path = attrs.field(default=None, converter=_expand_path)
    api_key: str | None = attrs.field(default=None, repr=False)
    allowed_hosts: tuple[str, ...] = attrs.field(default=(), converter=_to_tuple)
    any_base_model: bool = False
    durability: Durability = attrs.field(
        default="save", validator=attrs.validators.in_(get_args(Durability))
    )
    sampler: tuple[str, ...] = attrs.field(
        default=(), converter=_to_samplers, validator=_check_samplers
    )
    sampler_args: str = ""
    profile: Profile = attrs.field(default=OFFICIAL, converter=find_profile)
    strict: bool = False
    hold_seconds: float = attrs.field(
        default=attrs.Factory(lambda self: self.profile.hold_seconds, takes_self=True)
    )
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
    max_recorded_tokens: int = 1 << 24
    recorded_seconds: float = 86_400.0
    sample_batch_tokens: int = 1 << 16
    sample_seconds: float = 3600.0
    gap_seconds: float = 120.0
    max_connections: int | None = None
    head_seconds: float = 30.0
    body_seconds: float = 60.0
    max_uploads: int = 16
    max_upload_bytes: int = 4 << 30
    max_telemetry_events: int = 1000
    max_audit_entries: int = 10_000
    max_trace_spans: int = 10_000
    token_seconds: float = 3600.0
    link_seconds: float = 3600.0
    public_url: str | None = None
    client_config: models.ClientConfigResponse = attrs.field(factory=models.ClientConfigResponse)
    client_dynamic_config: models.ClientDynamicConfigResponse = attrs.field(
        factory=models.ClientDynamicConfigResponse
    )

    @property
    def placement(self) -> Placement:
        """Return where the engine computes."""
        return Placement(
            **{field.name: getattr(self, field.name) for field in attrs.fields(Placement)}
        )

    def __attrs_post_init__(self) -> None:
        if self.durability == "step" and not self.profile.can_repeat:
            raise ValueError(
                "durability 'step' needs requests that are known by their "
                "client's numbers, and the profile "
                f"{self.profile.name!r} has none"
            )
