"""The requests of one sampling client, and how a sampler gets into another process."""

from __future__ import annotations

from tinker._sampling.portable import SamplerState, from_handle, runtime_for, to_handle
from tinker._sampling.request import SampleOptions, check_prompt, check_sample
from tinker._sampling.sources import SharedSession, StoredModel
from tinker._sampling.submit import Sampler

__all__ = [
    "SampleOptions",
    "Sampler",
    "SamplerState",
    "SharedSession",
    "StoredModel",
    "check_prompt",
    "check_sample",
    "from_handle",
    "runtime_for",
    "to_handle",
]
