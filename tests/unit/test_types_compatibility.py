"""Types as dataclasses, in pydantic models and pickles, with numpy values, and refused ones."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import itertools
import math
import pickle
import sys
from typing import Any

import numpy as np
import pydantic
import pydantic.fields
import pytest
from support.cases import for_each

import tinker
from tinker import types

PROMPT = types.ModelInput.from_ints([1, 2, 3])
SEQUENCE = types.SampledSequence(
    stop_reason="stop", sequence_id="q", tokens=[1, 2], logprobs=[-0.5, -0.25]
)
RESPONSE = types.SampleResponse(
    sequences=[SEQUENCE], prompt_logprobs_np=np.asarray([np.nan, -1.5], np.float32)
)
VALUES: list[Any] = [
    PROMPT,
    PROMPT.chunks[0],
    types.ImageChunk(data=b"abc", format="png", expected_tokens=2),
    types.TensorData([1.0, 2.0], "float32", [2]),
    types.Datum(model_input=PROMPT, loss_fn_inputs={"target_tokens": np.array([2, 3, 4])}),
    types.AdamParams(learning_rate=0.5),
    types.DimuonParams(learning_rate=0.5),
    types.SamplingParams(max_tokens=3, stop=["a"]),
    types.LoraConfig(rank=8),
    types.OptimStepRequest(optim_params=types.AdamParams(), model_id="m", seq_id=1),
    SEQUENCE,
    RESPONSE,
    types.ForwardBackwardOutput(
        "x", [{"logprobs": types.TensorData([-1.0], "float32")}], {"loss:sum": 1.0}
    ),
    types.GetInfoResponse(model_id="m", model_data=types.ModelData(model_name="n")),
    types.Cursor(offset=0, limit=1, total_count=2),
]


@for_each("value", VALUES)
def test_values_are_dataclasses_to_dataclasses(value: Any) -> None:
    """Fields of a value can be listed and read as a dictionary, and replaced in a copy."""
    assert dataclasses.is_dataclass(value)
    names = [field.name for field in dataclasses.fields(value)]
    assert list(dataclasses.asdict(value)) == names
    given = {
        field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init
    }
    same = dataclasses.replace(value, **given)
    assert type(same) is type(value)
    assert same.model_dump() == value.model_dump()


@for_each("value", VALUES)
def test_fields_in_the_words_of_pydantic(value: Any) -> None:
    """`model_fields` has pydantic's descriptions, with types and the constructor's defaults."""
    described, fields = type(value).model_fields, dataclasses.fields(value)
    assert list(described) == [field.name for field in fields]
    for field in fields:
        info = described[field.name]
        assert isinstance(info, pydantic.fields.FieldInfo)
        assert not isinstance(info.annotation, str)
        assert info.annotation == field.type
        made = (
            dataclasses.MISSING
            if info.is_required()
            else info.get_default(call_default_factory=True)
        )
        assert made == (
            field.default
            if field.default_factory is dataclasses.MISSING
            else field.default_factory()
        )


@for_each("value", VALUES)
def test_what_is_not_as_in_pydantic_is_not_there(value: Any) -> None:
    """What values do not have of pydantic's models is missing, so that `hasattr` tells."""
    for name in (
        "model_config",
        "model_construct",
        "model_fields_set",
        "model_json_schema",
        "model_rebuild",
        "model_extra",
    ):
        assert not hasattr(value, name)
        assert not hasattr(type(value), name)


def test_there_are_no_fields_of_pydantic_without_pydantic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pydantic there is no `model_fields`, and the error says what to install."""
    monkeypatch.setitem(sys.modules, "pydantic.fields", None)
    assert not hasattr(types.ModelInput, "model_fields")
    with pytest.raises(AttributeError, match="pip install pydantic"):
        types.ModelInput.model_fields  # noqa: B018  # asking is what fails
    assert dataclasses.is_dataclass(types.ModelInput)


@for_each("value", VALUES)
def test_values_in_pydantic_models(value: Any) -> None:
    """A pydantic model may have such a field, which is kept, written, and read back."""
    model = pydantic.create_model("Record", value=(type(value), ...))
    record: Any = model(value=value)
    assert record.value is value
    read: Any = model.model_validate_json(record.model_dump_json())
    assert read.value.model_dump(mode="json") == value.model_dump(mode="json")


@for_each("value, mode", itertools.product(VALUES, ["validation", "serialization"]))
def test_documents_of_web_frameworks_describe_values(value: Any, mode: Any) -> None:
    """The schema of a pydantic model with such a field names the fields of the value."""
    schema = pydantic.create_model("Record", value=(type(value), ...)).model_json_schema(mode=mode)
    described = schema["properties"]["value"]
    assert (described["type"], described["title"]) == ("object", type(value).__name__)
    assert list(described["properties"]) == [field.name for field in dataclasses.fields(value)]


@for_each("value", VALUES)
def test_pickles_name_the_public_package(value: Any) -> None:
    """A pickle names `tinker`, not the internal package; a deep copy is equal, too."""
    data = pickle.dumps(value)
    assert b"tinker_wire" not in data
    assert pickle.loads(data).model_dump() == value.model_dump()
    assert copy.deepcopy(value).model_dump() == value.model_dump()


@for_each("value", VALUES)
def test_values_do_not_change(value: Any) -> None:
    """A field cannot be set to any value."""
    for field in dataclasses.fields(value):
        with pytest.raises(AttributeError):
            setattr(value, field.name, None)


def test_numbers_of_numpy_become_plain() -> None:
    """Parameters accept numpy numbers and text, and hold plain numbers."""
    adam = types.AdamParams(learning_rate=np.float32(0.5), beta1=np.float64(0.25), eps="1e-8")  # type: ignore[arg-type]
    assert adam == types.AdamParams(learning_rate=0.5, beta1=0.25, eps=1e-8)
    assert {type(value) for value in adam.model_dump().values()} == {float}
    params = types.SamplingParams(max_tokens=np.int64(5), temperature=0, stop=np.array([7, 8]))  # type: ignore[arg-type]
    assert (
        params.model_dump_json()
        == '{"max_tokens":5,"seed":null,"stop":[7,8],"temperature":0.0,"top_k":-1,"top_p":1.0}'
    )
    assert types.LoraConfig(rank="16").rank == 16  # type: ignore[arg-type]
    assert types.SamplingParams(stop=("a", "b")).stop == ["a", "b"]


def test_plain_data_instead_of_values() -> None:
    """Chunks and inputs may be given as the plain data that `model_dump` returns."""
    plain = PROMPT.model_dump()
    assert types.ModelInput(chunks=[*plain["chunks"], PROMPT.chunks[0]]).to_ints() == [
        1,
        2,
        3,
        1,
        2,
        3,
    ]
    assert PROMPT.append(plain["chunks"][0]).length == 6
    assert types.Datum(model_input=plain).model_input == PROMPT  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: types.AdamParams(learning_rate="fast"), "AdamParams.learning_rate"),
        (lambda: types.AdamParams(beta1=None), "AdamParams.beta1"),
        (lambda: types.LoraConfig(rank=1.5), "LoraConfig.rank"),
        (lambda: types.SamplingParams(max_tokens=5.5), "SamplingParams.max_tokens"),
        (lambda: types.SamplingParams(stop=[1, "a"]), "SamplingParams.stop"),
        (
            lambda: types.SamplingParams(stop=7),
            "SamplingParams.stop: expected a string, a list of strings or a list of token ids",
        ),
        (lambda: types.DimuonParams(learning_rate=-1), "DimuonParams.learning_rate"),
        (lambda: types.DimuonParams(learning_rate=math.inf), "must be finite"),
        (lambda: types.DimuonParams(learning_rate=1, beta1=1), "DimuonParams.beta1"),
        (lambda: types.OptimStepRequest(model_id="m"), "one set of optimizer parameters"),
    ],
)
def test_invalid_numbers_are_refused(make: Any, message: str) -> None:
    """An invalid parameter is a ValueError that names it, before any request."""
    with pytest.raises(ValueError, match=message):
        make()


def test_optimizer_parameters_have_three_names() -> None:
    """The parameters of a step have three names, and are written under that of their kind."""
    adam, dimuon = types.AdamParams(), types.DimuonParams(learning_rate=0.1)
    for name in ("optim_params", "adam_params", "optimizer_params"):
        assert types.OptimStepRequest(model_id="m", **{name: adam}).optim_params == adam  # type: ignore[arg-type]
    assert "adam_params" in types.OptimStepRequest(model_id="m", optim_params=adam).model_dump()
    plain = types.OptimStepRequest(model_id="m", optim_params=dimuon).model_dump()
    assert plain["optimizer_params"]["type"] == "dimuon"
    assert types.OptimStepRequest.model_validate(plain).optim_params == dimuon
    read = types.OptimStepRequest.model_validate(plain)
    assert (read.adam_params, read.optimizer_params) == (None, dimuon)
    read = types.OptimStepRequest(model_id="m", optim_params=adam)
    assert (read.adam_params, read.optimizer_params) == (adam, None)


def test_secrets_are_not_printed() -> None:
    """Records with tokens or signed addresses hide them in their repr."""
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    secret = "https://storage/file?signature=secret"
    records: list[Any] = [
        types.AuthTokenResponse(jwt=secret),
        types.ExternalWeightsUrlsResponse(urls={"a": secret}, expires=now),
        types.CheckpointArchiveUrlResponse(url=secret, expires=now),
        types.LoadWeightsRequest(
            path="tinker://r/weights/1", optimizer=False, weights_access_token=secret
        ),
        types.CopyWeightsRequest(source_path="tinker://r/weights/1", weights_access_token=secret),
    ]
    for record in records:
        assert "secret" not in repr(record) + str(record)
        assert "secret" in record.model_dump_json()


def test_sequences_are_compared_by_value() -> None:
    """Samples are equal if their values are, NaN to itself too; hashes agree."""
    same = types.SampledSequence(
        stop_reason="stop", sequence_id="q", tokens=[1, 2], logprobs=[-0.5, -0.25]
    )
    other = types.SampledSequence(
        stop_reason="stop", sequence_id="q", tokens=[1, 3], logprobs=[-0.5, -0.25]
    )
    assert same == SEQUENCE
    assert hash(SEQUENCE) == hash(same)
    assert other != SEQUENCE
    assert (
        types.SampleResponse(
            sequences=[same], prompt_logprobs_np=np.asarray([np.nan, -1.5], np.float32)
        )
        == RESPONSE
    )
    assert types.SampleResponse(sequences=[same]) != RESPONSE


def test_responses_made_of_lists_are_compared_and_shown_alike() -> None:
    """A response made with lists equals the one made with arrays, and shows no private field."""
    rows: list[Any] = [[(1, -0.5), (2, -1.0)], None]
    arrays: dict[str, Any] = {
        "prompt_logprobs_np": np.asarray([np.nan, -1.5], np.float32),
        "topk_prompt_logprobs_np": types.TopkLogprobs.from_rows(rows),
    }
    given = types.SampleResponse(
        [], _prompt_logprobs_list=[None, -1.5], _topk_prompt_logprobs_list=rows
    )
    assert (given.prompt_logprobs, given.topk_prompt_logprobs) == ([None, -1.5], rows)
    assert given == types.SampleResponse([], **arrays)
    assert repr(given) == repr(types.SampleResponse([], **arrays))


def test_errors_name_the_package_and_their_status() -> None:
    """Tracebacks show `tinker.NotFoundError`, and the classes know their status."""
    assert tinker.NotFoundError.__module__ == "tinker"
    assert (tinker.NotFoundError.status_code, tinker.RateLimitError.status_code) == (404, 429)
    assert issubclass(tinker.ClientClosedError, RuntimeError)


@for_each("value", VALUES)
def test_the_older_names_of_methods(value: Any) -> None:
    """The older names of methods do the same as the newer ones."""
    assert value.dict() == value.model_dump()
    assert value.dict(exclude_none=True) == value.model_dump(exclude_none=True)
    assert value.json(indent=2) == value.model_dump_json(indent=2)
    assert value.copy().model_dump() == value.copy(deep=True).model_dump() == value.model_dump()
    kind = type(value)
    assert (
        kind.parse_obj(value.dict()).model_dump()
        == kind.model_validate(value.model_dump()).model_dump()
    )
    assert (
        kind.parse_raw(value.json()).model_dump()
        == kind.model_validate_json(value.model_dump_json()).model_dump()
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: types.SamplingParams(max_token=3),
            r"SamplingParams has no 'max_token'; did you mean 'max_tokens'\?",
        ),  # type: ignore[call-arg]
        (
            lambda: types.AdamParams(lr=0.1),
            "AdamParams has no 'lr'; did you mean 'learning_rate'?",
        ),  # type: ignore[call-arg]
        (lambda: types.LoraConfig(ranks=3), r"LoraConfig has no 'ranks'; did you mean 'rank'\?$"),  # type: ignore[call-arg]
        (
            lambda: types.SamplingParams(extra=[("a", 1)]),
            "extra must be a mapping of names to values, got list",
        ),  # type: ignore[arg-type]
        (lambda: types.SamplingParams(extra={1: 2}), "extra: a name must be a string, got 1"),  # type: ignore[dict-item]
    ],
)
def test_a_misspelt_parameter_gets_a_suggestion(make: Any, words: str) -> None:
    """The TypeError names the class and the argument, and suggests a name."""
    with pytest.raises(TypeError, match=words):
        make()


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (
            {"top_p": 0.5},
            r"extra must not contain 'top_p', which is an argument: SamplingParams\(top_p=...\)",
        ),
        ({"bias": {"a": object()}}, r"extra\['bias'\] cannot be sent as JSON"),
        ({"bias": math.nan}, r"extra\['bias'\] cannot be sent as JSON"),
    ],
)
def test_extra_parameters_that_cannot_be_sent(extra: dict[str, Any], words: str) -> None:
    """Extra parameters that cannot be sent are refused when they are given."""
    with pytest.raises(ValueError, match=words):
        types.SamplingParams(extra=extra)


def test_extra_parameters_are_part_of_the_value() -> None:
    """They are dumped, copied, pickled and compared; without any, they do not appear."""
    given = {"typical_p": 0.1}
    params = types.SamplingParams(max_tokens=3, extra=given)
    given["typical_p"] = 0.2
    assert params.extra == {"typical_p": 0.1}
    for same in (
        pickle.loads(pickle.dumps(params)),
        copy.deepcopy(params),
        types.SamplingParams.model_validate(params.model_dump()),
    ):
        assert same == params != types.SamplingParams(max_tokens=3)
    assert types.SamplingParams(extra={"min_p": 0.1}) == types.SamplingParams(min_p=0.1)
    assert "extra" not in types.SamplingParams().model_dump()
    assert "extra" not in repr(types.SamplingParams())


@pytest.mark.parametrize(
    ("logprobs", "shown"),
    [
        (None, "None"),
        ([], "[]"),
        ([-0.5], "[-0.5]"),
        ([-2.0812345] * 16, "[-2.081, ... 16 values]"),
    ],
)
def test_a_sequence_shows_that_it_has_logprobs(logprobs: list[float] | None, shown: str) -> None:
    """The repr of a sequence shows whether there are log-probabilities, and how many."""
    count = len(logprobs or ())
    sequence = types.SampledSequence(
        stop_reason="stop", sequence_id="q", tokens=[1] * count, logprobs=logprobs
    )
    assert repr(sequence).endswith(f", logprobs={shown})")
