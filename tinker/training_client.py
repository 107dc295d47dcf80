"""TrainingClient: the ordered requests of one training run."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from tinker_wire import models

from tinker import _tokenizers
from tinker._clients import ReadyClient, SessionHolder, awaiting_twin_of, name_maker, twin_of
from tinker._http import sampling_policy
from tinker._sampling import Sampler
from tinker._training import LossJob, Run, check_handle, prepare_loss, requests
from tinker._validate import (
    check_context_lengths,
    check_data,
    check_loss_config,
    check_model_path,
    check_name,
    check_optim_params,
    check_recipients,
    check_ttl,
    read_batch,
)
from tinker.custom_loss import CustomLossFn, LossHandle, LossWithGradients
from tinker.futures import APIFuture
from tinker.sampling_client import SamplingClient, open_sampling_client
from tinker.types import console
from tinker.types.datum import Datum
from tinker.types.params import LossFnType, OptimParams
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
    """Client of one training run: a LoRA adapter on the server, and its optimizer.

    Create it with ``ServiceClient.create_lora_training_client`` or its siblings. You can use it at once: requests made before
    the model exists wait for it. ``await client`` or ``client.result(timeout)`` returns the client when it is ready, or raises
    the error that prevented its creation. Every operation raises that error too.

    Every method returns a future at once and may be called from any thread. The server runs the requests in the order of the
    calls, so you can call ``optim_step`` right after ``forward_backward``. Futures complete on the client's I/O thread.
    Cancelling a future stops the wait; a request that the server has accepted still runs. If a request that would have changed
    the run fails, later ones fail with PrecedingRequestFailed until you have received the error.
    """

    @name_maker("ServiceClient.create_lora_training_client(base_model)")
    def __init__(self, run: Run) -> None:
        self._run = run
        self._ready = run.created

    def __repr__(self) -> str:
        run = getattr(self, "_run", None)  # absent in a subclass that does not call __init__
        return f"<TrainingClient {run.model.model_id if run and run.model else 'being created'}>"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: the order of the run's requests belongs to one process."""
        raise TypeError(
            "a TrainingClient cannot be pickled; save the state, and load it in the other process with "
            "create_training_client_from_state"
        )

    # ---------------------------------------------------------------------------------------------------------- operations

    def forward(
        self, data: Sequence[Datum], loss_fn: LossFnType, loss_fn_config: LossConfig = None
    ) -> APIFuture[ForwardBackwardOutput]:
        """Compute the loss of a batch without a gradient.

        Args:
            data: The examples, as for :meth:`forward_backward`.
            loss_fn: The loss, as for :meth:`forward_backward`.
            loss_fn_config: Settings of the loss, as for :meth:`forward_backward`.

        Returns:
            A future of the outputs and metrics, as of :meth:`forward_backward`.

        Raises:
            ValueError: At once, as from :meth:`forward_backward`.
            TypeError: At once, as from :meth:`forward_backward`.
        """
        return self._loss("forward", data, loss_fn, loss_fn_config)

    def forward_backward(
        self, data: Sequence[Datum], loss_fn: LossFnType, loss_fn_config: LossConfig = None
    ) -> APIFuture[ForwardBackwardOutput]:
        """Compute the loss of a batch and add its gradient to the gradient accumulated since the last optimizer step.

        The arguments are checked on the caller's thread, and the request's position in the order is fixed. Then, in the
        background, the data is encoded and sent, a large batch in several requests, and the results are put together.

        Args:
            data: The examples. Each loss input has the length of its datum's model input as its first dimension.
            loss_fn: The name of a loss: ``cross_entropy``, ``importance_sampling``, ``ppo``, or another that the server knows.
                Losses are summed over tokens, not averaged.
            loss_fn_config: Settings of the loss, numbers or text by name; None means the server's defaults.

        Returns:
            A future of the outputs, one dict of tensors for each datum, in the order of ``data``, and the metrics. The built-in
                losses return ``logprobs``, float32, in the shape of ``target_tokens``.

        Raises:
            ValueError: At once, and nothing is sent, when the data is empty, or a loss input is missing, unknown to the loss,
                NaN, or of another length than the model input. The message names the index of the datum and the field.
            TypeError: At once, for an item that is not a Datum, or a setting that is neither a number nor text.
        """
        return self._loss("forward_backward", data, loss_fn, loss_fn_config)

    def forward_backward_custom(
        self,
        data: Sequence[Datum],
        loss_fn: CustomLossFn | LossWithGradients | LossHandle,
        *,
        loss_type_input: str | None = None,
    ) -> APIFuture[ForwardBackwardOutput]:
        """Compute your own loss over the targets' log-probabilities, and add its gradient as :meth:`forward_backward` does.

        Three things happen in order: a forward pass on the server, the loss function in this process, and a backward pass with
        the gradient of the function. The function runs once, on its own thread, while later requests of this client queue
        behind the step. So :meth:`optim_step` may be called without waiting, but a loss function must not wait for this client.

        A function that fails, returns something else, or has a gradient that is not finite fails the future. As the gradient is
        then missing, later requests of this client fail until the error has been received.

        Args:
            data: The examples, each with ``target_tokens``; their other loss inputs are for the function.
            loss_fn: ``loss_fn(data, logprobs)`` receives the datums and, for each, a torch tensor in the shape of its
                ``target_tokens``; it returns the loss as a tensor and a dict of metrics. A loss made by
                ``tinker.with_gradients`` computes its own gradient, without torch. A handle of
                ``ServiceClient.create_custom_loss`` may be computed by the server.
            loss_type_input: Deprecated; ``logprobs`` is the only value.

        Returns:
            A future of the outputs and metrics. ``metrics["loss:sum"]`` is the loss, and ``surrogate_loss:sum`` is the loss of
                the server's backward pass. The metrics of the function are included.

        Raises:
            ValueError: At once, for wrong data as in :meth:`forward_backward`, a handle of another session, and datums that
                lack an input of a handle.
            ImportError: The loss needs torch, which is not installed.

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
        prepared = prepare_loss(data, loss_fn)
        check_context_lengths(data, self._run.context_length)
        return self._run.compute_custom_loss(prepared)

    def optim_step(
        self, optim_params: OptimParams | None = None, *, adam_params: OptimParams | None = None
    ) -> APIFuture[models.OptimStepResponse]:
        """Apply the accumulated gradient with one step of the optimizer, and clear the gradient.

        Args:
            optim_params: The parameters of this step, AdamParams or DimuonParams; they must fit the optimizer of the run.
            adam_params: The older name of the argument.

        Returns:
            A future of the server's response, with metrics where the server sends some.

        Raises:
            ValueError: At once, when both arguments are given, a parameter is not finite or the learning rate is negative.
            TypeError: At once, when neither is given, or the argument is of another type.
        """
        if optim_params is not None and adam_params is not None:
            raise ValueError("optim_step takes optim_params or adam_params, not both")
        params = optim_params if optim_params is not None else adam_params
        return self._run.send(requests.optim_step(check_optim_params(params)))

    def save_state(
        self,
        name: str,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        user_metadata: Mapping[str, str] | None = None,
    ) -> APIFuture[SaveWeightsResponse]:
        """Save the weights and the optimizer state under a name.

        The checkpoint contains the effect of all earlier calls.

        Args:
            name: The last part of the checkpoint's path, without ``/``.
            ttl_seconds: Seconds until the checkpoint expires, an hour to ten years; None keeps it forever.
            overwrite: Whether to replace a checkpoint of the same name; otherwise the future fails with ConflictError.
            user_metadata: Text by name, stored with the checkpoint. Optional.

        Returns:
            A future whose result has the ``path``, for ``ServiceClient.create_training_client_from_state_with_optimizer``.

        Raises:
            ValueError: At once, for an invalid name or time.
        """
        check_name(name)
        check_ttl(ttl_seconds)
        return self._run.send(requests.save_state(name, ttl_seconds, overwrite, user_metadata))

    def save_weights_for_sampler(
        self, name: str, ttl_seconds: int | None = None, user_metadata: Mapping[str, str] | None = None
    ) -> APIFuture[SaveWeightsForSamplerResponse]:
        """Save the weights under a name to sample from them.

        The checkpoint contains the effect of all earlier calls.

        Args:
            name: The last part of the checkpoint's path, without ``/``.
            ttl_seconds: Seconds until the checkpoint expires, an hour to ten years; None keeps it forever.
            user_metadata: Text by name, stored with the checkpoint. Optional.

        Returns:
            A future whose result has the ``path``, for ``ServiceClient.create_sampling_client``.

        Raises:
            ValueError: At once, for an invalid name or time.
        """
        check_name(name)
        check_ttl(ttl_seconds)
        return self._run.send(requests.save_weights_for_sampler(name, ttl_seconds, user_metadata))

    def save_weights_external(
        self, name: str, ttl_seconds: int | None = None, age_encryption_recipients: Sequence[str] | None = None
    ) -> APIFuture[SaveWeightsExternalResponse]:
        """Save the weights as files to download, see ``RestClient.get_external_weights_urls``.

        Args:
            name: The last part of the checkpoint's path, without ``/``.
            ttl_seconds: Seconds until the checkpoint expires, an hour to ten years; None keeps it forever.
            age_encryption_recipients: Public keys (``age1...`` or SSH) to encrypt the files for, at most ten; None does not
                encrypt.

        Returns:
            A future whose result has the ``path``.

        Raises:
            ValueError: At once, for an invalid name, time or list of keys.
        """
        check_name(name)
        check_ttl(ttl_seconds)
        recipients = check_recipients(age_encryption_recipients)
        return self._run.send(requests.save_weights_external(name, ttl_seconds, recipients))

    def load_state(self, path: str, weights_access_token: str | None = None) -> APIFuture[models.LoadWeightsResponse]:
        """Load saved weights into this run, with a fresh optimizer.

        Many servers allow this only as the first request. ``ServiceClient.create_training_client_from_state`` does it for a new
        run.

        Args:
            path: The checkpoint, ``tinker://<training run>/weights/<name>``.
            weights_access_token: A token that grants access to another user's checkpoint; None uses the credential alone.

        Returns:
            A future of the server's response.

        Raises:
            ValueError: At once, for a path without a scheme.
        """
        check_model_path(path, "weights")
        return self._run.send(requests.load_state("load_state", path, weights_access_token, with_optimizer=False))

    def load_state_with_optimizer(
        self, path: str, weights_access_token: str | None = None
    ) -> APIFuture[models.LoadWeightsResponse]:
        """Load saved weights and the optimizer state saved with them into this run.

        Many servers allow this only as the first request.

        Args:
            path: The checkpoint, ``tinker://<training run>/weights/<name>``.
            weights_access_token: A token that grants access to another user's checkpoint; None uses the credential alone.

        Returns:
            A future of the server's response.

        Raises:
            ValueError: At once, for a path without a scheme.
        """
        check_model_path(path, "weights")
        operation = "load_state_with_optimizer"
        return self._run.send(requests.load_state(operation, path, weights_access_token, with_optimizer=True))

    def unload_model(self) -> Unloading:
        """Free the memory of the run on the server, after all earlier requests. The run cannot be used afterwards.

        Servers without the operation answer 404 and free the run when its session ends.

        Returns:
            A future of the server's response.
        """
        return self._run.send(requests.unload_model())

    def save_weights_and_get_sampling_client(
        self,
        name: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
        kind: models.SamplingClientKind = "snapshot",
    ) -> SamplingClient:
        """Create a sampling client from the current weights, without storing them under a name.

        Returns at once. The weights are saved after all earlier requests, and the client's samples wait for that.

        Args:
            name: Has no effect; a value other than None warns.
            retry_config: Retry settings, as for ``ServiceClient.create_sampling_client``.
            record_stability_info: Passed to the server with each sample.
            kind: "snapshot" keeps the current weights; "inflight" switches to the weights of later inflight saves of this run.

        Returns:
            The sampling client, usable at once.
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
        """Create a sampling client from saved weights, as ``ServiceClient.create_sampling_client`` does.

        Args:
            model_path: The saved weights, ``tinker://<training run>/sampler_weights/<name>``.
            retry_config: Retry settings, as for ``ServiceClient.create_sampling_client``.
            record_stability_info: Passed to the server with each sample.

        Returns:
            The sampling client, usable at once.

        Raises:
            ValueError: The path has no scheme.
        """
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
        """Return the description of the model that the server sent when it created it. Blocks until the model exists."""
        self.result()
        return self._run.info()

    def get_console_url(self) -> str:
        """Return the address of the run's page on the hosted service. Blocks until the model exists."""
        return console.training_run_url(self.model_id)

    def get_telemetry(self) -> Telemetry | None:
        """Return the reporter of failures, as ``ServiceClient.get_telemetry`` does."""
        return self._run.runtime.telemetry

    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the tokenizer of the base model; each process loads it once. Blocks until the model exists.

        Raises:
            ImportError: transformers is not installed.
            TinkerError: The server's tokenizer cannot be reached from this machine.
        """
        info = self.get_info()
        data = info.model_data
        return _tokenizers.load(_tokenizers.resolve(data.model_name or info.model_name or "", data.tokenizer_id))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Turn text into tokens with :meth:`get_tokenizer`.

        Args:
            text: The text.
            add_special_tokens: Whether to add the tokens that the tokenizer puts around a text.

        Returns:
            The token ids.
        """
        return _tokenizers.encode(self.get_tokenizer(), text, add_special_tokens)

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Turn tokens into text with :meth:`get_tokenizer`.

        Args:
            tokens: The token ids.
            skip_special_tokens: Whether to omit special tokens instead of spelling them out.

        Returns:
            The text.
        """
        return _tokenizers.decode(self.get_tokenizer(), tokens, skip_special_tokens)

    @property
    def model_id(self) -> str:
        """Return the id of the training run. Blocks until the model exists."""
        self.result()
        assert self._run.model is not None
        return self._run.model.model_id

    def _guaranteed_model_id(self) -> str:  # by which scripts read ``model_id``
        return self.model_id

    @property
    def holder(self) -> SessionHolder:
        """Return an object with what older code uses, as ``ServiceClient.holder`` does."""
        return SessionHolder(self._run.runtime)

    # ------------------------------------------------------------------------------------------------- twins of older code

    @twin_of(forward)
    async def forward_async(self, *args: Any, **kwargs: Any) -> Any:
        """Call :meth:`forward`; await the future that this returns."""
        return self.forward(*args, **kwargs)

    @twin_of(forward_backward)
    async def forward_backward_async(self, *args: Any, **kwargs: Any) -> Any:
        """Call :meth:`forward_backward`; await the future that this returns."""
        return self.forward_backward(*args, **kwargs)

    @twin_of(forward_backward_custom)
    async def forward_backward_custom_async(self, *args: Any, **kwargs: Any) -> Any:
        """Call :meth:`forward_backward_custom`; await the future that this returns."""
        return self.forward_backward_custom(*args, **kwargs)

    @twin_of(optim_step)
    async def optim_step_async(self, *args: Any, **kwargs: Any) -> Any:
        """Call :meth:`optim_step`; await the future that this returns."""
        return self.optim_step(*args, **kwargs)

    @twin_of(save_state)
    async def save_state_async(self, *args: Any, **kwargs: Any) -> Any:
        """Call :meth:`save_state`; await the future that this returns."""
        return self.save_state(*args, **kwargs)

    @twin_of(save_weights_for_sampler)
    async def save_weights_for_sampler_async(self, *args: Any, **kwargs: Any) -> Any:
        """Call :meth:`save_weights_for_sampler`; await the future that this returns."""
        return self.save_weights_for_sampler(*args, **kwargs)

    @twin_of(save_weights_external)
    async def save_weights_external_async(self, *args: Any, **kwargs: Any) -> Any:
        """Call :meth:`save_weights_external`; await the future that this returns."""
        return self.save_weights_external(*args, **kwargs)

    @twin_of(load_state)
    async def load_state_async(self, *args: Any, **kwargs: Any) -> Any:
        """Call :meth:`load_state`; await the future that this returns."""
        return self.load_state(*args, **kwargs)

    @twin_of(load_state_with_optimizer)
    async def load_state_with_optimizer_async(self, *args: Any, **kwargs: Any) -> Any:
        """Call :meth:`load_state_with_optimizer`; await the future that this returns."""
        return self.load_state_with_optimizer(*args, **kwargs)

    @awaiting_twin_of(save_weights_and_get_sampling_client)
    async def save_weights_and_get_sampling_client_async(self, *args: Any, **kwargs: Any) -> Any:
        """Await :meth:`save_weights_and_get_sampling_client` and return its result."""
        return await self.save_weights_and_get_sampling_client(*args, **kwargs)

    @awaiting_twin_of(create_sampling_client)
    async def create_sampling_client_async(self, *args: Any, **kwargs: Any) -> Any:
        """Await :meth:`create_sampling_client` and return its result."""
        return await self.create_sampling_client(*args, **kwargs)

    async def get_info_async(self) -> models.GetInfoResponse:
        """Await what :meth:`get_info` returns, without blocking a thread."""
        await self
        return self._run.info()

    # ------------------------------------------------------------------------------------------------------ forward/backward

    def _loss(
        self, operation: str, data: Sequence[Datum], loss_fn: str, config: LossConfig
    ) -> APIFuture[ForwardBackwardOutput]:
        longest = self._run.context_length
        batch = read_batch(data, loss_fn)
        check_data(batch, loss_fn)
        check_context_lengths(batch, longest)
        check_loss_config(config)
        job = LossJob(loss_fn, None if config is None else dict(config), forward_only=operation == "forward")
        return self._run.compute_loss(operation, batch, job)
