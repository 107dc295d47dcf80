"""ServiceClient: where everything starts. It makes training and sampling clients, which share its session."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast

from tinker_wire import models
from tinker_wire.api import service as service_api

from tinker._clients import awaiting_twin_of
from tinker._clock import Clock
from tinker._config import Config, check_given, load_config
from tinker._http import SUBMIT
from tinker._runtime import Runtime, is_of_this_process, open_runtime, run
from tinker._session import Description
from tinker._training import NewAdapter, SavedAdapter, TrainingRun, create_handle, trace
from tinker._validate import check_model_path
from tinker.custom_loss import LossHandle, PerDatumLossFn
from tinker.errors import ClientClosedError
from tinker.futures import APIFuture, immediate
from tinker.observing import Observer
from tinker.rest_client import RestClient
from tinker.sampling_client import SamplingClient, open_sampling_client
from tinker.training_client import TrainingClient
from tinker.types import console
from tinker.types.params import LoraConfig, OptimizerConfig

if TYPE_CHECKING:
    from typing import Self

    import httpx

    from tinker._session import Telemetry
    from tinker.lib.retry_handler import RetryConfig


class ServiceClient:
    """A session on a server.

    ``base_url`` is the server (default: ``TINKER_BASE_URL``, else the hosted service); ``local://`` is a server in this
    process, which needs no account. ``api_key`` defaults to ``TINKER_API_KEY``, ``project_id`` to ``TINKER_PROJECT_ID``.
    ``user_metadata`` and ``display_name`` describe the session. ``default_headers_overrides``
    (also: ``TINKER_DEFAULT_HEADERS``) are sent with every request to the server, in the place of those that it would have by
    itself, and ``default_query`` (``TINKER_DEFAULT_QUERY``) with those that do not say otherwise.
    ``wire`` is ``auto``, ``proto`` or ``json``. ``patience_seconds`` is the longest time that a request is tried again (0: one
    try); None means minutes, as training deserves. ``fail_fast`` (default: ``TINKER_FAIL_FAST``) raises RateLimitError at once
    where the server asks to slow down, instead of doing so. ``telemetry`` (default: ``TINKER_TELEMETRY``, else off) lets the
    server know which calls fail, see :meth:`get_telemetry`. ``observers`` are called with what the client does, see
    :mod:`tinker.observing`. ``transport`` is an httpx transport to use instead of real connections.

    Nothing is sent before the first request that needs the server. A ``with`` block ends the session.

    >>> service = ServiceClient(base_url="local://toy")
    >>> training = service.create_lora_training_client(base_model="tinker/babble", rank=8)
    """

    def __init__(
        self,
        user_metadata: Mapping[str, object] | None = None,
        project_id: str | None = None,
        *,
        display_name: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        default_headers_overrides: Mapping[str, str] | None = None,
        default_query: Mapping[str, str] | None = None,
        wire: Literal["auto", "proto", "json"] | None = None,
        patience_seconds: float | None = None,
        fail_fast: bool | None = None,
        telemetry: bool | None = None,
        observers: Iterable[Observer] = (),
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Clock | None = None,
        **kwargs: object,
    ) -> None:
        if kwargs:
            names = ", ".join(sorted(kwargs))
            warnings.warn(f"ServiceClient ignores unsupported arguments: {names}", FutureWarning, stacklevel=2)
        check_given(base_url=base_url, api_key=api_key, patience_seconds=patience_seconds)

        def load() -> Config:  # a function, as the repr of a partial would show the key
            return load_config(
                base_url=base_url,
                api_key=api_key,
                project_id=project_id,
                headers=default_headers_overrides,
                query=default_query,
                wire=wire,
                patience_seconds=patience_seconds,
                fail_fast=fail_fast,
                telemetry=telemetry,
            )

        self._config = load
        self._description = Description(user_metadata=dict(user_metadata or {}), display_name=display_name)
        self._transport = transport
        self._clock = clock
        self._observers = tuple(observers)
        self._opened: Runtime | None = None
        self._closed = False
        self._lock = threading.Lock()

    # ------------------------------------------------------------------------------------------------------------- training

    def create_lora_training_client(
        self,
        base_model: str,
        rank: int = 32,
        seed: int | None = None,
        train_mlp: bool = True,
        train_attn: bool = True,
        train_unembed: bool = True,
        user_metadata: Mapping[str, object] | None = None,
        optimizer: OptimizerConfig | None = None,
    ) -> TrainingClient:
        """A new training run: a LoRA adapter of this rank over ``base_model``. Usable at once; see TrainingClient.

        ``train_*`` choose the layers that get an adapter. Raises ValueError when none is chosen, TinkerError when the
        hosted service is meant and no key is known.
        """
        if not (train_mlp or train_attn or train_unembed):
            raise ValueError("At least one of train_mlp, train_attn, or train_unembed must be True")
        lora = LoraConfig(rank=rank, seed=seed, train_unembed=train_unembed, train_mlp=train_mlp, train_attn=train_attn)
        model = NewAdapter(base_model=base_model, lora=lora, optimizer=optimizer, user_metadata=_plain(user_metadata))
        return TrainingClient(TrainingRun(self._runtime(), "create_lora_training_client", model))

    def create_training_client_from_state(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: Mapping[str, object] | None = None,
        weights_access_token: str | None = None,
        optimizer: OptimizerConfig | None = None,
    ) -> TrainingClient:
        """A new training run that starts from the weights saved at ``path``, with a fresh optimizer."""
        model = _describe_saved_model(path, base_model, user_metadata, weights_access_token, optimizer, with_optimizer=False)
        return TrainingClient(TrainingRun(self._runtime(), "create_training_client_from_state", model))

    def create_training_client_from_state_with_optimizer(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: Mapping[str, object] | None = None,
        weights_access_token: str | None = None,
    ) -> TrainingClient:
        """A new training run that continues from the weights and the optimizer state saved at ``path``."""
        model = _describe_saved_model(path, base_model, user_metadata, weights_access_token, None, with_optimizer=True)
        return TrainingClient(TrainingRun(self._runtime(), "create_training_client_from_state_with_optimizer", model))

    # ------------------------------------------------------------------------------------------------------------- sampling

    def create_sampling_client(
        self,
        model_path: str | None = None,
        base_model: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> SamplingClient:
        """A client that samples from saved weights (``model_path``) or from a base model. Usable at once.

        Raises ValueError when neither is given or the path has no scheme. Of ``retry_config`` two things
        are heeded: ``enable_retry_logic=False`` is one try for each request, and ``progress_timeout`` ends trying earlier.
        """
        if model_path is None and base_model is None:
            raise ValueError("Either model_path or base_model must be provided")
        if model_path is not None:
            check_model_path(model_path)
            base_model = None
        return open_sampling_client(
            self._runtime(),
            base_model=base_model,
            model_path=model_path,
            retry_config=retry_config,
            record_stability_info=record_stability_info,
        )

    # -------------------------------------------------------------------------------------------------------------- service

    def get_server_capabilities(self) -> models.GetServerCapabilitiesResponse:
        """Which base models the server offers; blocks for one exchange."""
        return self._capabilities().result()

    def _capabilities(self) -> APIFuture[models.GetServerCapabilitiesResponse]:
        runtime = self._runtime()
        return run(runtime, "get_server_capabilities", _get_server_capabilities, runtime)

    def create_custom_loss(self, fn: PerDatumLossFn, input_ranks: Mapping[str, int]) -> APIFuture[LossHandle]:
        """Trace a loss per datum, so that a server that can computes it; for ``TrainingClient.forward_backward_custom``.

        ``fn(logprobs, *inputs)`` gets torch tensors of one datum: the log-probabilities of its targets and its loss inputs of
        the parameters' names; it returns the loss, which is summed over the datums, and a dict of metrics, tensors called
        ``custom/<name>:sum`` or ``custom/<name>:mean``. ``input_ranks`` says for each parameter how many dimensions it has.
        The function is called once, now, with stand-ins for the tensors: it may use operators and functions of torch and
        math, and no tensors of its own, no modules, and no decisions by values.

        ValueError at once, and nothing is sent, for what cannot be traced or sent; ImportError without torch. The future fails
        with ValueError when this session has the same loss already. Where the server does not ask for losses, the client
        computes them itself.

        >>> def weighted(logprobs, weights):
        ...     loss = -(logprobs * weights).sum()
        ...     return loss, {"custom/nll:sum": loss}
        >>> service = ServiceClient(base_url="local://toy")
        >>> service.create_custom_loss(weighted, {"logprobs": 1, "weights": 1}).result(timeout=30).input_names
        ('weights',)
        """
        traced = trace(fn, input_ranks)
        runtime = self._runtime()
        return run(runtime, "create_custom_loss", create_handle, runtime, traced)

    def create_rest_client(self) -> RestClient:
        """A client for what the server keeps, on the same connections and credential."""
        return RestClient(self._runtime())

    def copy_weights(
        self, path: str, *, ttl_seconds: int | None = None, weights_access_token: str | None = None
    ) -> APIFuture[str]:
        """Copy a checkpoint into the project of this client; see RestClient.copy_weights. ValueError where it has none."""
        rest = self.create_rest_client()
        return rest.copy_weights(path, ttl_seconds=ttl_seconds, weights_access_token=weights_access_token)

    def get_console_url(self) -> str:
        """The session's page on the hosted service; the list of sessions while there is none. Nothing is sent."""
        return console.session_url(None if self._opened is None else self._opened.session.session_id)

    def get_telemetry(self) -> Telemetry | None:
        """What reports about this client's use; None where that was not allowed, or nothing was asked of the server yet."""
        return None if self._opened is None else self._opened.telemetry

    def close(self, status: models.ClientSessionFinishReasonType = "success", detail: str | None = None) -> APIFuture[None]:
        """End the session and say how it went. Requests made later fail. Closing again does nothing."""
        already, self._closed = self._closed, True
        if already or self._opened is None or not is_of_this_process(self._opened):
            return immediate(None, "close")
        return run(self._opened, "close", _close, self._opened, status, detail)

    def __enter__(self) -> Self:
        if self._closed:
            raise ClientClosedError
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close(_reason(kind)).result()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(_reason(kind))

    def _runtime(self) -> Runtime:
        """The session's runtime, wired by the first call that needs it; the environment is read then."""
        with self._lock:
            if self._closed:
                raise ClientClosedError
            if self._opened is None or not is_of_this_process(self._opened):
                self._opened = open_runtime(
                    self._config(),
                    self._description,
                    transport=self._transport,
                    clock=self._clock,
                    observers=self._observers,
                )
            return self._opened

    # ------------------------------------------------------------------------------------------------- twins of older code

    @awaiting_twin_of(create_lora_training_client)
    async def create_lora_training_client_async(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`create_lora_training_client`, ready."""
        return await self.create_lora_training_client(*args, **kwargs)

    @awaiting_twin_of(create_training_client_from_state)
    async def create_training_client_from_state_async(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`create_training_client_from_state`, ready."""
        return await self.create_training_client_from_state(*args, **kwargs)

    @awaiting_twin_of(create_training_client_from_state_with_optimizer)
    async def create_training_client_from_state_with_optimizer_async(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`create_training_client_from_state_with_optimizer`, ready."""
        return await self.create_training_client_from_state_with_optimizer(*args, **kwargs)

    @awaiting_twin_of(create_sampling_client)
    async def create_sampling_client_async(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`create_sampling_client`, ready."""
        return await self.create_sampling_client(*args, **kwargs)

    async def get_server_capabilities_async(self) -> models.GetServerCapabilitiesResponse:
        """:meth:`get_server_capabilities` without blocking."""
        return await self._capabilities()


async def _get_server_capabilities(
    _: APIFuture[models.GetServerCapabilitiesResponse], runtime: Runtime
) -> models.GetServerCapabilitiesResponse:
    await runtime.server.config()  # how the credential travels
    return (await runtime.transport.send(service_api.get_server_capabilities(), SUBMIT)).value


async def _close(
    _: APIFuture[None], runtime: Runtime, status: models.ClientSessionFinishReasonType, detail: str | None
) -> None:
    await runtime.session.close(status, detail)


def _describe_saved_model(
    path: str,
    base_model: str | None,
    user_metadata: Mapping[str, object] | None,
    weights_access_token: str | None,
    optimizer: OptimizerConfig | None,
    *,
    with_optimizer: bool,
) -> SavedAdapter:
    check_model_path(path)
    if isinstance(base_model, Mapping):  # 0.4 to 0.7 had ``user_metadata`` in this place
        base_model, user_metadata = None, cast("Mapping[str, object]", base_model)
    return SavedAdapter(
        path=path,
        base_model=base_model,
        user_metadata=_plain(user_metadata),
        weights_access_token=weights_access_token,
        optimizer=optimizer,
        with_optimizer=with_optimizer,
    )


def _plain(metadata: Mapping[str, object] | None) -> dict[str, object] | None:
    return None if metadata is None else dict(metadata)


def _reason(kind: type[BaseException] | None) -> models.ClientSessionFinishReasonType:
    if kind is None:
        return "success"
    return "errored" if issubclass(kind, Exception) else "interrupted"
