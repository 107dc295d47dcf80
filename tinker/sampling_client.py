"""SamplingClient: many samples at once from one set of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinker import _tokenizers
from tinker._clients import ReadyClient, awaiting_twin_of
from tinker._http import sampling_policy
from tinker._runtime import Runtime
from tinker._sampling import (
    SampleOptions,
    Sampler,
    SamplerState,
    SharedSession,
    StoredModel,
    from_handle,
    runtime_for,
    to_handle,
)
from tinker._session import report_pause
from tinker._validate import check_sample
from tinker.futures import APIFuture
from tinker.types.model_input import ModelInput
from tinker.types.params import SamplingParams
from tinker.types.results import SampleResponse
from tinker.types.tensor_data import TensorData

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tinker._session import Telemetry
    from tinker.lib.retry_handler import RetryConfig


class SamplingClient(ReadyClient):
    """Samples from a base model or from saved weights, which do not change.

    Made by ``ServiceClient.create_sampling_client`` or ``TrainingClient.save_weights_and_get_sampling_client``, usable at
    once. Thousands of samples may be asked for at the same time, from whatever threads; they run in no particular order.
    ``await client`` or ``client.result(timeout)`` gives the client ready.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._ready = sampler.created

    def __repr__(self) -> str:
        return f"<SamplingClient {self._sampling_session_id or 'being created'}>"

    @property
    def _sampling_session_id(self) -> str | None:
        sampler = getattr(self, "_sampler", None)  # absent in a subclass that does not call __init__
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
        """Sample ``num_samples`` continuations of ``prompt``.

        ``include_prompt_logprobs`` adds the log-probability of each prompt token; ``topk_prompt_logprobs`` and
        ``topk_sample_logprobs`` the k most likely tokens of each prompt or sampled position. ``target_prompt_logprobs``, an
        int64 tensor ``[len(prompt) - 1, K]``, scores given tokens (-1: none) at each prompt position after the first.

        Raises ValueError or TypeError at once for arguments no server can answer.
        """
        options = SampleOptions.from_arguments(locals())
        check_sample(prompt, options)
        return self._sampler.sample(prompt, options)

    def compute_logprobs(self, prompt: ModelInput, prompt_logprobs_last_n: int | None = None) -> APIFuture[list[float | None]]:
        """The log-probability of each prompt token given those before it; the first is None.

        ``prompt_logprobs_last_n`` asks for the last n only; the others are None then.
        """
        options = SampleOptions(
            num_samples=1,
            sampling_params=SamplingParams(max_tokens=1),
            include_prompt_logprobs=True,
            prompt_logprobs_last_n=prompt_logprobs_last_n,
        )
        check_sample(prompt, options)
        return self._sampler.compute_logprobs(prompt, options)

    def get_base_model(self) -> str:
        """The name of the base model; blocks until the client exists."""
        return self._sampler.base_model().result()

    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the base model; loaded once in a process. Blocks until the client exists.

        It is the one that the server names, else that of the model's name. ImportError without transformers; TinkerError when
        the server's tokenizer cannot be reached from this machine.
        """
        return _tokenizers.load(self._sampler.tokenizer().result())

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """``text`` in the tokens of :meth:`get_tokenizer`, with those that it puts around a text unless told otherwise."""
        return _tokenizers.encode(self.get_tokenizer(), text, add_special_tokens)

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of ``tokens`` by :meth:`get_tokenizer`; special tokens are spelled out unless they are to be skipped."""
        return _tokenizers.decode(self.get_tokenizer(), tokens, skip_special_tokens)

    def get_telemetry(self) -> Telemetry | None:
        """As ``ServiceClient.get_telemetry``."""
        return self._sampler.runtime.telemetry

    def on_queue_state_change(self, queue_state: str, queue_state_reason: str | None = None) -> None:
        """Say in the log that samples wait, as this client does by itself, once a minute; see :meth:`observe_queue`."""
        state = str(getattr(queue_state, "value", queue_state))
        report_pause(self._sampler.runtime.transport.observers, "sample", state, queue_state_reason)

    def get_sampler_handle(self) -> str:
        """Text from which any process with a credential of its own makes this sampler again; it holds none itself.

        Blocks until the client exists.
        """
        return to_handle(self._sampler.state())

    @staticmethod
    def from_sampler_handle(handle: str, *, api_key: str | None = None) -> SamplingClient:
        """The sampler of a handle; the credential is ``api_key`` or this process's own. ValueError for no handle."""
        return _restore(from_handle(handle), api_key)

    def __reduce__(self) -> tuple[object, ...]:
        """Samplers pickle, without a credential: the other process uses its own. Blocks until the client exists."""
        return _restore, (self._sampler.state(),)

    def __deepcopy__(self, memo: dict[int, object]) -> SamplingClient:
        return _restore(self._sampler.state())

    # ------------------------------------------------------------------------------------------------- twins of older code

    @awaiting_twin_of(sample)
    async def sample_async(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`sample`, awaited."""
        return await self.sample(*args, **kwargs)

    @awaiting_twin_of(compute_logprobs)
    async def compute_logprobs_async(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`compute_logprobs`, awaited."""
        return await self.compute_logprobs(*args, **kwargs)

    async def get_base_model_async(self) -> str:
        """:meth:`get_base_model` without blocking."""
        return await self._sampler.base_model()


def open_sampling_client(
    runtime: Runtime,
    *,
    base_model: str | None,
    model_path: str | None,
    retry_config: RetryConfig | None,
    record_stability_info: bool,
) -> SamplingClient:
    """A sampling client on a base model or saved weights, by a sampling session of its own."""
    source = StoredModel(base_model=base_model, model_path=model_path)
    policy = sampling_policy(retry_config)
    return SamplingClient(
        Sampler(runtime, "create_sampling_client", source, policy=policy, record_stability_info=record_stability_info)
    )


def _restore(state: SamplerState, api_key: str | None = None) -> SamplingClient:
    """The sampler of a pickle or a handle: the same session and weights, requests of its own."""
    source = SharedSession(sampling_session_id=state.sampling_session_id, base_model=state.base_model)
    runtime = runtime_for(state, api_key)
    return SamplingClient(
        Sampler(runtime, "from_sampler_handle", source, record_stability_info=state.record_stability_info, is_clone=True)
    )
