"""RestClient: what the server has, without a session."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tinker_wire import models
from tinker_wire.api import sampling as sampling_api
from tinker_wire.api import service as service_api
from tinker_wire.runtime import Request

from tinker import _config
from tinker._retry import SUBMIT
from tinker._runtime import Runtime, open_runtime
from tinker._session import Description
from tinker.futures import APIFuture, T, start

if TYPE_CHECKING:
    import httpx


class RestClient:
    """Reads and writes that need no session. Arguments as those of ServiceClient; constructing it sends nothing.

    Every method returns a future at once.

    >>> models = RestClient(base_url="local://toy").get_server_capabilities().result(timeout=30).supported_models
    >>> models[0].model_name
    'tinker/toy'
    """

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        config = _config.load(base_url=base_url, api_key=api_key)
        self._runtime: Runtime = open_runtime(config, Description(user_metadata={}), transport=transport)

    def get_server_capabilities(self) -> APIFuture[models.GetServerCapabilitiesResponse]:
        """Which base models the server offers."""
        return self._asked(service_api.get_server_capabilities())

    def get_sampler(self, sampler_id: str) -> APIFuture[models.GetSamplerResponse]:
        """What a sampling session samples from. Raises ValueError at once for an id that cannot be part of a path."""
        return self._asked(sampling_api.get_sampler(sampler_id=sampler_id))

    def _asked(self, request: Request[T]) -> APIFuture[T]:
        return start(APIFuture(request.operation), partial(self._runtime.transport.send, request, SUBMIT))
