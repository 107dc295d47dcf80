"""What engines have in common: what most of them do not do, and their adapters by id."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Generic, TypeVar

import attrs

from tinker.local.engines.protocol import AdapterSpec, EngineError, ExpectedLoss, ImageReader

Adapter = TypeVar("Adapter")


class BaseEngine:
    """An engine that takes only text, computes each loss alone and starts no process, unless its class says otherwise."""

    aliases: frozenset[str] = frozenset()
    image_reader: ImageReader | None = None
    restarts: Sequence[int] = ()
    shares_passes: bool = False

    def expect_losses(self, calls: Sequence[ExpectedLoss]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: all of it is in this process."""


class LocalEngine(BaseEngine, Generic[Adapter]):
    """The part of an engine that computes in the server's process: its adapters by id."""

    def __init__(self) -> None:
        self._adapters: dict[str, Adapter] = {}

    def create_adapter(self, adapter_id: str, spec: AdapterSpec) -> None:
        seed = secrets.randbits(31) if spec.seed is None else spec.seed
        self._adapters[adapter_id] = self._create(attrs.evolve(spec, seed=seed), seed)

    def drop_adapter(self, adapter_id: str) -> None:
        self._adapters.pop(adapter_id, None)

    def _adapter(self, adapter_id: str) -> Adapter:
        if adapter_id not in self._adapters:
            raise EngineError(f"no adapter {adapter_id!r} on this server")
        return self._adapters[adapter_id]

    def _create(self, spec: AdapterSpec, seed: int) -> Adapter:
        raise NotImplementedError
