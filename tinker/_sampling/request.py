"""What is asked of one sample: the options as one value, from the call to the wire."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec
import msgspec.structs
from tinker_wire import models

from tinker._checks import read_flag, read_integer
from tinker._wire import json
from tinker.types.model_input import ModelInput
from tinker.types.params import SamplingParams
from tinker.types.tensor_data import TensorData
from tinker_records import RecordType

if TYPE_CHECKING:
    from typing import Self


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
        for name in ("num_samples", *self.COUNTS):
            if type(count := getattr(self, name)) is not int:
                msgspec.structs.force_setattr(self, name, read_integer(name, count))
        if type(self.include_prompt_logprobs) is not bool:
            flag = read_flag("include_prompt_logprobs", self.include_prompt_logprobs)
            msgspec.structs.force_setattr(self, "include_prompt_logprobs", flag)
        if self.prompt_logprobs_last_n is not None:
            last = read_integer("prompt_logprobs_last_n", self.prompt_logprobs_last_n)
            msgspec.structs.force_setattr(self, "prompt_logprobs_last_n", last)

    @classmethod
    def from_arguments(cls, arguments: dict[str, Any]) -> Self:
        """Take the options from the ``locals()`` of a method that has arguments of these names, and ``self`` and ``prompt``."""
        del arguments["self"], arguments["prompt"]
        return cls(**arguments)

    def to_wire(
        self, prompt: ModelInput, *, sampling_session_id: str | None, seq_id: int, record_stability_info: bool
    ) -> models.SampleRequest:
        """Return the request's body."""
        targets = self.target_prompt_logprobs
        return models.SampleRequest(
            prompt=json.wire_model_input(prompt),
            sampling_session_id=sampling_session_id,
            seq_id=seq_id,
            record_stability_info=record_stability_info,
            num_samples=self.num_samples,
            sampling_params=_readable(self.sampling_params),
            prompt_logprobs=self.include_prompt_logprobs,
            topk_prompt_logprobs=self.topk_prompt_logprobs,
            topk_sample_logprobs=self.topk_sample_logprobs,
            target_prompt_logprobs=None if targets is None else json.wire_tensor(targets, "target_prompt_logprobs"),
            prompt_alt_tokens_k=self.prompt_alt_tokens_k,
            prompt_logprobs_last_n=self.prompt_logprobs_last_n,
        )


def _readable(params: SamplingParams) -> models.SamplingParams:
    """Send one stop text as a list of one, which every server reads, and the extra parameters beside the others."""
    if isinstance(params.stop, str):
        params = msgspec.structs.replace(params, stop=[params.stop])
    return params if params.extra is None else _with_extra(params, params.extra)


def _with_extra(params: SamplingParams, extra: dict[str, Any]) -> models.SamplingParams:
    """Return the parameters as a record that has a field for each extra one, too."""
    known = {name: getattr(params, name) for name in models.SamplingParams.__struct_fields__}
    return _class_with(tuple(extra))(**known, **{f"extra_{index}": value for index, value in enumerate(extra.values())})


@lru_cache(maxsize=64)
def _class_with(names: tuple[str, ...]) -> type[models.SamplingParams]:
    base = models.SamplingParams
    fields = {"__module__": __name__, "__annotations__": {f"extra_{index}": Any for index in range(len(names))}}
    renamed = {f"extra_{index}": name for index, name in enumerate(names)}
    kind: Any = RecordType("SamplingParamsWithExtra", (base,), fields, frozen=True, kw_only=True, rename=renamed)
    return cast("type[models.SamplingParams]", kind)
