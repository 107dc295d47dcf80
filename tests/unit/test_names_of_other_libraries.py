"""Parameters of other libraries' sampling, ignored with one warning, as officially in silence."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable
from typing import Any

import pydantic
import pytest
from support.cases import for_each

from tinker.types import AdamParams, DimuonParams, LoraConfig, SamplingParams
from tinker.types import params as module

ADVICE = {
    "best_of": "pass num_samples to sample()",
    "do_sample": "did you mean 'temperature'?",
    "ignore_eos": "SamplingParams(extra={'ignore_eos': ...})",
    "include_stop_str_in_output": "the stop that ends a sequence is part of its tokens",
    "logit_bias": "single tokens cannot be made more or less likely",
    "logprobs": "every sampled sequence has its logprobs",
    "max_completion_tokens": "did you mean 'max_tokens'?",
    "max_length": "did you mean 'max_tokens'?",
    "max_new_tokens": "did you mean 'max_tokens'?",
    "min_tokens": "answers have no minimum length",
    "n": "pass num_samples to sample()",
    "prompt_logprobs": "pass include_prompt_logprobs to sample()",
    "repeat_penalty": "did you mean 'repetition_penalty'?",
    "return_logprobs": "every sampled sequence has its logprobs",
    "skip_special_tokens": "pass it to decode()",
    "stop_sequences": "did you mean 'stop'?",
    "stop_strings": "did you mean 'stop'?",
    "stop_token_ids": "did you mean 'stop'?",
    "top_a": "there are top_k, top_p and min_p",
    "top_logprobs": "pass topk_sample_logprobs to sample()",
}
PLAIN = SamplingParams(max_tokens=4)


WITH_FIELD: Any = pydantic.create_model("Settings", sampling=(SamplingParams, ...))
FORMS: dict[str, Callable[[dict[str, Any]], SamplingParams]] = {
    "the constructor": lambda values: SamplingParams(**values),
    "model_validate": SamplingParams.model_validate,
    "model_validate_json": lambda values: SamplingParams.model_validate_json(json.dumps(values)),
    "parse_obj": SamplingParams.parse_obj,
    "parse_raw": lambda values: SamplingParams.parse_raw(json.dumps(values)),
    "model_copy": lambda values: PLAIN.model_copy(update=values),
    "dataclasses.replace": lambda values: dataclasses.replace(PLAIN, **values),
    "a field": lambda values: WITH_FIELD(sampling=values).sampling,
    "TypeAdapter": pydantic.TypeAdapter(SamplingParams).validate_python,
}


@for_each("name", ADVICE)
@for_each("form", FORMS)
def test_a_name_of_another_library_has_no_effect(form: str, name: str) -> None:
    """It is left out, and a warning says what to do instead, however the value is made."""
    module._warn_once.cache_clear()
    with pytest.warns(UserWarning, match=f"^SamplingParams ignores {name!r}; ") as caught:
        assert FORMS[form]({"max_tokens": 4, name: 1}) == PLAIN
    (warning,) = caught
    assert str(warning.message).endswith(ADVICE[name])


@for_each("form", FORMS)
def test_a_misspelled_name_is_refused_in_every_form(form: str) -> None:
    """A name that is nearly a real one is an error that suggests it."""
    for wrong, meant in (
        ("max_token", "max_tokens"),
        ("temprature", "temperature"),
        ("Top_P", "top_p"),
        ("repetition_penality", ""),
    ):
        with pytest.raises((TypeError, ValueError), match=f"did you mean '{meant}"):
            FORMS[form]({wrong: 1})


def test_each_name_is_warned_about_once() -> None:
    """Each name has one warning in a process, whatever the filters are."""
    module._warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            SamplingParams(stop_token_ids=[1], n=2)  # type: ignore[call-arg]
            SamplingParams.model_validate({"n": 3})
    assert sorted(str(one.message).split("'")[1] for one in caught) == ["n", "stop_token_ids"]
    assert {one.filename for one in caught} == {__file__}


@for_each(
    "kind, given",
    [(AdamParams, {}), (DimuonParams, {"learning_rate": 0.1}), (LoraConfig, {"rank": 8})],
)
def test_other_parameters_refuse_unknown_names(kind: Any, given: dict[str, Any]) -> None:
    """Parameters of training refuse every name that they do not have."""
    unknown = {"stop_token_ids": 1}
    for make in (
        lambda: kind(**given, **unknown),
        lambda: kind(**given).model_copy(update=unknown),
    ):
        with pytest.raises(TypeError, match=f"{kind.__name__} has no 'stop_token_ids'"):
            make()
    with pytest.raises(ValueError, match=f"{kind.__name__} has no 'stop_token_ids'"):
        kind.model_validate({**given, **unknown})
