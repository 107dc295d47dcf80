"""ServiceClient: the entry point. It creates training and sampling clients, which share its
session.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NoReturn, Self, cast

from tinker_wire import models
from tinker_wire.api import service as service_api

from tinker._basics.checks import check_count, warn
from tinker._basics.config import Config, load_later, show_url
from tinker._basics.events import Observer, ServerInfo
from tinker._basics.lazy import shield
from tinker._http import retry
from tinker._http.transport import OlderArguments
from tinker._loop import Clock
from tinker._runtime import (
    Runtime,
    SessionHolder,
    awaiting_twin,
    is_of_this_process,
    log_unfinished,
    open_gate,
    open_runtime,
    run,
)
from tinker._sampling import StoredModel
from tinker._session import Description
from tinker._training import NewAdapter, SavedAdapter, TrainingRun
from tinker._training.losses import create_handle, trace
from tinker._validate import (
    check_base_model,
    check_model_path,
    check_observer,
    check_optimizer,
    check_rank,
)
from tinker.custom_loss import LossHandle, PerDatumLossFn
from tinker.errors import ClientClosedError
from tinker.futures import APIFuture, immediate
from tinker.sampling_client import SamplingClient, open_sampling_client
from tinker.training_client import TrainingClient
from tinker.types import results
from tinker.types._values import SuggestsNames
from tinker.types.params import LoraConfig, OptimizerConfig
from tinker_records import Described, suggest_arguments

if TYPE_CHECKING:
    import httpx

    from tinker._http.retry import RetryConfig
    from tinker._session.telemetry import Telemetry
    from tinker.circuit_breaker import CircuitBreaker
    from tinker.rest_client import RestClient


@suggest_arguments
class ServiceClient(SuggestsNames, Described):
    """Client that opens a session on a server, and creates the clients that work in it.

    The session starts with the first request that needs the server. All clients created by a
    service client share its session, connections and credential. A ``with`` or ``async with`` block
    ends the session; so does :meth:`close`.

    Args:
        user_metadata: JSON-like data about the session, stored with it. Optional.
        project_id: The project that the session belongs to. None means ``TINKER_PROJECT_ID``, or no
            project.
        display_name: Optional display name of the session.
        base_url: The address of the server. None means ``TINKER_BASE_URL``, or the hosted service
            if that is unset. ``local://`` starts a server in this process, which needs no account.
        api_key: The credential. None means ``TINKER_API_KEY``, a credential command, or the stored
            key, in that order.
        default_headers_overrides: Headers for every request. They replace default headers of the
            same name and are added to ``TINKER_DEFAULT_HEADERS``. Optional.
        default_query: Query parameters for every request that does not set them itself, added to
            ``TINKER_DEFAULT_QUERY``. Optional.
        wire: The encoding of training requests and results: ``auto``, ``proto`` or ``json``. None
            means ``TINKER_WIRE``, or ``auto`` if that is unset.
        patience_seconds: The longest time to retry a request, in seconds; 0 sends it once. None
            means several minutes, depending on the kind of request.
        fail_fast: Whether to raise RateLimitError at once when the server limits the request rate,
            instead of slowing down. None means ``TINKER_FAIL_FAST``, or False if that is unset.
        telemetry: Whether to report failed calls to the server, see :meth:`get_telemetry`. None
            means ``TINKER_TELEMETRY``, or False if that is unset.
        observers: Functions called with every event of the client, see :mod:`tinker.observing`.
        circuit_breaker: A breaker that stops requests for a while after repeated failures, see
            :mod:`tinker.circuit_breaker`. Optional.
        config: Settings from ``tinker.Config.load``, used instead of the environment; other
            arguments take precedence. None reads the environment before the first request.
        transport: An httpx transport to use instead of real connections. Optional.
        clock: The source of time, which tests replace. None means the system clock.
        **kwargs: Arguments of older versions. ``timeout`` limits the seconds that the server may
            stay silent, ``max_retries`` limits the retries of a failed request (0 disables
            retries), ``default_headers`` are headers for every request, and ``http_client`` is an
            httpx.AsyncClient or httpx2.AsyncClient that sends the requests. Others are ignored with
            a FutureWarning.

    Raises:
        ValueError: A base URL, a key or a time is invalid.
        TypeError: An observer is not a function, or the address or key has the wrong argument name.

    >>> service = ServiceClient(base_url="local://toy")
    >>> training = service.create_lora_training_client(base_model="tinker/toy", rank=8)
    """

    _suggestions: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("sample", "generate", "chat", "completions"),
            "create_sampling_client(base_model=...).sample(...)",
        ),
        **dict.fromkeys(
            ("train", "create_training_client", "forward_backward"),
            "create_lora_training_client(base_model=...)",
        ),
        **dict.fromkeys(
            ("tokenizer", "get_tokenizer"), "get_tokenizer() of a training or sampling client"
        ),
        **dict.fromkeys(("models", "list_models"), "get_server_capabilities().supported_models"),
        **dict.fromkeys(
            (
                "list_checkpoints",
                "list_user_checkpoints",
                "list_training_runs",
                "delete_checkpoint",
            ),
            "create_rest_client(), which has this method",
        ),
        **dict.fromkeys(("rest", "rest_client", "runs", "checkpoints"), "create_rest_client()"),
        "login": "the command `tinker auth login`, or api_key=",
        "whoami": "create_rest_client().whoami()",
    }

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
        circuit_breaker: CircuitBreaker | None = None,
        config: Config | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Clock | None = None,
        **kwargs: object,
    ) -> None:
        older = _read_older_arguments(kwargs)
        self._config = load_later(
            config,
            base_url=base_url,
            api_key=api_key,
            project_id=project_id,
            headers=older.merge_headers(default_headers_overrides),
            query=default_query,
            wire=wire,
            patience_seconds=patience_seconds,
            fail_fast=fail_fast,
            telemetry=telemetry,
            max_retries=older.max_retries,
            silence_seconds=older.silence_seconds,
        )
        self._description = Description(
            user_metadata=_plain(user_metadata) or {}, display_name=display_name
        )
        self._transport = transport or older.transport
        self._clock = clock
        self._observers = tuple(check_observer(observer) for observer in observers)
        self._gate = open_gate(circuit_breaker)
        self._opened: Runtime | None = None
        self._closed = False
        self._lock = threading.Lock()

    def _facts(self) -> dict[str, object]:
        try:
            opened = self._opened
            where = show_url((self._config() if opened is None else opened.config).base_url)
            session = opened.session.session_id if opened is not None else None
        except Exception as error:  # noqa: BLE001  (a repr must not raise)
            return {"server": f"unknown, {type(error).__name__} in its settings"}
        return {"server": where, "session": session, "state": "closed" if self._closed else None}

    def __repr__(self) -> str:
        """Show the server's address and the session, without the credential. This opens no
        connection.
        """
        facts = self._facts()
        state = (
            ", closed"
            if facts.get("state")
            else f", session {facts['session']}"
            if facts.get("session")
            else ""
        )
        return f"<ServiceClient {facts['server']}{state}>"

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: connections and threads belong to one process, so the client cannot be
        pickled.
        """
        raise TypeError("a ServiceClient cannot be pickled or copied; create one in each process")

    # ------------------------------------------------------------------------------------- training

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
        *,
        lora_alpha: float | None = None,
        target_modules: Sequence[str] | None = None,
    ) -> TrainingClient:
        """Create a training run with a new LoRA adapter over a base model.

        Returns at once: the session and then the model are created in the background, and the
        client's requests wait for them. If the creation fails, every request of the client and
        ``client.result()`` raise its error.

        Args:
            base_model: The name of a model that :meth:`get_server_capabilities` lists.
            rank: The rank of the adapter's matrices. 0 trains the whole model on some servers and
                is an error on others.
            seed: The seed of the adapter's initial weights. If None, the server chooses.
            train_mlp: Whether the MLP layers get an adapter.
            train_attn: Whether the attention layers get an adapter.
            train_unembed: Whether the output layer gets an adapter.
            user_metadata: JSON-like data about the run, stored with it. Optional.
            optimizer: The kind of optimizer. None means Adam.
            lora_alpha: The scale of the adapter: its update is multiplied by ``lora_alpha / rank``.
                None means 32. It is an extension, as is ``target_modules``: the local server has
                them, and other servers ignore or reject them.
            target_modules: The modules that get an adapter, of those that the three switches leave,
                each as the end of a module's name such as ``"q_proj"``. None means all.

        Returns:
            The training client, usable at once.

        Raises:
            ValueError: No kind of layer gets an adapter, the rank is negative, or ``lora_alpha`` is
                not above 0.
            TinkerError: The server is the hosted service and no API key is set.
            ClientClosedError: The service client is closed.

        >>> import tinker
        >>> service = tinker.ServiceClient(base_url="local://toy")
        >>> training = service.create_lora_training_client("tinker/toy", rank=4, seed=0)
        >>> training.get_info().lora_rank
        4
        """
        if not (train_mlp or train_attn or train_unembed):
            raise ValueError(
                "train_mlp, train_attn and train_unembed are all False, so nothing "
                "would get an adapter"
            )
        check_base_model(base_model, "use create_training_client_from_state(path)")
        check_optimizer(optimizer)
        check_rank(rank)
        lora = LoraConfig(
            rank=rank,
            seed=seed,
            train_unembed=train_unembed,
            train_mlp=train_mlp,
            train_attn=train_attn,
            lora_alpha=lora_alpha,
            target_modules=target_modules,
        )
        check_count("rank", lora.rank, least=0)  # SkyRL trains the whole model with 0
        model = NewAdapter(
            base_model=base_model,
            lora=lora,
            optimizer=optimizer,
            user_metadata=_plain(user_metadata),
        )
        return TrainingClient(TrainingRun(self._runtime(), "create_lora_training_client", model))

    def create_training_client_from_state(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: Mapping[str, object] | None = None,
        weights_access_token: str | None = None,
        optimizer: OptimizerConfig | None = None,
    ) -> TrainingClient:
        """Create a training run from saved weights, with a fresh optimizer.

        Returns at once, as :meth:`create_lora_training_client` does. The new run has its own id;
        the saved run does not change.

        Args:
            path: The checkpoint, ``tinker://<training run>/weights/<name>``.
            base_model: The base model of the weights. If None, the client asks the server.
            user_metadata: JSON-like data about the run, stored with it. Optional.
            weights_access_token: A token that grants access to another user's checkpoint. Optional.
            optimizer: The kind of the fresh optimizer. If None, the server chooses.

        Returns:
            The training client, usable at once.

        Raises:
            ValueError: The path has no scheme.
            ClientClosedError: The service client is closed.
        """
        model = _describe_saved_model(
            path, base_model, user_metadata, weights_access_token, optimizer, with_optimizer=False
        )
        return TrainingClient(
            TrainingRun(self._runtime(), "create_training_client_from_state", model)
        )

    def create_training_client_from_state_with_optimizer(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: Mapping[str, object] | None = None,
        weights_access_token: str | None = None,
    ) -> TrainingClient:
        """Create a training run that continues from saved weights and the optimizer state saved
        with them.

        Returns at once, as :meth:`create_lora_training_client` does. The new run has its own id;
        the saved run does not change.

        Args:
            path: The checkpoint, ``tinker://<training run>/weights/<name>``.
            base_model: The base model of the weights. If None, the client asks the server.
            user_metadata: JSON-like data about the run, stored with it. Optional.
            weights_access_token: A token that grants access to another user's checkpoint. Optional.

        Returns:
            The training client, usable at once.

        Raises:
            ValueError: The path has no scheme.
            ClientClosedError: The service client is closed.
        """
        model = _describe_saved_model(
            path, base_model, user_metadata, weights_access_token, None, with_optimizer=True
        )
        return TrainingClient(
            TrainingRun(self._runtime(), "create_training_client_from_state_with_optimizer", model)
        )

    # ------------------------------------------------------------------------------------- sampling

    def create_sampling_client(
        self,
        model_path: str | None = None,
        base_model: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> SamplingClient:
        """Create a client that samples from saved weights or from a base model.

        Returns at once: the sampling session is created in the background, and the client's samples
        wait for it.

        Args:
            model_path: The saved weights, ``tinker://<training run>/sampler_weights/<name>``; it
                takes precedence over ``base_model``.
            base_model: The name of a model that :meth:`get_server_capabilities` lists. Required
                without ``model_path``; with it, it has no effect and is warned about, as saved
                weights have their base model.
            retry_config: Retry settings. Only two have an effect: ``enable_retry_logic=False``
                sends each request once; ``progress_timeout`` limits the seconds spent on retries.
                None uses the defaults.
            record_stability_info: Whether the server records each sequence for the loss
                ``stable_reinforce``.

        Returns:
            The sampling client, usable at once.

        Raises:
            ValueError: Neither a path nor a model is given, or the path has no scheme.
            TypeError: ``base_model`` is not a string.
            ClientClosedError: The service client is closed.
        """
        if model_path is None and base_model is None:
            raise ValueError("pass model_path for saved weights, or base_model")
        if base_model is not None:
            check_base_model(base_model, "pass it as model_path")
        if model_path is not None:
            check_model_path("model_path", model_path, "sampler_weights")
            if base_model is not None:
                warn(
                    f"base_model={base_model!r} has no effect: saved weights have their base model"
                )
            base_model = None
        source = StoredModel(base_model=base_model, model_path=model_path)
        return open_sampling_client(self._runtime(), source, retry_config, record_stability_info)

    # -------------------------------------------------------------------------------------- service

    def get_server_capabilities(self) -> models.GetServerCapabilitiesResponse:
        """List the base models of the server. Blocks until the server responds.

        The client remembers the context lengths. Afterwards, a prompt or datum that is too long for
        its model raises ValueError in your call instead of failing on the server. Without this
        call, the lengths are not checked.

        Returns:
            The server's response; ``supported_models`` lists the models.

        Raises:
            APIError: The exchange failed.
            ClientClosedError: The service client is closed.
        """
        return self._capabilities().result()

    def _capabilities(self) -> APIFuture[models.GetServerCapabilitiesResponse]:
        runtime = self._runtime()
        return run(runtime, "get_server_capabilities", lambda _: _get_server_capabilities(runtime))

    @property
    def server_info(self) -> ServerInfo:
        """Return the facts that this client has discovered about its server. Print them for a bug
        report.

        They list the operations that the server lacks, the format of training requests, and the
        fields that the server refuses. The list grows as you use the client; reading it sends no
        request.

        Returns:
            The facts, each with the operation and the response that revealed it.

        Raises:
            TinkerError: The server is the hosted service and no API key is set.
            ClientClosedError: The service client is closed.

        >>> service = ServiceClient(base_url="local://toy")
        >>> service.server_info.base_url
        'local://toy'
        """
        return self._runtime().transport.describe_server()

    def check_health(self) -> models.HealthResponse:
        """Check whether the server is up, with a single request and without a session. Blocks until
        the server responds.

        Returns:
            The server's response, whose ``status`` is ``ok``.

        Raises:
            APIError: The server is down, cannot be reached, is overloaded (InternalServerError with
                503), or lacks this operation (NotFoundError).
            ClientClosedError: The service client is closed.

        >>> ServiceClient(base_url="local://toy").check_health().status
        'ok'
        """
        return self._health().result()

    def _health(self) -> APIFuture[models.HealthResponse]:
        runtime = self._runtime()
        return run(runtime, "check_health", lambda _: _check_health(runtime))

    def create_custom_loss(
        self, fn: PerDatumLossFn, input_ranks: Mapping[str, int]
    ) -> APIFuture[LossHandle]:
        """Trace a loss of one datum, so that a server with support for it can compute the loss.

        The function is traced at once. If the server supports custom losses, the graph is sent in
        the background; otherwise the client computes the loss. Pass the handle to
        ``TrainingClient.forward_backward_custom``.

        Tracing calls the function once with placeholders for the tensors. It may use operators and
        functions of torch and math, but it must not create tensors, call modules, or branch on
        values.

        Args:
            fn: ``fn(logprobs, *inputs)`` receives torch tensors of one datum: the log-probabilities
                of its targets, and the loss inputs named like the parameters. It returns the loss,
                which is summed over the datums, and a dict of metric tensors named
                ``custom/<name>:sum`` or ``custom/<name>:mean``.
            input_ranks: The number of dimensions, 0 to 2, of each parameter by name.

        Returns:
            A future of the handle. It fails with ValueError if this session already has the same
            loss.

        Raises:
            ValueError: At once, if the function cannot be traced or sent.
            ImportError: torch is not installed.

        >>> def weighted(logprobs, weights):
        ...     loss = -(logprobs * weights).sum()
        ...     return loss, {"custom/nll:sum": loss}
        >>> service = ServiceClient(base_url="local://toy")
        >>> service.create_custom_loss(weighted, {"logprobs": 1, "weights": 1}).result(
        ...     timeout=30
        ... ).input_names
        ('weights',)
        """
        traced = trace(fn, input_ranks)
        runtime = self._runtime()
        return run(
            runtime, "create_custom_loss", lambda future: create_handle(future, runtime, traced)
        )

    def create_rest_client(self) -> RestClient:
        """Create a client for the runs, checkpoints and sessions on the server. It uses the same
        connections and credential.
        """
        return _open_rest_client(self._runtime())

    def copy_weights(
        self, path: str, *, ttl_seconds: int | None = None, weights_access_token: str | None = None
    ) -> APIFuture[str]:
        """Copy a checkpoint into the project of this client; see ``RestClient.copy_weights``.

        Args:
            path: The checkpoint, ``tinker://<training run>/<kind>/<name>``.
            ttl_seconds: Seconds until the copy expires, an hour to ten years; None keeps it
                forever.
            weights_access_token: A token that grants access to another user's checkpoint. Optional.

        Returns:
            A future of the path of the copy.

        Raises:
            ValueError: At once, if there is no project, or the path or time is invalid.
        """
        rest = self.create_rest_client()
        return rest.copy_weights(
            path, ttl_seconds=ttl_seconds, weights_access_token=weights_access_token
        )

    def get_console_url(self) -> str:
        """Return the address of the session's page on the hosted service.

        This sends no request. Before the session exists, it is the address of the list of sessions.
        """
        return results.session_url(
            None if self._opened is None else self._opened.session.session_id
        )

    def add_observer(self, observer: Observer) -> None:
        """Call a function with every later event of the client, see :mod:`tinker.observing`.

        For operations already running, it receives the remaining events, but the outcome only if
        the client had observers.

        Args:
            observer: The function.

        Raises:
            TypeError: The observer is not callable.
        """
        with self._lock:
            self._observers = (*self._observers, check_observer(observer))
            if self._opened is not None:
                self._opened.transport.observers.add(observer)

    def remove_observer(self, observer: Observer) -> None:
        """Stop calling a function with events.

        Args:
            observer: An observer of this client.

        Raises:
            ValueError: The function is not an observer of this client.
        """
        with self._lock:
            if observer not in self._observers:
                raise ValueError(f"{observer!r} is not an observer of this client")
            self._observers = tuple(one for one in self._observers if one != observer)
            if self._opened is not None:
                self._opened.transport.observers.remove(observer)

    @property
    def session_id(self) -> str | None:
        """Return the id of the session; None before the session exists."""
        return None if self._opened is None else self._opened.session.session_id

    @property
    def holder(self) -> SessionHolder:
        """Return an object with the attributes that older code uses: the session id, ``close``, and
        the I/O loop.
        """
        return SessionHolder(self._runtime())

    def get_telemetry(self) -> Telemetry | None:
        """Return the reporter of this client's failures; None if telemetry is off or no request has
        been sent.
        """
        return None if self._opened is None else self._opened.telemetry

    def close(
        self, status: models.ClientSessionFinishReasonType = "success", detail: str | None = None
    ) -> APIFuture[None]:
        """End the session and report its outcome to the server.

        Requests made later raise ClientClosedError. Closing again has no effect.

        Args:
            status: The outcome, ``success``, ``errored`` or ``interrupted``.
            detail: An explanation of the outcome in words. Optional.

        Returns:
            A future that is done when the server has received the outcome.
        """
        already, self._closed = self._closed, True
        if already or self._opened is None or not is_of_this_process(self._opened):
            return immediate(None, "close")
        if status == "success":
            log_unfinished(self._opened)
        runtime = self._opened
        return run(runtime, "close", lambda _: _close(runtime, status, detail))

    def __enter__(self) -> Self:
        if self._closed:
            raise ClientClosedError
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(_reason(kind)).result()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close(_reason(kind))

    def _runtime(self) -> Runtime:
        """Return the session's runtime. The first call creates it and reads the environment."""
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
                    gate=self._gate,
                )
            return self._opened

    # -------------------------------------------------------------------------- twins of older code

    create_lora_training_client_async: Final = awaiting_twin(create_lora_training_client)
    create_training_client_from_state_async: Final = awaiting_twin(
        create_training_client_from_state
    )
    create_training_client_from_state_with_optimizer_async: Final = awaiting_twin(
        create_training_client_from_state_with_optimizer
    )
    create_sampling_client_async: Final = awaiting_twin(create_sampling_client)

    async def check_health_async(self) -> models.HealthResponse:
        """Await what :meth:`check_health` returns, without blocking a thread."""
        return await self._health()

    async def get_server_capabilities_async(self) -> models.GetServerCapabilitiesResponse:
        """Await what :meth:`get_server_capabilities` returns, without blocking a thread."""
        return await self._capabilities()


async def _get_server_capabilities(
    runtime: Runtime,
) -> models.GetServerCapabilitiesResponse:
    await runtime.server.config()  # how the credential travels
    capabilities = (
        await runtime.transport.send(service_api.get_server_capabilities(), retry.SUBMIT)
    ).value
    runtime.server.note_capabilities(capabilities)
    return capabilities


async def _check_health(
    runtime: Runtime,
) -> models.HealthResponse:
    return (await runtime.transport.send(service_api.healthz(), retry.ONE_SHOT)).value


async def _close(
    runtime: Runtime,
    status: models.ClientSessionFinishReasonType,
    detail: str | None,
) -> None:
    await runtime.session.close(status, detail)


@shield
def _open_rest_client(runtime: Runtime) -> RestClient:
    from tinker.rest_client import RestClient  # many scripts need none

    return RestClient(runtime)


def _describe_saved_model(
    path: str,
    base_model: str | None,
    user_metadata: Mapping[str, object] | None,
    weights_access_token: str | None,
    optimizer: OptimizerConfig | None,
    *,
    with_optimizer: bool,
) -> SavedAdapter:
    check_model_path("path", path)
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


def _read_older_arguments(given: dict[str, object]) -> OlderArguments:
    if not given:
        return OlderArguments()
    from tinker._http.older_arguments import read_older_arguments

    return read_older_arguments(given, known=ServiceClient.__init__.__kwdefaults__ or ())


def _plain(metadata: Mapping[str, object] | None) -> dict[str, object] | None:
    """Return a copy. Raises TypeError for anything but a mapping, such as the address of a server
    or a key.
    """
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        advice = (
            "; pass the address of a server as base_url, and a key as api_key"
            if isinstance(metadata, str)
            else ""
        )
        raise TypeError(
            "user_metadata must be a mapping of names to values, got "
            f"{type(metadata).__name__}{advice}"
        )
    return dict(metadata)


def _reason(kind: type[BaseException] | None) -> models.ClientSessionFinishReasonType:
    if kind is None:
        return "success"
    return "errored" if issubclass(kind, Exception) else "interrupted"
