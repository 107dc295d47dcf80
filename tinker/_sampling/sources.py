"""The sources of the sampling session of a client and of the name of its base model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec
from tinker_wire import models
from tinker_wire.api import sampling as api

from tinker._http import SUBMIT
from tinker._runtime import Runtime
from tinker._session import SessionContext, suggest_models
from tinker.types.paths import ParsedCheckpointTinkerPath


class SamplerSource(Protocol):
    """The source of the sampling session of one client."""

    @property
    def training_run_id(self) -> str | None:
        """Return the run of the weights; None for a base model, or if it is not known yet."""
        ...

    @property
    def user_metadata(self) -> Mapping[str, object] | None:
        """Return the user's metadata of the run, if it is one of this client's."""
        ...

    @property
    def base_model(self) -> str | None:
        """Return the base model, if it is known without a request."""
        ...

    async def open_session(self, runtime: Runtime, context: SessionContext) -> str:
        """Return the id of the sampling session."""
        ...

    async def find_base_model(self, runtime: Runtime, sampling_session_id: str) -> str:
        """Return the name of the base model."""
        ...


class StoredModel(msgspec.Struct, frozen=True, kw_only=True):
    """A base model or saved weights, one of which is given, or a sampling session on one of them that another client opened."""

    base_model: str | None = None
    model_path: str | None = None
    sampling_session_id: str | None = None
    user_metadata: None = None

    @property
    def training_run_id(self) -> str | None:
        """Return the run that the path names."""
        if self.model_path is None:
            return None
        try:
            return ParsedCheckpointTinkerPath.from_tinker_path(self.model_path).training_run_id
        except ValueError:  # a path of another server's
            return None

    async def open_session(self, runtime: Runtime, context: SessionContext) -> str:
        """Return the id of the given sampling session, or of a new one."""
        if self.sampling_session_id is not None:
            return self.sampling_session_id
        body = models.CreateSamplingSessionRequest(
            session_id=context.session_id,
            sampling_session_seq_id=next(runtime.session.sampler_numbers),
            base_model=self.base_model,
            model_path=self.model_path,
        )
        with suggest_models(self.base_model, runtime.server.known_models):
            return (await runtime.transport.send(api.create_sampling_session(body), SUBMIT)).value.sampling_session_id

    async def find_base_model(self, runtime: Runtime, sampling_session_id: str) -> str:
        """Return the given name, or request it."""
        if self.base_model is not None:
            return self.base_model
        return (await runtime.transport.send(api.get_sampler(sampler_id=sampling_session_id), SUBMIT)).value.base_model
