"""TrainingClient: the ordered requests of one training run."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tinker_wire import models

from tinker import _tokenizers
from tinker._clients import ReadyClient, awaiting_twin_of, twin_of
from tinker._http import sampling_policy
from tinker._sampling import Sampler
from tinker._training import LossJob, TrainingRun, check_handle, prepare_loss, requests
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
from tinker.futures import APIFuture
from tinker.sampling_client import SamplingClient, open_sampling_client
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

LossConfig = Mapping[str, float | str] | None
# By this name, as instrumentation of other libraries takes every method that says "Future" for one of the official client's.
Unloading = APIFuture[models.UnloadModelResponse]


class TrainingClient(ReadyClient):
    """One training run: a LoRA adapter on the server, and its optimizer.

    Made by ``ServiceClient.create_lora_training_client`` and its siblings, usable at once: what is called before the model
    exists waits for it. Every method returns a future at once; requests run on the server in the order of the calls, from
    whatever thread, so ``forward_backward`` and ``optim_step`` may be called without waiting in between. ``await client``
    or ``client.result(timeout)`` gives it ready, or raises why there is none; a failed creation fails every operation with
    that error.
    """

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self._ready = run.created

    def __repr__(self) -> str:
        run = getattr(self, "_run", None)  # absent in a subclass that does not call __init__
        return f"<TrainingClient {run.model.model_id if run and run.model else 'being created'}>"

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
            check_handle(loss_fn, data, self._run.runtime.session.session_id)
            if loss_fn.loss_id is not None:
                return self._loss("forward_backward_custom", data, "custom", {"loss_id": loss_fn.loss_id})
        return self._run.compute_custom_loss(prepare_loss(data, loss_fn))

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
        return self._run.send(requests.optim_step(params))

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
        return self._run.send(requests.save_state(name, ttl_seconds, overwrite, user_metadata))

    def save_weights_for_sampler(
        self, name: str, ttl_seconds: int | None = None, user_metadata: Mapping[str, str] | None = None
    ) -> APIFuture[SaveWeightsForSamplerResponse]:
        """Save the weights under ``name`` to sample from; the result's ``path`` goes to ``create_sampling_client``."""
        check_name(name)
        check_ttl(ttl_seconds)
        return self._run.send(requests.save_weights_for_sampler(name, ttl_seconds, user_metadata))

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
        return self._run.send(requests.save_weights_external(name, ttl_seconds, recipients))

    def load_state(self, path: str, weights_access_token: str | None = None) -> APIFuture[models.LoadWeightsResponse]:
        """Load saved weights into this run, with a fresh optimizer; ``ServiceClient.create_training_client_from_state`` does so
        for a new run. Many servers allow it as the first request only.
        """
        check_model_path(path)
        return self._run.send(requests.load_state("load_state", path, weights_access_token, with_optimizer=False))

    def load_state_with_optimizer(
        self, path: str, weights_access_token: str | None = None
    ) -> APIFuture[models.LoadWeightsResponse]:
        """:meth:`load_state`, with the optimizer state that was saved."""
        check_model_path(path)
        operation = "load_state_with_optimizer"
        return self._run.send(requests.load_state(operation, path, weights_access_token, with_optimizer=True))

    def unload_model(self) -> Unloading:
        """Free what the run takes on the server, after everything called before. The run cannot be used any more.

        Servers without the operation answer 404 and free the run when its session ends.
        """
        return self._run.send(requests.unload_model())

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
        saved = self._run.save_for_sampling(kind)
        sampler = Sampler(
            self._run.runtime,
            "save_weights_and_get_sampling_client",
            saved,
            policy=sampling_policy(retry_config),
            record_stability_info=record_stability_info,
        )
        sampler.created.receipt.add_action(saved.saved.receipt.mark_received)
        return SamplingClient(sampler)

    def create_sampling_client(
        self, model_path: str, retry_config: RetryConfig | None = None, record_stability_info: bool = False
    ) -> SamplingClient:
        """A sampling client on saved weights, as ``ServiceClient.create_sampling_client``."""
        check_model_path(model_path)
        return open_sampling_client(
            self._run.runtime,
            base_model=None,
            model_path=model_path,
            retry_config=retry_config,
            record_stability_info=record_stability_info,
        )

    # --------------------------------------------------------------------------------------------------------- information

    def get_info(self) -> models.GetInfoResponse:
        """What the model is. Asked once, at creation; blocks until the model exists."""
        self.result()
        return self._run.info()

    def get_console_url(self) -> str:
        """The run's page on the hosted service; blocks until the model exists."""
        return console.training_run_url(self.model_id)

    def get_telemetry(self) -> Telemetry | None:
        """As ``ServiceClient.get_telemetry``."""
        return self._run.runtime.telemetry

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
        assert self._run.model is not None
        return self._run.model.model_id

    # ------------------------------------------------------------------------------------------------- twins of older code

    @twin_of(forward)
    async def forward_async(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`forward`; await the future it returns."""
        return self.forward(*args, **kwargs)

    @twin_of(forward_backward)
    async def forward_backward_async(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`forward_backward`; await the future it returns."""
        return self.forward_backward(*args, **kwargs)

    @twin_of(forward_backward_custom)
    async def forward_backward_custom_async(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`forward_backward_custom`; await the future it returns."""
        return self.forward_backward_custom(*args, **kwargs)

    @twin_of(optim_step)
    async def optim_step_async(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`optim_step`; await the future it returns."""
        return self.optim_step(*args, **kwargs)

    @twin_of(save_state)
    async def save_state_async(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`save_state`; await the future it returns."""
        return self.save_state(*args, **kwargs)

    @twin_of(save_weights_for_sampler)
    async def save_weights_for_sampler_async(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`save_weights_for_sampler`; await the future it returns."""
        return self.save_weights_for_sampler(*args, **kwargs)

    @twin_of(save_weights_external)
    async def save_weights_external_async(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`save_weights_external`; await the future it returns."""
        return self.save_weights_external(*args, **kwargs)

    @twin_of(load_state)
    async def load_state_async(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`load_state`; await the future it returns."""
        return self.load_state(*args, **kwargs)

    @twin_of(load_state_with_optimizer)
    async def load_state_with_optimizer_async(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`load_state_with_optimizer`; await the future it returns."""
        return self.load_state_with_optimizer(*args, **kwargs)

    @awaiting_twin_of(save_weights_and_get_sampling_client)
    async def save_weights_and_get_sampling_client_async(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`save_weights_and_get_sampling_client`, ready."""
        return await self.save_weights_and_get_sampling_client(*args, **kwargs)

    @awaiting_twin_of(create_sampling_client)
    async def create_sampling_client_async(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`create_sampling_client`, ready."""
        return await self.create_sampling_client(*args, **kwargs)

    async def get_info_async(self) -> models.GetInfoResponse:
        """:meth:`get_info` without blocking."""
        await self
        return self._run.info()

    # ------------------------------------------------------------------------------------------------------ forward/backward

    def _loss(
        self, operation: str, data: Sequence[Datum], loss_fn: str, config: LossConfig
    ) -> APIFuture[ForwardBackwardOutput]:
        batch = list(data)
        check_data(batch, loss_fn)
        check_loss_config(config)
        job = LossJob(loss_fn, None if config is None else dict(config), forward_only=operation == "forward")
        return self._run.compute_loss(operation, batch, job)
