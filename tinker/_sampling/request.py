"""The options of one sample as one value: their checks, and the body of the request."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any, ClassVar, cast

import msgspec
import msgspec.structs
from tinker_wire import models

from tinker._checks import read_flag, read_integer
from tinker._validate import check_context_length, input_length
from tinker._wire import json
from tinker.types._numpy import np
from tinker.types.model_input import ModelInput, suggest_model_input
from tinker.types.params import SamplingParams
from tinker.types.results import SampleResponse
from tinker.types.tensor_data import TensorData, dimensions


class SampleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of ``SamplingClient.sample`` but for the prompt, by their names there.

    A record of msgspec, as thousands of them are made at once.
    """

    num_samples: int
    sampling_params: SamplingParams
    include_prompt_logprobs: bool = False
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: TensorData | None = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = None

    #: Those that count something, for which 0 stands for nothing.
    COUNTS: ClassVar = ("topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k")

    def __post_init__(self) -> None:
        """Read what is plain data, or a number of numpy or torch. TypeError for what is neither."""
        __tracebackhide__ = True
        params: object = self.sampling_params
        if isinstance(params, Mapping):
            plain = cast("Mapping[str, Any]", params)
            msgspec.structs.force_setattr(self, "sampling_params", SamplingParams(**plain))
        if isinstance(self.num_samples, SamplingParams):
            raise TypeError(
                "num_samples must be an integer, got SamplingParams: "
                "sampling_params comes after num_samples"
            )
        for name in ("num_samples", *self.COUNTS):
            if type(count := getattr(self, name)) is not int:
                msgspec.structs.force_setattr(self, name, read_integer(name, count))
        if type(self.include_prompt_logprobs) is not bool:
            flag = read_flag("include_prompt_logprobs", self.include_prompt_logprobs)
            msgspec.structs.force_setattr(self, "include_prompt_logprobs", flag)
        if self.prompt_logprobs_last_n is not None:
            last = read_integer("prompt_logprobs_last_n", self.prompt_logprobs_last_n)
            msgspec.structs.force_setattr(self, "prompt_logprobs_last_n", last)

    def to_wire(
        self,
        prompt: ModelInput,
        *,
        sampling_session_id: str | None,
        seq_id: int,
        record_stability_info: bool,
    ) -> models.SampleRequest:
        """Return the request's body."""
        targets = self.target_prompt_logprobs
        return models.SampleRequest(
            prompt=json.wire_model_input(prompt),
            sampling_session_id=sampling_session_id,
            seq_id=seq_id,
            record_stability_info=record_stability_info,
            num_samples=self.num_samples,
            sampling_params=_wire_params(self.sampling_params),
            prompt_logprobs=self.include_prompt_logprobs,
            topk_prompt_logprobs=self.topk_prompt_logprobs,
            topk_sample_logprobs=self.topk_sample_logprobs,
            target_prompt_logprobs=None
            if targets is None
            else json.wire_tensor(targets, "target_prompt_logprobs"),
            prompt_alt_tokens_k=self.prompt_alt_tokens_k,
            prompt_logprobs_last_n=self.prompt_logprobs_last_n,
        )

    def find_fault(self, prompt: ModelInput, response: SampleResponse) -> str | None:
        """Return why a response does not answer these options."""
        sequences = response.sequences
        if len(sequences) != self.num_samples:
            return f"{len(sequences)} sequences for num_samples={self.num_samples}"
        first, last = sequences[0], sequences[-1]  # which say whether the server sends any
        has_logprobs = first.logprobs_np is not None or last.logprobs_np is not None
        has_topk = first.topk_logprobs_np is not None or last.topk_logprobs_np is not None
        for index, one in enumerate(sequences):
            count, drawn, topk = len(one.tokens_np), one.logprobs_np, one.topk_logprobs_np
            if has_logprobs and (found := 0 if drawn is None else len(drawn)) != count:
                return f"sequence {index} has {count} tokens and {found} logprobs"
            if has_topk and (found := 0 if topk is None else len(topk.token_ids)) != count:
                return f"sequence {index} has {count} tokens and {found} rows of topk_logprobs"
        asked = (
            self.include_prompt_logprobs,
            self.topk_prompt_logprobs,
            self.target_prompt_logprobs,
            self.prompt_alt_tokens_k,
        )
        return self._find_missing_scores(input_length(prompt), response) if any(asked) else None

    def _find_missing_scores(self, length: int | None, response: SampleResponse) -> str | None:
        """Return which scores of a prompt of this length are missing."""
        drawn, topk = response.prompt_logprobs_np, response.topk_prompt_logprobs_np
        targets, others = response.target_prompt_logprobs, response.prompt_alt_tokens
        # some servers leave the first token out
        starts_late = drawn is not None and len(drawn) > 0 and not np.isnan(drawn[0])
        scores: tuple[tuple[str, object, Sized | None, bool], ...] = (
            ("prompt_logprobs", self.include_prompt_logprobs, drawn, starts_late),
            (
                "topk_prompt_logprobs",
                self.topk_prompt_logprobs,
                None if topk is None else topk.token_ids,
                False,
            ),
            ("target_prompt_logprobs", self.target_prompt_logprobs, targets, True),
            (
                "prompt_alt_tokens",
                self.prompt_alt_tokens_k,
                None if others is None else others.tokens,
                True,
            ),
        )
        for name, asked, rows, is_shorter in scores:
            if asked and rows is None:
                return (
                    f"no {name}, which were asked for; a server that never sends "
                    "them does not support them"
                )
            if (
                asked
                and rows is not None
                and length is not None
                and len(rows) != length - is_shorter
            ):
                return f"{len(rows)} rows of {name} for a prompt of {length} tokens"
        return None


def check_prompt(prompt: ModelInput) -> None:
    """Raise TypeError unless it is a ModelInput; ValueError if it is empty."""
    __tracebackhide__ = True
    if not isinstance(prompt, ModelInput):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"prompt must be a ModelInput, {suggest_model_input(prompt)}")
    if input_length(prompt) == 0:
        raise ValueError("prompt has no tokens")


def check_sample(prompt: ModelInput, options: SampleOptions, longest: int | None) -> None:
    """Raise ValueError or TypeError for arguments of ``sample`` that no server can answer.

    ``longest`` is how many tokens the model takes; None where the server has not said so.
    """
    __tracebackhide__ = True
    if not isinstance(options.sampling_params, SamplingParams):  # pyright: ignore[reportUnnecessaryIsInstance]
        got = type(options.sampling_params).__name__
        raise TypeError(
            "sampling_params must be a SamplingParams, such "
            f"as SamplingParams(max_tokens=64); got {got}"
        )
    if (stop := options.sampling_params.stop) == "" or (isinstance(stop, list) and "" in stop):
        raise ValueError(
            "sampling_params.stop must not contain an empty string, which would "
            "end every sequence at once"
        )
    if options.num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, got {options.num_samples}")
    for name in options.COUNTS:
        if (count := getattr(options, name)) < 0:
            raise ValueError(f"{name} must not be negative, got {count}")
    if options.prompt_logprobs_last_n is not None:
        _check_last_n(options.prompt_logprobs_last_n, options.include_prompt_logprobs)
    if options.target_prompt_logprobs is not None:
        _check_targets(prompt, options.target_prompt_logprobs)
    if longest is not None:
        check_context_length("prompt", prompt, longest)


def _check_last_n(last_n: int, include_prompt_logprobs: bool) -> None:
    if not include_prompt_logprobs:
        raise ValueError("prompt_logprobs_last_n needs include_prompt_logprobs=True")
    if last_n < 1:
        raise ValueError(f"prompt_logprobs_last_n must be at least 1, got {last_n}")


def _check_targets(prompt: ModelInput, targets: TensorData) -> None:
    if not isinstance(targets, TensorData):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"target_prompt_logprobs must be TensorData, got {type(targets).__name__}")
    shape = dimensions(targets)
    if targets.dtype != "int64" or len(shape) != 2:
        raise ValueError(
            "target_prompt_logprobs must be an int64 tensor of shape [len(prompt) - 1, K]"
        )
    length = input_length(prompt)
    if length is not None and shape[0] != length - 1:
        raise ValueError(
            f"target_prompt_logprobs must have {length - 1} rows, one less than "
            f"the prompt, got {shape[0]}"
        )


def _wire_params(params: SamplingParams) -> models.SamplingParams:
    """Return the record of the parameters, with one stop text as a list of one, which every server
    reads.
    """
    record = models.SamplingParams(
        max_tokens=params.max_tokens,
        seed=params.seed,
        stop=[params.stop] if isinstance(params.stop, str) else params.stop,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        json_schema=params.json_schema,
        priority=params.priority,
    )
    if params.extra is None:
        return record
    # Extra parameters stand beside the others, so what is sent is a mapping in the place of the
    # record.
    return cast("models.SamplingParams", {**msgspec.to_builtins(record), **params.extra})
