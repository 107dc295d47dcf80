"""TrainingClient: the ordered requests of one training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, NoReturn

from tinker_wire import models

from tinker._basics.checks import read_flag, warn
from tinker._http import retry
from tinker._runtime import ReadyClient, SessionHolder, awaiting_twin, name_maker, twin
from tinker._sampling import SamplerConnection, StoredModel
from tinker._training import TrainingRun, requests
from tinker._training.losses import LossJob, check_handle, prepare_loss
from tinker._validate import (
    check_context_lengths,
    check_data,
    check_loss,
    check_loss_config,
    check_model_path,
    check_name,
    check_optim_params,
    check_recipients,
    read_batch,
    read_keep_last,
    read_ttl,
    warn_of_narrow_clipping,
    warn_of_unshifted_targets,
    warn_of_weights,
)
from tinker.custom_loss import CustomLossFn, LossHandle, LossWithGradients
from tinker.futures import APIFuture
from tinker.sampling_client import SamplingClient, open_sampling_client
from tinker.types import results
from tinker.types._values import SuggestsNames
from tinker.types.model_input import Datum
from tinker.types.params import LossFnType, OptimParams
from tinker.types.results import (
    ForwardBackwardOutput,
    SaveWeightsExternalResponse,
    SaveWeightsForSamplerResponse,
    SaveWeightsResponse,
)
from tinker_records import suggest_arguments

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tinker._http.retry import RetryConfig
    from tinker._session.telemetry import Telemetry

LossConfig = Mapping[str, float | str] | None
# By this name, as instrumentation of other libraries takes every method that says "Future" for one
# of the official client's.
Unloading = APIFuture[models.UnloadModelResponse]


@suggest_arguments
class TrainingClient(SuggestsNames, ReadyClient):
    """Client of one training run: a LoRA adapter on the server, and its optimizer.

    Created by ``ServiceClient.create_lora_training_client`` and similar methods. You can use it at
    once: requests made before the model exists wait for it. ``await client`` or
    ``client.result(timeout)`` returns the client when it is ready, or raises the error that
    prevented its creation. Every operation raises that error too.

    Every method returns a future at once. Requests run on the server in the order of the calls,
    from any thread, so you can call ``forward_backward`` and ``optim_step`` without waiting in
    between. Futures complete on the client's I/O thread. If you cancel a future, a request that the
    server has accepted still runs. When a request that changes the run fails, later requests fail
    with PrecedingRequestFailed until you receive the error.
    """

    _suggestions: ClassVar[Mapping[str, str]] = {
        "close": "close() of its ServiceClient, which ends the session",
        **dict.fromkeys(
            ("log", "add_callback"), "a loop, where you print, log and stop what you want"
        ),
        "resume_from_checkpoint": (
            "ServiceClient.create_training_client_from_state_with_optimizer(path)"
        ),
        **dict.fromkeys(
            ("sample", "generate"), "save_weights_and_get_sampling_client().sample(...)"
        ),
        **dict.fromkeys(("step", "optimizer_step"), "optim_step(AdamParams(learning_rate=...))"),
        "zero_grad": "optim_step(AdamParams(learning_rate=...)), which clears the gradients",
        **dict.fromkeys(
            ("backward", "train", "train_step", "fit", "compute_loss"),
            "forward_backward(data, loss_fn) and optim_step(adam_params)",
        ),
        **dict.fromkeys(
            ("save", "save_weights", "save_checkpoint", "save_model"),
            "save_state(name) or save_weights_for_sampler(name)",
        ),
        **dict.fromkeys(
            ("save_pretrained", "push_to_hub"),
            "save_weights_external(name) and checkpoints.download(path), "
            "or `tinker checkpoint push-hf`",
        ),
        **dict.fromkeys(("evaluate", "eval", "predict"), "forward(data, loss_fn)"),
        "forward_custom": (
            'forward(data, "cross_entropy"), and call your function with the logprobs of its result'
        ),
        "tokenizer": "get_tokenizer()",
        "apply_chat_template": (
            "tinker.data.from_messages or prompt_from_messages, with get_tokenizer()"
        ),
        **dict.fromkeys(("run_id", "training_run_id", "id"), "model_id, which is the run's ID"),
        "session_id": "model_id: the part before the first colon is the session",
        **dict.fromkeys(("print_trainable_parameters", "get_lora_config"), "get_info().lora_rank"),
        **dict.fromkeys(
            ("lr", "learning_rate", "lr_scheduler", "optimizer", "scheduler"),
            "optim_step(AdamParams(learning_rate=...)), which takes it in each step",
        ),
        **dict.fromkeys(
            ("model", "weights", "parameters", "state_dict"),
            "checkpoints.download(path): the server has the weights",
        ),
        "merge_and_unload": "checkpoints.merge(path, base, out): the server has the weights",
        **dict.fromkeys(
            ("load", "load_weights", "load_checkpoint"),
            "load_state(path) or load_state_with_optimizer(path)",
        ),
    }

    @name_maker("ServiceClient.create_lora_training_client(base_model)")
    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self._ready = run.created

    def _facts(self) -> dict[str, object]:
        run = getattr(self, "_run", None)  # absent in a subclass that does not call __init__
        name = run.model.model_id if run and run.model else "being created"
        return {"run": name, "base model": run and run.base_model}

    def __repr__(self) -> str:
        name, base_model = self._facts().values()
        return f"<TrainingClient {name}{f', base model {base_model}' if base_model else ''}>"

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: one process keeps the order of the run's requests, so the client cannot
        be pickled.
        """
        raise TypeError(
            "a TrainingClient cannot be pickled or copied; call save_state, and load the state in "
            "the other process with "
            "create_training_client_from_state"
        )

    # ----------------------------------------------------------------------------------- operations

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
        """Compute the loss of a batch and add its gradient to the gradient accumulated since the
        last optimizer step.

        The call checks the arguments and reserves the request's position in the order. In the
        background, the client encodes and sends the data, splits a large batch into several
        requests, and combines the results.

        Args:
            data: The examples. Each loss input has the length of its datum's model input as its
                first dimension.
            loss_fn: The name of a loss that the server supports, such as ``cross_entropy``,
                ``importance_sampling`` or ``ppo``. Losses are summed over tokens, not averaged.
                Type checkers accept the names of ``LossFnType``; for another one that only your
                server has, write ``cast("types.LossFnType", name)``.
            loss_fn_config: Settings of the loss by name, numbers or strings. None means the
                server's defaults.

        Returns:
            A future of the outputs, one dict of tensors for each datum, in the order of ``data``,
                and the metrics. The built-in losses return ``logprobs``, float32, in the shape of
                ``target_tokens``.

        Raises:
            ValueError: At once, before anything is sent, if the data is empty, or a loss input is
                missing, unknown to the loss, NaN, or differs in length from the model input. The
                message names the index of the datum and the field. Also if the server has reported
                its losses, and the loss or a setting is not among them.
            TypeError: At once, if an item is not a Datum, or a setting is neither a number nor a
                string.

        >>> import tinker
        >>> training = tinker.ServiceClient(base_url="local://toy").create_lora_training_client(
        ...     "tinker/toy", rank=4
        ... )
        >>> tokens = [104, 101, 108, 108, 111]
        >>> datum = tinker.Datum(
        ...     tinker.ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:]}
        ... )
        >>> output = training.forward_backward([datum], "cross_entropy").result(timeout=30)
        >>> output.metrics["weights:sum"], output.loss_fn_outputs[0]["logprobs"].shape
        (4.0, [4])
        """
        return self._loss("forward_backward", data, loss_fn, loss_fn_config)

    def forward_backward_custom(
        self,
        data: Sequence[Datum],
        loss_fn: CustomLossFn | LossWithGradients | LossHandle,
        *,
        loss_type_input: str | None = None,
    ) -> APIFuture[ForwardBackwardOutput]:
        """Compute your own loss from the targets' log-probabilities, and add its gradient as
        :meth:`forward_backward` does.

        The step has three parts: a forward pass on the server, the loss function in this process,
        and a backward pass with the gradient of the function. The function runs once, in a separate
        thread. Later requests of this client queue behind the step, so you can call
        :meth:`optim_step` without waiting, but the loss function must not wait for this client.

        The future fails if the function raises, returns a wrong type, or has a gradient that is not
        finite. Because the gradient is then missing, later requests of this client fail until you
        receive the error.

        Args:
            data: The examples, each with ``target_tokens``. Their other loss inputs are passed to
                the function.
            loss_fn: ``loss_fn(data, logprobs)`` receives the datums and, for each, a torch tensor
                in the shape of its ``target_tokens``; it returns the loss as a tensor and a dict of
                metrics. A loss wrapped in ``tinker.with_gradients`` computes its own gradient,
                without torch. A server may compute the loss of a handle from
                ``ServiceClient.create_custom_loss``.
            loss_type_input: Deprecated. The only value is ``logprobs``.

        Returns:
            A future of the outputs and metrics. ``metrics["loss:sum"]`` is the loss, and
                ``surrogate_loss:sum`` is the loss of the server's backward pass. The metrics of the
                function are included.

        Raises:
            ValueError: At once, if the data is invalid as in :meth:`forward_backward`, the handle
                belongs to another session, or a datum lacks an input of the handle.
            ImportError: The loss needs torch, which is not installed.

        >>> import tinker
        >>> training = tinker.ServiceClient(base_url="local://toy").create_lora_training_client(
        ...     "tinker/toy", rank=4
        ... )
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
            warn(
                "loss_type_input has no effect; the loss receives log-probabilities",
                DeprecationWarning,
            )
            if loss_type_input != "logprobs":
                raise ValueError(f"loss_type_input must be 'logprobs', got {loss_type_input!r}")
        if isinstance(loss_fn, LossHandle):
            check_handle(loss_fn, data, self._run.runtime.session.session_id)
            if loss_fn.loss_id is not None:
                return self._loss(
                    "forward_backward_custom", data, "custom", {"loss_id": loss_fn.loss_id}
                )
        prepared = prepare_loss(data, loss_fn)
        check_context_lengths(data, self._run.context_length)
        return self._run.compute_custom_loss(prepared)

    def optim_step(
        self, optim_params: OptimParams | None = None, *, adam_params: OptimParams | None = None
    ) -> APIFuture[models.OptimStepResponse]:
        """Apply the accumulated gradient with one step of the optimizer, and clear the gradient.

        Args:
            optim_params: The parameters of this step, AdamParams or DimuonParams. They must match
                the optimizer of the run.
            adam_params: The older name of the argument.

        Returns:
            A future of the server's response, which may contain metrics.

        Raises:
            ValueError: At once, if both arguments are given.
            TypeError: At once, if neither argument is given, or the argument has the wrong type.

        >>> import tinker
        >>> service = tinker.ServiceClient(base_url="local://toy")
        >>> training = service.create_lora_training_client("tinker/toy", rank=4, seed=0)
        >>> tokens = [104, 101, 108, 108, 111]
        >>> datum = tinker.Datum(
        ...     tinker.ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:]}
        ... )
        >>> losses = []
        >>> for _ in range(2):
        ...     losses.append(training.forward_backward([datum], "cross_entropy"))
        ...     step = training.optim_step(tinker.AdamParams(learning_rate=0.01))
        >>> losses[0].result(timeout=30).loss > losses[1].result(timeout=30).loss
        True
        """
        if optim_params is not None and adam_params is not None:
            raise ValueError("pass either optim_params or adam_params to optim_step, not both")
        params = optim_params if optim_params is not None else adam_params
        return self._run.send(requests.optim_step(check_optim_params(params)))

    def save_state(
        self,
        name: str,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        user_metadata: Mapping[str, str] | None = None,
        *,
        keep_last: int | None = None,
    ) -> APIFuture[SaveWeightsResponse]:
        """Save the weights and the optimizer state under a name.

        The checkpoint contains the effect of all earlier calls.

        Args:
            name: The last part of the checkpoint's path, without ``/``.
            ttl_seconds: Seconds until the checkpoint expires, an hour to ten years; None keeps it
                forever.
            overwrite: Whether to replace a checkpoint of the same name; otherwise the future fails
                with ConflictError.
            user_metadata: Strings by name, stored with the checkpoint. Optional.
            keep_last: How many checkpoints of this run and kind to keep: once this one is there,
                the server deletes the oldest until so many are left. Published ones stay, and do
                not count. None, the default, deletes nothing. This is an extension: the local
                server has it, and other servers ignore or reject it.

        Returns:
            A future whose result has the ``path``, for
            ``ServiceClient.create_training_client_from_state_with_optimizer``.

        Raises:
            ValueError: At once, if the name, the time or ``keep_last`` is invalid.

        >>> import tinker
        >>> training = tinker.ServiceClient(base_url="local://toy").create_lora_training_client(
        ...     "tinker/toy", rank=4
        ... )
        >>> training.save_state("first").result(timeout=30).path.endswith("/weights/first")
        True
        """
        check_name(name)
        seconds, overwrites = read_ttl(ttl_seconds), read_flag("overwrite", overwrite)
        return self._run.send(
            requests.save_state(name, seconds, overwrites, user_metadata, read_keep_last(keep_last))
        )

    def save_weights_for_sampler(
        self,
        name: str,
        ttl_seconds: int | None = None,
        user_metadata: Mapping[str, str] | None = None,
        *,
        keep_last: int | None = None,
    ) -> APIFuture[SaveWeightsForSamplerResponse]:
        """Save the weights under a name to sample from them.

        The checkpoint contains the effect of all earlier calls.

        Args:
            name: The last part of the checkpoint's path, without ``/``.
            ttl_seconds: Seconds until the checkpoint expires, an hour to ten years; None keeps it
                forever.
            user_metadata: Strings by name, stored with the checkpoint. Optional.
            keep_last: How many of these checkpoints of this run to keep, as in :meth:`save_state`.

        Returns:
            A future whose result has the ``path``, for ``ServiceClient.create_sampling_client``.

        Raises:
            ValueError: At once, if the name, the time or ``keep_last`` is invalid.
        """
        check_name(name)
        seconds, keep = read_ttl(ttl_seconds), read_keep_last(keep_last)
        return self._run.send(requests.save_weights_for_sampler(name, seconds, user_metadata, keep))

    def save_weights_external(
        self,
        name: str,
        ttl_seconds: int | None = None,
        age_encryption_recipients: Sequence[str] | None = None,
    ) -> APIFuture[SaveWeightsExternalResponse]:
        """Save the weights as files to download, see ``RestClient.get_external_weights_urls``.

        Args:
            name: The last part of the checkpoint's path, without ``/``.
            ttl_seconds: Seconds until the checkpoint expires, an hour to ten years; None keeps it
                forever.
            age_encryption_recipients: Public keys (``age1...`` or SSH) to encrypt the files for, at
                most ten. None disables encryption.

        Returns:
            A future whose result has the ``path``.

        Raises:
            ValueError: At once, if the name, time or list of keys is invalid.
        """
        check_name(name)
        seconds, recipients = read_ttl(ttl_seconds), check_recipients(age_encryption_recipients)
        return self._run.send(requests.save_weights_external(name, seconds, recipients))

    def load_state(
        self, path: str, weights_access_token: str | None = None
    ) -> APIFuture[models.LoadWeightsResponse]:
        """Load saved weights into this run, with a fresh optimizer.

        Many servers allow this only as the first request. To load the weights into a new run, use
        ``ServiceClient.create_training_client_from_state``.

        Args:
            path: The checkpoint, ``tinker://<training run>/weights/<name>``.
            weights_access_token: A token that grants access to another user's checkpoint. Optional.

        Returns:
            A future of the server's response.

        Raises:
            ValueError: At once, if the path has no scheme.
        """
        check_model_path("path", path)
        return self._run.send(
            requests.load_state("load_state", path, weights_access_token, with_optimizer=False)
        )

    def load_state_with_optimizer(
        self, path: str, weights_access_token: str | None = None
    ) -> APIFuture[models.LoadWeightsResponse]:
        """Load saved weights and the optimizer state saved with them into this run.

        Many servers allow this only as the first request.

        Args:
            path: The checkpoint, ``tinker://<training run>/weights/<name>``.
            weights_access_token: A token that grants access to another user's checkpoint. Optional.

        Returns:
            A future of the server's response.

        Raises:
            ValueError: At once, if the path has no scheme.
        """
        check_model_path("path", path)
        operation = "load_state_with_optimizer"
        return self._run.send(
            requests.load_state(operation, path, weights_access_token, with_optimizer=True)
        )

    def unload_model(self) -> Unloading:
        """Free the memory of the run on the server, after all earlier requests. The run cannot be
        used afterwards.

        Servers without this operation return 404 and free the run when its session ends.

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

        Returns at once. The weights are saved after all earlier requests, and the client's samples
        wait for that.

        Args:
            name: Has no effect. A value other than None causes a warning.
            retry_config: Retry settings, as for ``ServiceClient.create_sampling_client``.
            record_stability_info: Whether the server records each sequence for the loss
                ``stable_reinforce``.
            kind: "snapshot" keeps the current weights. "inflight" switches to the weights of later
                inflight saves of this run.

        Returns:
            The sampling client, usable at once.
        """
        if name is not None:
            warn("name has no effect; the sampling client is not stored", DeprecationWarning)
        saved = self._run.save_for_sampling(kind)
        sampler = SamplerConnection(
            self._run.runtime,
            "create_sampling_client",
            saved,
            policy=retry.sampling_policy(retry_config),
            record_stability_info=record_stability_info,
        )
        sampler.created.receipt.share(saved.saved.receipt.mark_received)
        return SamplingClient(sampler)

    def create_sampling_client(
        self,
        model_path: str,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> SamplingClient:
        """Create a sampling client from saved weights, as ``ServiceClient.create_sampling_client``
        does.

        Args:
            model_path: The saved weights, ``tinker://<training run>/sampler_weights/<name>``.
            retry_config: Retry settings, as for ``ServiceClient.create_sampling_client``.
            record_stability_info: Whether the server records each sequence for the loss
                ``stable_reinforce``.

        Returns:
            The sampling client, usable at once.

        Raises:
            ValueError: The path has no scheme.
        """
        check_model_path("model_path", model_path, "sampler_weights")
        source = StoredModel(model_path=model_path)
        return open_sampling_client(self._run.runtime, source, retry_config, record_stability_info)

    # ---------------------------------------------------------------------------------- information

    def get_info(self) -> models.GetInfoResponse:
        """Return the server's description of the model. Blocks until the model exists."""
        self.result()
        return self._run.info()

    def get_console_url(self) -> str:
        """Return the address of the run's page on the hosted service. Blocks until the model
        exists.
        """
        return results.training_run_url(self.model_id)

    def get_telemetry(self) -> Telemetry | None:
        """Return the reporter of failures, as ``ServiceClient.get_telemetry`` does."""
        return self._run.runtime.telemetry

    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the tokenizer of the base model; each process loads it once. Blocks until the
        model exists.

        Raises:
            ImportError: transformers is not installed.
            TinkerError: The server's tokenizer cannot be reached from this machine.
        """
        from tinker import _tokenizers

        info = self.get_info()
        data = info.model_data
        return _tokenizers.load(
            _tokenizers.resolve(data.model_name or info.model_name or "", data.tokenizer_id)
        )

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Turn text into tokens with :meth:`get_tokenizer`.

        Args:
            text: The text.
            add_special_tokens: Whether to add the tokens that the tokenizer puts around a text.

        Returns:
            The token ids.

        Raises:
            TypeError: At once, if the text is not a string.
        """
        from tinker import _tokenizers

        return _tokenizers.encode(self.get_tokenizer, text, add_special_tokens)

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Turn tokens into text with :meth:`get_tokenizer`.

        Args:
            tokens: The token ids.
            skip_special_tokens: Whether to omit special tokens instead of spelling them out.

        Returns:
            The text.

        Raises:
            TypeError: At once, if the tokens are not a list of token ids.
        """
        from tinker import _tokenizers

        return _tokenizers.decode(self.get_tokenizer, tokens, skip_special_tokens)

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
        """Return an object with the attributes that older code uses, as ``ServiceClient.holder``
        does.
        """
        return SessionHolder(self._run.runtime)

    # -------------------------------------------------------------------------- twins of older code

    forward_async: Final = twin(forward)
    forward_backward_async: Final = twin(forward_backward)
    forward_backward_custom_async: Final = twin(forward_backward_custom)
    optim_step_async: Final = twin(optim_step)
    save_state_async: Final = twin(save_state)
    save_weights_for_sampler_async: Final = twin(save_weights_for_sampler)
    save_weights_external_async: Final = twin(save_weights_external)
    load_state_async: Final = twin(load_state)
    load_state_with_optimizer_async: Final = twin(load_state_with_optimizer)
    save_weights_and_get_sampling_client_async: Final = awaiting_twin(
        save_weights_and_get_sampling_client
    )
    create_sampling_client_async: Final = awaiting_twin(create_sampling_client)

    async def get_info_async(self) -> models.GetInfoResponse:
        """Await what :meth:`get_info` returns, without blocking a thread."""
        await self
        return self._run.info()

    # ----------------------------------------------------------------------------- forward/backward

    def _loss(
        self, operation: str, data: Sequence[Datum], loss_fn: str, config: LossConfig
    ) -> APIFuture[ForwardBackwardOutput]:
        batch = read_batch(data, loss_fn, operation)
        check_data(batch, loss_fn)
        check_context_lengths(batch, self._run.context_length)
        check_loss_config(config, loss_fn)
        check_loss(loss_fn, config or {}, self._run.runtime.server.losses)
        warn_of_unshifted_targets(batch[0])
        warn_of_narrow_clipping(config or {})
        if operation == "forward_backward" and loss_fn == "cross_entropy":
            warn_of_weights(batch)
        job = LossJob(
            loss_fn, None if config is None else dict(config), forward_only=operation == "forward"
        )
        return self._run.compute_loss(operation, batch, job)
