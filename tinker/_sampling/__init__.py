"""The requests of one sampling client, and how a sampler gets into another process."""

from __future__ import annotations

from tinker._sampling.portable import SamplerState as SamplerState
from tinker._sampling.portable import from_handle as from_handle
from tinker._sampling.portable import runtime_for as runtime_for
from tinker._sampling.portable import to_handle as to_handle
from tinker._sampling.request import SampleOptions as SampleOptions
from tinker._sampling.request import check_prompt as check_prompt
from tinker._sampling.request import check_sample as check_sample
from tinker._sampling.submit import SamplerConnection as SamplerConnection
from tinker._sampling.submit import StoredModel as StoredModel
