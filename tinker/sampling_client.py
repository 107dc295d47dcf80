"""SamplingClient: many samples at once from one set of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from tinker._basics.checks import check_number
from tinker._futures import SILENCE_SECONDS, TokenQueue
from tinker._http import retry
from tinker._runtime import ReadyClient, Runtime, SessionHolder, awaiting_twin, name_maker
from tinker._sampling import (
    SampleOptions,
    SamplerConnection,
    StoredModel,
    check_prompt,
    check_sample,
)
from tinker._sampling.portable import SamplerState, from_handle, runtime_for, to_handle
from tinker._session.results import report_pause
from tinker.futures import APIFuture
from tinker.streaming import SampleStream, TokenDecoder
from tinker.types._values import SuggestsNames
from tinker.types.model_input import ModelInput
from tinker.types.params import SamplingParams
from tinker.types.results import SampleResponse
from tinker.types.tensor_data import TensorData
from tinker_records import suggest_arguments

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tinker._http.retry import RetryConfig
    from tinker._session.telemetry import Telemetry


@suggest_arguments
class SamplingClient(SuggestsNames, ReadyClient):
    """Client that samples from a base model or from saved weights, which do not change.

    Created by ``ServiceClient.create_sampling_client`` and
    ``TrainingClient.save_weights_and_get_sampling_client``. You can use it at once, and request
    thousands of samples at the same time from any thread; they run in no particular order. Futures
    complete on the client's I/O thread. If you cancel a future, the client abandons the sample.
    ``await client`` or ``client.result(timeout)`` returns the client when it is ready.
    """

    _suggestions: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("generate", "complete", "chat"), "sample(prompt, num_samples, sampling_params)"
        ),
        **dict.fromkeys(
            ("forward_backward", "optim_step"),
            "a TrainingClient: create_lora_training_client(base_model)",
        ),
        "stream": "sample_stream(prompt, num_samples, sampling_params)",
        "logprobs": "compute_logprobs(prompt)",
        "tokenizer": "get_tokenizer()",
        "apply_chat_template": "tinker.data.prompt_from_messages(get_tokenizer(), messages)",
        "save_pretrained": "checkpoints.download(path): the server has the weights",
    }

    @name_maker("ServiceClient.create_sampling_client(base_model=...)")
    def __init__(self, sampler: SamplerConnection) -> None:
        self._sampler = sampler
        self._ready = sampler.created

    def _facts(self) -> dict[str, object]:
        return {"sampler": self._sampling_session_id or "being created"}

    def __repr__(self) -> str:
        return f"<SamplingClient {self._facts()['sampler']}>"

    @property
    def _sampling_session_id(self) -> str | None:
        # absent in a subclass that does not call __init__
        sampler = getattr(self, "_sampler", None)
        return None if sampler is None else sampler.session_id

    def sample(
        self,
        prompt: ModelInput,
        num_samples: int,
        sampling_params: SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
        topk_sample_logprobs: int = 0,
        target_prompt_logprobs: TensorData | None = None,
        prompt_alt_tokens_k: int = 0,
        prompt_logprobs_last_n: int | None = None,
    ) -> APIFuture[SampleResponse]:
        """Sample continuations of a prompt.

        The arguments are checked at once. The request then waits in the background for the client
        and for a free slot.

        Args:
            prompt: The model input to continue, n tokens long.
            num_samples: The number of continuations, at least 1.
            sampling_params: The limits, temperature and stops of the sampling.
            include_prompt_logprobs: Whether to return the log-probability of each prompt token.
            topk_prompt_logprobs: The number of most likely tokens to return for each prompt
                position. 0 disables this.
            topk_sample_logprobs: The number of most likely tokens to return for each sampled
                position. 0 disables this.
            target_prompt_logprobs: An int64 tensor ``[n - 1, K]`` of tokens to score at each prompt
                position after the first; -1 marks an empty entry. Optional.
            prompt_alt_tokens_k: The number of alternatives to draw for each prompt token. 0
                disables this.
            prompt_logprobs_last_n: The number of positions at the end of the prompt to score, at
                least 1. Requires ``include_prompt_logprobs``. None scores all positions.

        Returns:
            A future of the response; its ``sequences`` are the continuations.

        Raises:
            ValueError: At once, for invalid arguments.
            TypeError: At once, for an argument of the wrong type.

        >>> import tinker
        >>> sampler = tinker.ServiceClient(base_url="local://toy").create_sampling_client(
        ...     base_model="tinker/toy"
        ... )
        >>> prompt, params = (
        ...     tinker.ModelInput.from_ints([104, 105]),
        ...     tinker.SamplingParams(max_tokens=3, stop=[]),
        ... )
        >>> response = sampler.sample(prompt, 2, params).result(timeout=30)
        >>> [len(sequence.tokens) for sequence in response.sequences]
        [3, 3]
        """
        check_prompt(prompt)
        options = SampleOptions(
            num_samples=num_samples,
            sampling_params=sampling_params,
            include_prompt_logprobs=include_prompt_logprobs,
            topk_prompt_logprobs=topk_prompt_logprobs,
            topk_sample_logprobs=topk_sample_logprobs,
            target_prompt_logprobs=target_prompt_logprobs,
            prompt_alt_tokens_k=prompt_alt_tokens_k,
            prompt_logprobs_last_n=prompt_logprobs_last_n,
        )
        check_sample(prompt, options, self._sampler.context_length)
        return self._sampler.sample(prompt, options)

    def sample_stream(
        self,
        prompt: ModelInput,
        num_samples: int,
        sampling_params: SamplingParams,
        *,
        tokenizer: TokenDecoder | None = None,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> SampleStream:
        """Sample continuations of a prompt, and stream the tokens as the server generates them.

        Streaming is not part of the official API. If the server does not support it, which the
        first call detects, the tokens of each sample arrive in one chunk at the end.

        Args:
            prompt: The model input to continue.
            num_samples: The number of continuations, at least 1. Their tokens arrive in any order.
            sampling_params: The limits, temperature and stops of the sampling.
            tokenizer: An object with a method ``decode`` that turns tokens into text. None uses the
                tokenizer that :meth:`get_tokenizer` has loaded; if it was not called, chunks have
                no text.
            silence_seconds: The longest time between two tokens, in seconds, after the first token.

        Returns:
            An iterator and asynchronous iterator of chunks.

        Raises:
            ValueError: At once, for invalid arguments.
            TypeError: At once, for an argument of the wrong type.
        """
        check_prompt(prompt)
        options = SampleOptions(num_samples=num_samples, sampling_params=sampling_params)
        check_sample(prompt, options, self._sampler.context_length)
        check_number("silence_seconds", silence_seconds, positive=True)
        queue = TokenQueue(silence_seconds=silence_seconds)
        chosen = self._sampler.find_tokenizer() if tokenizer is None else tokenizer
        return SampleStream(self._sampler.stream(prompt, options, queue), queue, chosen)

    def compute_logprobs(
        self, prompt: ModelInput, prompt_logprobs_last_n: int | None = None
    ) -> APIFuture[list[float | None]]:
        """Compute the log-probability of each prompt token given the tokens before it.

        Args:
            prompt: The model input to score.
            prompt_logprobs_last_n: The number of positions at the end of the prompt to score, at
                least 1. None scores all positions.

        Returns:
            A future of a list with one number for each prompt token, or None if the token is the
            first or not scored.

        Raises:
            ValueError: At once, for invalid arguments.
            TypeError: At once, for an argument of the wrong type.
        """
        check_prompt(prompt)
        options = SampleOptions(
            num_samples=1,
            sampling_params=SamplingParams(max_tokens=1),
            include_prompt_logprobs=True,
            prompt_logprobs_last_n=prompt_logprobs_last_n,
        )
        check_sample(prompt, options, self._sampler.context_length)
        return self._sampler.compute_logprobs(prompt, options)

    def get_base_model(self) -> str:
        """Return the name of the base model. Blocks until the client exists."""
        return self._sampler.base_model().result()

    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the tokenizer of the base model; each process loads it once. Blocks until the
        client exists.

        The server may name the tokenizer. If it does not, the name of the base model is used.

        Raises:
            ImportError: transformers is not installed.
            TinkerError: The server's tokenizer cannot be reached from this machine.
        """
        from tinker import _tokenizers

        return _tokenizers.load(self._sampler.tokenizer().result())

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

    def get_telemetry(self) -> Telemetry | None:
        """Return the reporter of failures, as ``ServiceClient.get_telemetry`` does."""
        return self._sampler.runtime.telemetry

    def on_queue_state_change(
        self, queue_state: str, queue_state_reason: str | None = None
    ) -> None:
        """Log that samples are waiting, at most once a minute. This client does so by default; see
        :meth:`observe_queue`.

        Args:
            queue_state: The state of the queue, such as ``paused_capacity``.
            queue_state_reason: The server's reason, in words. None if it gave no reason.
        """
        state = str(getattr(queue_state, "value", queue_state))
        report_pause(self._sampler.runtime.transport.observers, "sample", state, queue_state_reason)

    @property
    def sampling_session_id(self) -> str | None:
        """Return the id of the sampling session; None before the server has created it."""
        return self._sampling_session_id

    @property
    def holder(self) -> SessionHolder:
        """Return an object with the attributes that older code uses, as ``ServiceClient.holder``
        does.
        """
        return SessionHolder(self._sampler.runtime)

    def get_sampler_handle(self) -> str:
        """Return a string from which another process can recreate this sampler with its own
        credential.

        The string contains no credential. Blocks until the client exists.
        """
        return to_handle(self._sampler.state())

    @staticmethod
    def from_sampler_handle(handle: str, *, api_key: str | None = None) -> SamplingClient:
        """Recreate a sampler from a handle.

        Args:
            handle: A string from :meth:`get_sampler_handle`.
            api_key: The credential; None uses the credential of this process.

        Returns:
            A client for the same weights.

        Raises:
            ValueError: The text is not a handle.
        """
        return _restore(from_handle(handle), api_key)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the sampler without a credential; the other process uses its own. Blocks until the
        client exists.
        """
        return SamplingClient.from_sampler_handle, (self.get_sampler_handle(),)

    def __deepcopy__(self, memo: dict[int, object]) -> SamplingClient:
        return _restore(self._sampler.state())

    # -------------------------------------------------------------------------- twins of older code

    sample_async: Final = awaiting_twin(sample)
    compute_logprobs_async: Final = awaiting_twin(compute_logprobs)

    async def get_base_model_async(self) -> str:
        """Await what :meth:`get_base_model` returns, without blocking a thread."""
        return await self._sampler.base_model()


def open_sampling_client(
    runtime: Runtime,
    source: StoredModel,
    retry_config: RetryConfig | None,
    record_stability_info: bool,
) -> SamplingClient:
    """Open a sampling client on a base model or saved weights, with a new sampling session."""
    policy = retry.sampling_policy(retry_config)
    return SamplingClient(
        SamplerConnection(
            runtime,
            "create_sampling_client",
            source,
            policy=policy,
            record_stability_info=record_stability_info,
        )
    )


def _restore(state: SamplerState, api_key: str | None = None) -> SamplingClient:
    """Return the sampler of a pickle or a handle, with the same session and weights and its own
    requests.
    """
    source = StoredModel(sampling_session_id=state.sampling_session_id, base_model=state.base_model)
    runtime = runtime_for(state, api_key)
    return SamplingClient(
        SamplerConnection(
            runtime,
            "from_sampler_handle",
            source,
            record_stability_info=state.record_stability_info,
            is_clone=True,
        )
    )
