"""The requests of one sampling client, and how a sampler gets into another process."""

from __future__ import annotations
