"""The settings that the server sends, once and from time to time, and the form of credential that it accepts.

Used on the loop only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
from tinker_wire import models
from tinker_wire.api import auth as auth_api
from tinker_wire.api import service as api

from tinker._config import is_sendable
from tinker._http import ONE_SHOT, START, Credential, CredentialSource, Purpose, Transport, find_command
from tinker._loop import TaskScope
from tinker.errors import APIError, ClientClosedError

logger = logging.getLogger("tinker")

SHORTEST_REFRESH_SECONDS = 10.0
_FROM_COMMAND = "credential_cmd"
_CONFIG, _DYNAMIC = "client config", "dynamic config"  # the names of the tasks that ask for them


class ServerConfig(msgspec.Struct):
    """The settings of a server. ``answered`` says that it knows the endpoint; ``dynamic`` is replaced by refreshes."""

    config: models.ClientConfigResponse
    answered: bool
    dynamic: models.ClientDynamicConfigResponse = msgspec.field(default_factory=models.ClientDynamicConfigResponse)


class ServerSettings:
    """The settings of the server of one client."""

    def __init__(self, transport: Transport, tasks: TaskScope) -> None:
        self._transport = transport
        self._tasks = tasks
        self._known: ServerConfig | None = None
        #: How many tokens a model takes, of those whose length the server has said; by the name of the model.
        self.context_lengths: dict[str | None, int] = {}
        self.known_models: tuple[str, ...] = ()
        #: The losses of the server, each with its settings; None where it has not said so.
        self.losses: Mapping[str, Sequence[str]] | None = None

    def note_capabilities(self, capabilities: models.GetServerCapabilitiesResponse) -> None:
        """Store the names of the models and their context lengths, if the server reports them."""
        self.known_models = tuple(model.model_name for model in capabilities.supported_models if model.model_name)
        told = ((model.model_name, model.max_context_length) for model in capabilities.supported_models)
        self.context_lengths = {name: length for name, length in told if name and length is not None and length > 0}

    async def config(self) -> ServerConfig:
        """Return the settings, requested by the first caller; after a failure the next caller tries again."""
        return self._known if self._known is not None else await self._tasks.share(_CONFIG, self._ask)

    def adopt(self, server_config: ServerConfig) -> None:
        """Use settings that another process received; request nothing."""
        self._known = server_config

    def forget(self) -> None:
        """Forget the settings and the absent endpoints of a server that was restarted, so that they are requested again."""
        self._tasks.cancel(_CONFIG, _DYNAMIC)
        self._transport.findings.forget_absences()
        self._known = self.losses = None

    async def _ask(self) -> ServerConfig:
        server_config = await self._client_config()
        self.losses = server_config.config.loss_fns
        if server_config.config.pjwt_auth_enabled:
            self._exchange_credentials(server_config.config)
        if server_config.answered:
            self._tasks.background(_DYNAMIC, partial(self._refresh, server_config))
        self._known = server_config
        return server_config

    async def _client_config(self) -> ServerConfig:
        request = api.client_config(self._body())
        config = await self._transport.send_optional(request, START, purpose=Purpose.START, check=_useless_limit)
        return ServerConfig(config or models.ClientConfigResponse(), answered=config is not None)

    def _body(self) -> models.ClientConfigRequest:
        return models.ClientConfigRequest(sdk_version=self._transport.config.sdk_version)

    def _exchange_credentials(self, config: models.ClientConfigResponse) -> None:
        """Exchange the credential for tokens. A server may accept only the one of the command."""
        source: CredentialSource | None = None
        if config.credential_default_source == _FROM_COMMAND:
            source = find_command(self._transport.config)
        self._transport.auth.use_exchange(self._exchange, source)

    async def _exchange(self, credential: Credential) -> Credential:
        request = auth_api.auth_token(models.AuthTokenRequest())
        reply = await self._transport.send(request, START, purpose=Purpose.START, credential=credential, check=_useless_token)
        return Credential(reply.value.jwt)

    async def _refresh(self, server_config: ServerConfig) -> None:
        """Request the settings periodically; a failure keeps the known ones, and an absent endpoint ends this."""
        while True:
            try:
                dynamic = await self._transport.send_optional(api.client_dynamic_config(self._body()), ONE_SHOT)
                if dynamic is None:
                    return
                server_config.dynamic = dynamic
            except APIError as error:
                logger.debug("dynamic config: %s", error)
            except ClientClosedError:
                return
            except Exception:
                logger.exception("could not read the server's settings; retrying")
            await self._transport.clock.timer(max(server_config.dynamic.refresh_interval_sec, SHORTEST_REFRESH_SECONDS))


# Settings that say how much there may be of something, so that nothing could ever be sent with 0.
_LIMITS = (
    "sample_max_concurrent_requests",
    "sample_dispatch_bytes_semaphore_size",
    "fwdbwd_dispatch_bytes_semaphore_size",
    "inflight_response_bytes_semaphore_size",
    "fwdbwd_max_chunk_len",
    "fwdbwd_max_chunk_bytes_count",
)


def _useless_limit(config: models.ClientConfigResponse) -> str | None:
    """Describe the first limit that lets nothing pass."""
    for name in _LIMITS:
        if (value := getattr(config, name)) <= 0:
            return f"{name} must be at least 1, got {value}"
    return None


def _useless_token(answer: models.AuthTokenResponse) -> str | None:
    return None if is_sendable(answer.jwt) else "the token contains characters that a header cannot contain"
