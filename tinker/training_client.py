"""TrainingClient: the ordered requests of one training run."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import attrs
from tinker_wire import models
from tinker_wire.api import training as training_api
from tinker_wire.api import weights as weights_api
from tinker_wire.runtime import Request

from tinker import _tokenizers
from tinker._http import SUBMIT, Fate, Reply, fate_of, sampling_policy, tracked
from tinker._runtime import Runtime, is_of_this_process
from tinker._session import Expected, Started, json_only
from tinker._training import LossJob, Numbers, Place, Sequencer, check_handle, custom_step, loss_requests, prepare_step
from tinker._validate import (
    check_data,
    check_loss_config,
    check_model_path,
    check_name,
    check_optim_params,
    check_recipients,
    check_ttl,
)
from tinker.custom_loss import CustomLossFn, LossHandle, LossWithGradients
from tinker.errors import SessionLostError
from tinker.futures import APIFuture, SelfFuture, mark_received, on_received, quiet_result, start
from tinker.sampling_client import SamplingClient
from tinker.types import console
from tinker.types.datum import Datum
from tinker.types.params import AdamParams, DimuonParams, LossFnType, OptimParams
from tinker.types.results import (
    ForwardBackwardOutput,
    SaveWeightsExternalResponse,
    SaveWeightsForSamplerResponse,
    SaveWeightsResponse,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tinker._session import Telemetry
    from tinker.lib.retry_handler import RetryConfig

T = TypeVar("T")
R = TypeVar("R")
A = TypeVar("A")
LossConfig = Mapping[str, float | str] | None
# By this name, as instrumentation of other libraries takes every method that says "Future" for one of the official client's.
Unloading = APIFuture[models.UnloadModelResponse]


@attrs.frozen
class Model:
    """A model that exists on the server."""

    model_id: str
    info: models.GetInfoResponse | None


Create = Callable[["TrainingClient", Started, Numbers], Awaitable[str]]
"""Makes the model on the server and gives its id; may use numbers of the run for that."""


class TrainingClient(SelfFuture):
    """One training run: a LoRA adapter on the server, and its optimizer.

    Made by ``ServiceClient.create_lora_training_client`` and its siblings, usable at once: what is called before the model
    exists waits for it. Every method returns a future at once; requests run on the server in the order of the calls, from
    whatever thread, so ``forward_backward`` and ``optim_step`` may be called without waiting in between. The client is itself
    the future of its creation: ``await client`` or ``client.result(timeout)`` gives it ready, or raises why there is none; a
    failed creation fails every operation with that error.
    """

    def __init__(self, runtime: Runtime, operation: str, create: Create) -> None:
        super().__init__(operation)
        self._runtime = runtime
        self._sequencer = Sequencer()
        self._model: Model | None = None
        self._session_id: str | None = None
        tracked(self, runtime.transport.observers)
        called = self._sequencer.now()
        start(self, lambda: self._created(create, called))

    def __repr__(self) -> str:
        model = getattr(self, "_model", None)  # absent in a subclass that does not call __init__
        return f"<TrainingClient {model.model_id if model else 'being created'}>"

    # ---------------------------------------------------------------------------------------------------------- operations

    def forward(
        self, data: Sequence[Datum], loss_fn: LossFnType, loss_fn_config: LossConfig = None
    ) -> APIFuture[ForwardBackwardOutput]:
        """Compute the loss of ``data`` without a gradient. Arguments and result as :meth:`forward_backward`."""
        return self._loss("forward", data, loss_fn, loss_fn_config)

    def forward_backward(
        self, data: Sequence[Datum], loss_fn: LossFnType, loss_fn_config: LossConfig = None
    ) -> APIFuture[ForwardBackwardOutput]:
        """Compute the loss of ``data`` and add its gradient to what has accumulated since the last optimizer step.

        The result holds per datum the loss's outputs, in the order of ``data``, and the metrics. Large batches are sent in
        several requests; their results are put together. ``loss_fn`` is ``cross_entropy``, ``importance_sampling``, ``ppo``
        or another loss the server knows; ``loss_fn_config`` its settings. Losses are summed over tokens, not averaged.

        Raises ValueError at once, and sends nothing, when data is empty, a loss input is missing, unknown to the loss, of
        another length than the model input, or NaN; the message names the datum's index and the field.
        """
        return self._loss("forward_backward", data, loss_fn, loss_fn_config)

    def forward_backward_custom(
        self,
        data: Sequence[Datum],
        loss_fn: CustomLossFn | LossWithGradients | LossHandle,
        *,
        loss_type_input: str | None = None,
    ) -> APIFuture[ForwardBackwardOutput]:
        """As :meth:`forward_backward`, with a loss of your own over the log-probabilities of the targets.

        ``loss_fn(data, logprobs)`` gets the datums and, for each, a torch tensor of the shape of its ``target_tokens``, and
        returns the loss as a tensor and a dict of metrics. It runs once, on a thread of its own, while later calls of this
        client queue up behind the step: a forward pass, the function, and a backward pass with its gradient. So
        :meth:`optim_step` may be called without waiting, and a loss function must not wait for this client.

        ``tinker.with_gradients(function)`` is for a loss that computes its own gradient, without torch, and a LossHandle of
        ``ServiceClient.create_custom_loss`` for one that the server may compute itself. Datums need ``target_tokens``; their
        other loss inputs are the function's.

        In the result, ``metrics["loss:sum"]`` is the loss, ``surrogate_loss:sum`` what the server's backward pass called its
        loss, and the function's metrics are there too. A loss function that fails, returns something else, or has a gradient
        that is not finite fails the future and, as the gradient is missing then, stops the later requests of this client until
        you have received its error.

        Raises ValueError at once for wrong data as :meth:`forward_backward`, for a handle of another session, and for datums
        that lack an input of a handle; ImportError when torch is needed and is not there.

        >>> import tinker
        >>> training = tinker.ServiceClient(base_url="local://toy").create_lora_training_client("tinker/toy", rank=4)
        >>> tokens = tinker.ModelInput.from_ints([1, 2])
        >>> datum = tinker.Datum(model_input=tokens, loss_fn_inputs={"target_tokens": [2, 3]})
        >>> @tinker.with_gradients
        ... def unlikelihood(data, logprobs):
        ...     return -sum(part.sum() for part in logprobs), [0 * part - 1 for part in logprobs]
        >>> losses = []
        >>> for _ in range(3):
        ...     losses.append(training.forward_backward_custom([datum], unlikelihood))
        ...     done = training.optim_step(tinker.AdamParams(learning_rate=0.05))
        >>> losses[0].result(timeout=30).loss > losses[2].result(timeout=30).loss
        True
        """
        if loss_type_input is not None:
            warnings.warn("loss_type_input has no effect; losses get log-probabilities", DeprecationWarning, stacklevel=2)
            if loss_type_input != "logprobs":
                raise ValueError(f"loss_type_input must be 'logprobs', got {loss_type_input!r}")
        if isinstance(loss_fn, LossHandle):
            check_handle(loss_fn, data, self._runtime.session.session_id)
            if loss_fn.loss_id is not None:
                return self._loss("forward_backward_custom", data, "custom", {"loss_id": loss_fn.loss_id})
        prepared = prepare_step(data, loss_fn)
        runtime = self._runtime
        future: APIFuture[ForwardBackwardOutput] = self._future("forward_backward_custom")
        return self._start_loss(future, lambda started: custom_step(runtime, started, prepared, future))

    def optim_step(
        self, optim_params: OptimParams | None = None, *, adam_params: OptimParams | None = None
    ) -> APIFuture[models.OptimStepResponse]:
        """Apply the accumulated gradient with these optimizer parameters and clear it.

        ``adam_params`` is the older name of the argument. Raises ValueError when both are given, TypeError when none is;
        either at once for a parameter that is no finite number.
        """
        if optim_params is not None and adam_params is not None:
            raise ValueError("optim_step takes optim_params or adam_params, not both")
        params = optim_params if optim_params is not None else adam_params
        if not isinstance(params, AdamParams | DimuonParams):
            raise TypeError(f"Expected AdamParams or DimuonParams, got {type(params).__name__}")
        check_optim_params(params)
        adam = params if isinstance(params, AdamParams) else None
        other = params if isinstance(params, DimuonParams) else None
        return self._request(
            "optim_step",
            json_only("OptimStep", models.OptimStepResponse),
            lambda model_id, number: training_api.optim_step(
                models.OptimStepRequest(model_id=model_id, seq_id=number, adam_params=adam, optimizer_params=other)
            ),
        )

    def save_state(
        self,
        name: str,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        user_metadata: Mapping[str, str] | None = None,
    ) -> APIFuture[SaveWeightsResponse]:
        """Save weights and optimizer state under ``name``; the result's ``path`` loads them again.

        ``ttl_seconds`` None keeps the checkpoint for ever. A name that exists fails unless ``overwrite``.
        """
        check_name(name)
        check_ttl(ttl_seconds)
        return self._request(
            "save_state",
            Expected(
                "SaveWeights",
                models.SaveWeightsResponse,
                lambda answer: SaveWeightsResponse(path=answer.path),
            ),
            lambda model_id, number: weights_api.save_weights(
                models.SaveWeightsRequest(
                    model_id=model_id,
                    path=name,
                    seq_id=number,
                    ttl_seconds=ttl_seconds,
                    overwrite=overwrite,
                    user_metadata=_strings(user_metadata),
                )
            ),
            changes_run=False,
        )

    def save_weights_for_sampler(
        self, name: str, ttl_seconds: int | None = None, user_metadata: Mapping[str, str] | None = None
    ) -> APIFuture[SaveWeightsForSamplerResponse]:
        """Save the weights under ``name`` to sample from; the result's ``path`` goes to ``create_sampling_client``."""
        check_name(name)
        check_ttl(ttl_seconds)
        return self._request(
            "save_weights_for_sampler",
            Expected(
                "SaveWeightsForSampler",
                models.SaveWeightsForSamplerResponseInternal,
                lambda answer: SaveWeightsForSamplerResponse(path=_present(answer.path, "path")),
            ),
            lambda model_id, number: weights_api.save_weights_for_sampler(
                models.SaveWeightsForSamplerRequest(
                    model_id=model_id,
                    path=name,
                    seq_id=number,
                    ttl_seconds=ttl_seconds,
                    user_metadata=_strings(user_metadata),
                )
            ),
            changes_run=False,
        )

    def save_weights_external(
        self, name: str, ttl_seconds: int | None = None, age_encryption_recipients: Sequence[str] | None = None
    ) -> APIFuture[SaveWeightsExternalResponse]:
        """Save the weights as files to download, see ``RestClient.get_external_weights_urls``.

        The files are encrypted for ``age_encryption_recipients``, at most ten public keys (``age1...`` or SSH); None leaves
        them as they are.
        """
        check_name(name)
        check_ttl(ttl_seconds)
        recipients = check_recipients(age_encryption_recipients)
        return self._request(
            "save_weights_external",
            Expected(
                "SaveWeightsExternal",
                models.SaveWeightsExternalResponseInternal,
                lambda answer: SaveWeightsExternalResponse(path=_present(answer.path, "path")),
            ),
            lambda model_id, number: weights_api.save_weights_external(
                models.SaveWeightsExternalRequest(
                    model_id=model_id,
                    path=name,
                    seq_id=number,
                    ttl_seconds=ttl_seconds,
                    age_encryption_recipients=recipients,
                )
            ),
            changes_run=False,
        )

    def load_state(self, path: str, weights_access_token: str | None = None) -> APIFuture[models.LoadWeightsResponse]:
        """Load saved weights into this run, with a fresh optimizer; ``ServiceClient.create_training_client_from_state`` does so
        for a new run. Many servers allow it as the first request only.
        """
        return self._load("load_state", path, weights_access_token, with_optimizer=False)

    def load_state_with_optimizer(
        self, path: str, weights_access_token: str | None = None
    ) -> APIFuture[models.LoadWeightsResponse]:
        """:meth:`load_state`, with the optimizer state that was saved."""
        return self._load("load_state_with_optimizer", path, weights_access_token, with_optimizer=True)

    def _load(
        self, operation: str, path: str, token: str | None, *, with_optimizer: bool
    ) -> APIFuture[models.LoadWeightsResponse]:
        check_model_path(path)
        return self._request(
            operation,
            json_only("LoadWeights", models.LoadWeightsResponse),
            lambda model_id, number: weights_api.load_weights(
                models.LoadWeightsRequest(
                    model_id=model_id, seq_id=number, path=path, optimizer=with_optimizer, weights_access_token=token
                )
            ),
        )

    def unload_model(self) -> Unloading:
        """Free what the run takes on the server, after everything called before. The run cannot be used any more.

        Servers without the operation answer 404 and free the run when its session ends.
        """
        return self._request(
            "unload_model",
            json_only("UnloadModel", models.UnloadModelResponse),
            lambda model_id, _: training_api.unload_model(models.UnloadModelRequest(model_id=model_id)),
            changes_run=False,
            is_numbered=False,
        )

    def save_weights_and_get_sampling_client(
        self,
        name: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
        kind: models.SamplingClientKind = "snapshot",
    ) -> SamplingClient:
        """A sampling client on the present weights, which are not stored under a name; usable at once.

        ``kind`` "snapshot" keeps the weights of now; "inflight" follows later inflight saves of this run. ``name`` has no
        effect and warns. ``retry_config`` as for ``ServiceClient.create_sampling_client``.
        """
        if name is not None:
            warnings.warn("name has no effect; the sampling client is not stored", DeprecationWarning, stacklevel=2)
        session = self._runtime.session
        saved = self._request(
            "save_weights_and_get_sampling_client",
            Expected(
                "SaveWeightsForSampler",
                models.SaveWeightsForSamplerResponseInternal,
                lambda answer: _present(answer.sampling_session_id, "sampling_session_id"),
            ),
            lambda model_id, number: weights_api.save_weights_for_sampler(
                models.SaveWeightsForSamplerRequest(
                    model_id=model_id,
                    sampling_session_seq_id=next(session.sampler_numbers),
                    kind=kind,
                    seq_id=number,
                )
            ),
            changes_run=False,
        )

        async def opened(_: Started) -> str:
            return await quiet_result(saved)

        sampler = SamplingClient(
            self._runtime,
            "save_weights_and_get_sampling_client",
            opened,
            base_model=self._base_model,
            record_stability_info=record_stability_info,
            policy=sampling_policy(retry_config),
        )
        on_received(sampler, partial(mark_received, saved))
        return sampler

    def create_sampling_client(
        self, model_path: str, retry_config: RetryConfig | None = None, record_stability_info: bool = False
    ) -> SamplingClient:
        """A sampling client on saved weights, as ``ServiceClient.create_sampling_client``."""
        from tinker.sampling_client import open_sampler

        check_model_path(model_path)
        return open_sampler(self._runtime, None, model_path, retry_config, record_stability_info)

    # --------------------------------------------------------------------------------------------------------- information

    def get_info(self) -> models.GetInfoResponse:
        """What the model is. Asked once, at creation; blocks until the model exists."""
        self.result()
        return self._known_info()

    def get_console_url(self) -> str:
        """The run's page on the hosted service; blocks until the model exists."""
        return console.training_run_url(self.model_id)

    def get_telemetry(self) -> Telemetry | None:
        """As ``ServiceClient.get_telemetry``."""
        return self._runtime.telemetry

    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the base model; loaded once in a process. ImportError without transformers."""
        info = self.get_info()
        data = info.model_data
        return _tokenizers.load(_tokenizers.resolve(data.model_name or info.model_name or "", data.tokenizer_id))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """``text`` in the tokens of :meth:`get_tokenizer`, with those that it puts around a text unless told otherwise."""
        return _tokenizers.encode(self.get_tokenizer(), text, add_special_tokens)

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of ``tokens`` by :meth:`get_tokenizer`; special tokens are spelled out unless they are to be skipped."""
        return _tokenizers.decode(self.get_tokenizer(), tokens, skip_special_tokens)

    @property
    def model_id(self) -> str:
        """The training run's id; blocks until the model exists."""
        self.result()
        assert self._model is not None
        return self._model.model_id

    def _known_info(self) -> models.GetInfoResponse:
        assert self._model is not None
        if self._model.info is None:
            raise LookupError("this server does not say what its models are (it has no get_info)")
        return self._model.info

    async def _base_model(self) -> str:
        await self
        info = self._known_info()
        return info.model_data.model_name or info.model_name or ""

    # ------------------------------------------------------------------------------------------------- twins of older code

    async def forward_async(
        self, data: Sequence[Datum], loss_fn: LossFnType, loss_fn_config: LossConfig = None
    ) -> APIFuture[ForwardBackwardOutput]:
        """:meth:`forward`; await the future it returns."""
        return self.forward(data, loss_fn, loss_fn_config)

    async def forward_backward_async(
        self, data: Sequence[Datum], loss_fn: LossFnType, loss_fn_config: LossConfig = None
    ) -> APIFuture[ForwardBackwardOutput]:
        """:meth:`forward_backward`; await the future it returns."""
        return self.forward_backward(data, loss_fn, loss_fn_config)

    async def forward_backward_custom_async(
        self,
        data: Sequence[Datum],
        loss_fn: CustomLossFn | LossWithGradients | LossHandle,
        *,
        loss_type_input: str | None = None,
    ) -> APIFuture[ForwardBackwardOutput]:
        """:meth:`forward_backward_custom`; await the future it returns."""
        return self.forward_backward_custom(data, loss_fn, loss_type_input=loss_type_input)

    async def optim_step_async(
        self, optim_params: OptimParams | None = None, *, adam_params: OptimParams | None = None
    ) -> APIFuture[models.OptimStepResponse]:
        """:meth:`optim_step`; await the future it returns."""
        return self.optim_step(optim_params, adam_params=adam_params)

    async def save_state_async(
        self,
        name: str,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        user_metadata: Mapping[str, str] | None = None,
    ) -> APIFuture[SaveWeightsResponse]:
        """:meth:`save_state`; await the future it returns."""
        return self.save_state(name, ttl_seconds, overwrite, user_metadata)

    async def save_weights_for_sampler_async(
        self, name: str, ttl_seconds: int | None = None, user_metadata: Mapping[str, str] | None = None
    ) -> APIFuture[SaveWeightsForSamplerResponse]:
        """:meth:`save_weights_for_sampler`; await the future it returns."""
        return self.save_weights_for_sampler(name, ttl_seconds, user_metadata)

    async def save_weights_external_async(
        self, name: str, ttl_seconds: int | None = None, age_encryption_recipients: Sequence[str] | None = None
    ) -> APIFuture[SaveWeightsExternalResponse]:
        """:meth:`save_weights_external`; await the future it returns."""
        return self.save_weights_external(name, ttl_seconds, age_encryption_recipients)

    async def load_state_async(
        self, path: str, weights_access_token: str | None = None
    ) -> APIFuture[models.LoadWeightsResponse]:
        """:meth:`load_state`; await the future it returns."""
        return self.load_state(path, weights_access_token)

    async def load_state_with_optimizer_async(
        self, path: str, weights_access_token: str | None = None
    ) -> APIFuture[models.LoadWeightsResponse]:
        """:meth:`load_state_with_optimizer`; await the future it returns."""
        return self.load_state_with_optimizer(path, weights_access_token)

    async def save_weights_and_get_sampling_client_async(
        self,
        name: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
        kind: models.SamplingClientKind = "snapshot",
    ) -> SamplingClient:
        """:meth:`save_weights_and_get_sampling_client`, ready."""
        return await self.save_weights_and_get_sampling_client(name, retry_config, record_stability_info, kind)

    async def create_sampling_client_async(
        self, model_path: str, retry_config: RetryConfig | None = None, record_stability_info: bool = False
    ) -> SamplingClient:
        """:meth:`create_sampling_client`, ready."""
        return await self.create_sampling_client(model_path, retry_config, record_stability_info)

    async def get_info_async(self) -> models.GetInfoResponse:
        """:meth:`get_info` without blocking."""
        await self
        return self._known_info()

    # ------------------------------------------------------------------------------------------------------------- creation

    async def _created(self, create: Create, called: int) -> None:
        async with self._sequencer.place(self, called) as numbers:
            try:
                created = await self._runtime.session.in_session(lambda started: create(self, started, numbers))
            except BaseException as error:
                self._sequencer.end(self, error)
                raise
            self._session_id, model_id = created
            self._model = Model(model_id, None)
        self._model = Model(model_id, await self._info(model_id))

    async def _info(self, model_id: str) -> models.GetInfoResponse | None:
        request = training_api.get_info(models.GetInfoRequest(model_id=model_id))
        return await self._runtime.transport.send_optional(request, SUBMIT)

    # ----------------------------------------------------------------------------------------------------------- submission

    def _future(self, operation: str) -> APIFuture[Any]:
        """A future for an operation of this run. RuntimeError in a child made by ``fork``: the order is its parent's."""
        if not is_of_this_process(self._runtime):
            raise RuntimeError(f"{operation}: this TrainingClient belongs to another process, the parent of this one")
        return self._child(tracked(APIFuture[Any](operation), self._runtime.transport.observers))

    def _request(
        self,
        operation: str,
        expected: Expected[T],
        build: Callable[[str, int], Request[models.UntypedAPIFuture]],
        *,
        changes_run: bool = True,
        is_numbered: bool = True,
    ) -> APIFuture[T]:
        """Start an operation of one JSON request, which carries the next number of the run unless it is not numbered."""
        future: APIFuture[T] = self._future(operation)
        transport, session = self._runtime.transport, self._runtime.session
        called = self._sequencer.now()

        async def submit(numbers: Numbers, model_id: str) -> Reply[models.UntypedAPIFuture]:
            async def send(number: int) -> Reply[models.UntypedAPIFuture]:
                return await transport.send(build(model_id, number), SUBMIT)

            return await (numbers.send(send) if is_numbered else send(0))

        async def run() -> T:
            place = self._sequencer.place(future, called)
            submission = await self._in_turn(place, submit, changes_run=changes_run)
            poller = (await session.started()).poller
            return await self._outcome(place, poller.wait(submission, expected, future), changes_run=changes_run)

        return start(future, run)

    async def _in_turn(self, place: Place, submit: Callable[[Numbers, str], Awaitable[R]], *, changes_run: bool = True) -> R:
        """Submit when the turn comes. What has begun to be sent is sent to the end, also when the future is cancelled."""

        async def submission() -> R:
            async with place as numbers:
                if place.future.cancelled():
                    raise asyncio.CancelledError
                assert self._model is not None
                try:
                    return await submit(numbers, self._model.model_id)
                except Exception as error:
                    stops = changes_run or fate_of(error) is Fate.UNKNOWN
                    if (lost := await self._failed(place, error, stops=stops)) is not None:
                        raise lost from error
                    raise

        return await asyncio.shield(self._runtime.thread.task(submission(), name=place.future.operation))

    async def _outcome(self, place: Place, result: Awaitable[T], *, changes_run: bool) -> T:
        """The result of an accepted request."""
        try:
            return await result
        except Exception as error:
            if (lost := await self._failed(place, error, stops=changes_run)) is not None:
                raise lost from error
            raise

    async def _failed(self, place: Place, error: Exception, *, stops: bool) -> SessionLostError | None:
        """Note a failure, which, if it ``stops`` later requests, does so until the user has its error.

        The error is ``error`` itself, or the one that is returned.
        """
        lost = None if self._session_id is None else await self._runtime.session.lost_error(self._session_id, error)
        if stops:
            self._sequencer.block(place, lost or error)
        return lost

    # ------------------------------------------------------------------------------------------------------ forward/backward

    def _loss(
        self, operation: str, data: Sequence[Datum], loss_fn: str, config: LossConfig
    ) -> APIFuture[ForwardBackwardOutput]:
        batch = list(data)
        check_data(batch, loss_fn)
        check_loss_config(config)
        future: APIFuture[ForwardBackwardOutput] = self._future(operation)
        job = LossJob(loss_fn, None if config is None else dict(config), operation == "forward")
        transport = self._runtime.transport
        return self._start_loss(
            future, lambda started: loss_requests(transport, started, batch, job), changes_run=not job.forward_only
        )

    def _start_loss(
        self,
        future: APIFuture[ForwardBackwardOutput],
        prepare: Callable[[Started], Awaitable[_Submission[A]]],
        *,
        changes_run: bool = True,
    ) -> APIFuture[ForwardBackwardOutput]:
        """Start what is prepared ahead of its turn, submitted in its turn, and waited for after it."""
        called = self._sequencer.now()

        async def run() -> ForwardBackwardOutput:
            place = self._sequencer.place(future, called)
            try:
                submission = await prepare(await self._runtime.session.started())
            except BaseException as error:
                if changes_run and isinstance(error, Exception):
                    self._sequencer.block(place, error)
                place.leave()
                raise
            accepted = await self._in_turn(place, submission.submit, changes_run=changes_run)
            return await self._outcome(place, submission.result(accepted, future), changes_run=changes_run)

        return start(future, run)


class _Submission(Protocol[A]):
    """A loss computation: what is done in its turn, and what is waited for after it."""

    async def submit(self, numbers: Numbers, model_id: str, /) -> A: ...

    async def result(self, accepted: A, future: APIFuture[Any], /) -> ForwardBackwardOutput: ...


def _strings(metadata: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if metadata is None else dict(metadata)


def _present(value: str | None, field: str) -> str:
    if value is None:
        raise ValueError(f"the server's answer lacks {field}")
    return value
