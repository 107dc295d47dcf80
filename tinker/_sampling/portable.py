"""Samplers that move to other processes: the state that is sent, and the runtime that is found or
created there.

A pickle or a handle names the session and the sampler and carries no credential. In the process it
was made in it finds the runtime it came from; elsewhere the credential is that process's own. A
clone numbers its requests in a range of its own.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import threading
import weakref
from collections.abc import Iterable

import msgspec
from tinker_wire import models

from tinker._basics.config import load_config
from tinker._basics.events import Observer
from tinker._loop import Clock, loop_thread
from tinker._runtime import Runtime, open_runtime
from tinker._session import Description, ServerConfig
from tinker._version import __version__
from tinker_records import prepare

# Each clone has so many numbers to itself. The wire takes numbers beyond what a double holds.
SEQ_IDS_PER_CLONE = 1_000_000_000
FORMAT = 1  # of a handle; those of an earlier version without a number are the same


class SamplerState(msgspec.Struct, frozen=True, kw_only=True):
    """A sampler as it is sent to another process."""

    base_url: str
    session_id: str
    sampling_session_id: str
    base_model: str | None
    record_stability_info: bool
    client_config: models.ClientConfigResponse
    dynamic_config: models.ClientDynamicConfigResponse
    origin: str
    format: int = FORMAT


class _Head(msgspec.Struct):
    format: int = FORMAT


_lock = threading.Lock()
_origins: weakref.WeakValueDictionary[str, Runtime] = weakref.WeakValueDictionary()
_adopted: weakref.WeakValueDictionary[tuple[str, str], Runtime] = weakref.WeakValueDictionary()


def runtime_token(runtime: Runtime) -> str:
    """Return a name by which this process finds the runtime again; it means nothing elsewhere."""
    with _lock:
        _origins[runtime.token] = runtime
        return runtime.token


def runtime_for(state: SamplerState, api_key: str | None = None) -> Runtime:
    """Return the runtime of a restored sampler: the one it came from, or one of this process that
    joins the same session.
    """
    with _lock:
        origin = _origins.get(state.origin)
        if origin is not None and origin.thread is loop_thread() and api_key is None:
            return origin
        key = (state.base_url, state.session_id)
        adopted = _adopted.get(key)
        if adopted is None or adopted.thread is not loop_thread() or api_key is not None:
            adopted = _adopted[key] = _join_session(state, origin, api_key)
        return adopted


def _join_session(state: SamplerState, origin: Runtime | None, api_key: str | None) -> Runtime:
    """Return a runtime that sends nothing to start: the session exists, and its settings are in the
    state.
    """
    clock: Clock | None = None
    observers: Iterable[Observer] = ()
    # a forked child has the parent's settings in its memory
    if origin is not None and api_key is None:
        config, clock, observers = origin.config, origin.clock, origin.transport.observers.given
    else:
        config = load_config(base_url=state.base_url, api_key=api_key)
    runtime = open_runtime(config, Description(user_metadata={}), clock=clock, observers=observers)
    server_config = ServerConfig(state.client_config, answered=True, dynamic=state.dynamic_config)
    runtime.thread.call(lambda: runtime.session.adopt(state.session_id, server_config))
    return runtime


def draw_clone_number() -> int:
    """Return a random number for a clone, from a range in which collisions are improbable."""
    return 1 + secrets.randbelow(SEQ_IDS_PER_CLONE)


def to_handle(state: SamplerState) -> str:
    """Return the state as URL-safe text."""
    return base64.urlsafe_b64encode(msgspec.json.encode(state)).decode()


def from_handle(handle: str) -> SamplerState:
    """Return the state of a handle. Raises ValueError for other text."""
    try:
        content = base64.urlsafe_b64decode(handle)
        found = msgspec.json.decode(content, type=_Head).format
        if found <= FORMAT:
            return msgspec.json.decode(content, type=prepare(SamplerState))
    except (ValueError, binascii.Error) as error:
        raise ValueError(f"not a sampler handle: {error}") from None
    raise ValueError(
        f"the sampler has format {found}, and this version of tinker, {__version__}, reads formats "
        f"up to {FORMAT}; install the version here that sent it"
    )
