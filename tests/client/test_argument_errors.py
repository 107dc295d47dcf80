"""Invalid arguments: the error message, and the user's line that it is raised on."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import re
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest

import tinker
from tinker.futures import APIFuture, immediate

PROMPT = tinker.ModelInput.from_ints([1, 2])
PARAMS = tinker.SamplingParams(max_tokens=2)
DATUM = tinker.Datum(PROMPT, {"target_tokens": [2, 3]})
MakeDatum = Callable[..., tinker.Datum]


@pytest.fixture
def sampler(service: tinker.ServiceClient) -> tinker.SamplingClient:
    """Return a sampler of the toy model."""
    return service.create_sampling_client(base_model="tinker/toy")


# Arguments in the wrong place


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((PROMPT, PARAMS, 1), "num_samples must be an integer, got SamplingParams"),
        ((1, PROMPT, PARAMS), "prompt must be a ModelInput, got int"),
        (
            (PROMPT, 1, 2),
            r"must be a SamplingParams, such as SamplingParams\(max_tokens=64\); got int",
        ),
        (
            (PROMPT, 1, {"max_token": 2}),
            r"SamplingParams has no 'max_token'; did you mean 'max_tokens'\?",
        ),
        ((PROMPT, "one", PARAMS), "num_samples must be an integer, got str"),
        ((PROMPT, 1.5, PARAMS), "num_samples must be an integer, got float"),
        ((PROMPT, True, PARAMS), "num_samples must be an integer, got bool"),
        ((PROMPT, 1, PARAMS, True, 2.5), "topk_prompt_logprobs must be an integer, got float"),
        (
            (PROMPT, 1, PARAMS, True, 0, 0, None, 0, "two"),
            "prompt_logprobs_last_n must be an integer, got str",
        ),
    ],
)
def test_arguments_of_sample(
    sampler: tinker.SamplingClient, wire: Any, arguments: Any, message: str
) -> None:
    """Arguments of the wrong type raise an error from the call that names them, and nothing is
    sent.
    """
    with pytest.raises(TypeError, match=message):
        sampler.sample(*arguments)
    assert wire.requests("asample") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cross_entropy", [DATUM]), "data must be a list of Datum, got str"),
        ((DATUM, "cross_entropy"), r"data must be a list of Datum, got one Datum: write \[datum\]"),
        ((None, "cross_entropy"), "data must be a list of Datum, got NoneType"),
        (
            ("cross_entropy", [DATUM]),
            "data must be a list of Datum, got str: are data and loss_fn swapped[?]",
        ),
        (
            ([DATUM], len),
            "loss_fn must be the name of a loss, got builtin.*; for your own function, use ",
        ),
        (([DATUM], None), "loss_fn must be the name of a loss, got NoneType$"),
        (
            ([PROMPT], "cross_entropy"),
            (
                r"data\[0\] must be a Datum, got ModelInput: make one with "
                r"tinker.data.from_tokens, or Datum\("
            ),
        ),
    ],
)
def test_arguments_of_losses(
    training: tinker.TrainingClient, wire: Any, arguments: Any, message: str
) -> None:
    """Arguments of the wrong type or order raise a readable error from the call, and nothing is
    sent.
    """
    for call in (training.forward_backward, training.forward):
        with pytest.raises(TypeError, match=message):
            call(*arguments)
    assert wire.requests("forward_backward") == []


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: tinker.Datum({"weights": [1]}, PROMPT),
            TypeError,
            "loss_fn_inputs must be a mapping .*, got ModelInput",
        ),  # type: ignore[arg-type]
        (
            lambda: tinker.Datum(PROMPT, {"weights": ["1", "2"]}),
            ValueError,
            r"\['weights'\] must be numbers, got text",
        ),  # type: ignore[dict-item]
        (
            lambda: tinker.ModelInput.from_ints("hello"),
            ValueError,
            r"got str: use tokenizer.encode\(text\)",
        ),  # type: ignore[arg-type]
        (
            lambda: tinker.Datum(PROMPT, {"weights": [None, 2.0]}),
            ValueError,
            r"\['weights'\] must be numbers, got None at position 0$",
        ),  # type: ignore[dict-item]
        (
            lambda: tinker.Datum([1, 2], {}),
            TypeError,
            r"must be a ModelInput, got list: use ModelInput.from_ints\(tokens\)",
        ),  # type: ignore[arg-type]
        (
            lambda: tinker.Datum("hi", {}),
            TypeError,
            "Datum.model_input must be a ModelInput, got str",
        ),  # type: ignore[arg-type]
        (
            lambda: tinker.ModelInput.from_ints([1, -2]),
            ValueError,
            "token ids must not be negative, got -2 at position 1",
        ),
        (
            lambda: tinker.ModelInput.from_ints(["1", "h"]),
            ValueError,
            "tokens must be integers, got 'h' at position 1",
        ),  # type: ignore[list-item]
        (
            lambda: tinker.ModelInput.from_ints([1, None]),
            ValueError,
            "tokens must be integers, got None at position 1",
        ),  # type: ignore[list-item]
        (
            lambda: tinker.ModelInput.from_ints([1.0, 2.5]),
            ValueError,
            "tokens must be integers, got 2.5 at position 1",
        ),  # type: ignore[list-item]
        (
            lambda: tinker.ModelInput.from_ints([np.inf]),
            ValueError,
            "tokens must be integers, got inf at position 0",
        ),
        (lambda: tinker.ModelInput.from_ints([1, 2**70]), ValueError, "tokens must fit in 32 bits"),
        (
            lambda: tinker.ModelInput.from_ints(None),
            ValueError,
            "tokens must be a list of token ids, got NoneType",
        ),  # type: ignore[arg-type]
        (
            lambda: tinker.ModelInput.from_ints({"input_ids": [1]}),
            ValueError,
            "got dict: take its .'input_ids'.",
        ),
        (
            lambda: tinker.ModelInput.from_ints([[1], [2, 3]]),
            ValueError,
            "got lists of different lengths",
        ),  # type: ignore[list-item]
        (
            lambda: tinker.ServiceClient("local://"),
            TypeError,
            "user_metadata must be a mapping .*, got str; .* base_url",
        ),  # type: ignore[arg-type]
    ],
)
def test_values_of_the_wrong_kind(
    make: Callable[[], object], error: type[Exception], message: str
) -> None:
    """A value that is not a datum, tokens or metadata is refused where it is created, and the
    message says what to write.
    """
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("client", "name", "advice"),
    [
        ("service", "sample", r"use create_sampling_client\(base_model=...\).sample\(...\)"),
        ("service", "list_checkpoints", r"use create_rest_client\(\), which has this method"),
        ("training", "sample", r"use save_weights_and_get_sampling_client\(\).sample\(...\)"),
        ("training", "step", r"use optim_step\(AdamParams\(learning_rate=...\)\)"),
        ("sampler", "generate", r"use sample\(prompt, num_samples, sampling_params\)"),
        ("sampler", "nothing", "'SamplingClient' object has no attribute 'nothing'$"),
    ],
)
def test_methods_of_another_client(
    request: pytest.FixtureRequest, client: str, name: str, advice: str
) -> None:
    """Calling a method by the name used in another client or library raises an error that names the
    method to use.
    """
    with pytest.raises(AttributeError, match=advice):
        getattr(request.getfixturevalue(client), name)


@pytest.mark.parametrize("path", ["/home/adapter", "./adapter", "~/adapter"])
def test_folders_in_the_place_of_checkpoints(
    training: tinker.TrainingClient, wire: Any, path: str
) -> None:
    """Passing a folder as a checkpoint raises an error that names the upload function, and nothing
    is sent.
    """
    with pytest.raises(
        ValueError, match=r"to use an adapter in a folder, upload it with tinker.checkpoints.upload"
    ):
        training.load_state(path)
    assert wire.requests("load_weights") == []


def test_arguments_of_scores(sampler: tinker.SamplingClient, wire: Any) -> None:
    """A value that is not a prompt is refused on the line that asks for its log-probabilities."""
    with pytest.raises(
        TypeError,
        match=r"prompt must be a ModelInput, got list: use ModelInput.from_ints\(tokens\)",
    ):
        sampler.compute_logprobs([1, 2])  # type: ignore[arg-type]
    assert wire.requests("asample") == []


@pytest.mark.parametrize("load", ["load_state", "load_state_with_optimizer"])
def test_paths_of_states(training: tinker.TrainingClient, wire: Any, load: str) -> None:
    """A path without a scheme is refused on the line of the call, and nothing is sent."""
    with pytest.raises(ValueError, match="my-checkpoint"):
        getattr(training, load)("my-checkpoint")
    assert wire.requests("load_weights") == []


def test_integers_of_numpy(sampler: tinker.SamplingClient) -> None:
    """A numpy integer is accepted as an integer."""
    assert len(sampler.sample(PROMPT, np.int64(2), PARAMS).result(10).sequences) == 2  # type: ignore[arg-type]


# Timeouts of the wrong type


@pytest.mark.parametrize("timeout", ["3", [1], {"seconds": 3}, 3j])
@pytest.mark.parametrize("ask", ["result", "exception", "result_async"])
def test_timeouts(timeout: Any, ask: str) -> None:
    """A timeout that is not a number raises an error from the call that names it, whether or not
    the result has arrived.
    """
    for future in (immediate(1), APIFuture[int]("sample")):
        with pytest.raises(TypeError, match="timeout must be a number of seconds or None, got"):
            asyncio.run(asked(future, ask, timeout))


async def asked(future: APIFuture[int], ask: str, timeout: Any) -> object:
    """Return the result of the future, by the blocking or the async method."""
    answer = getattr(future, ask)(timeout)
    return await answer if inspect.isawaitable(answer) else answer


def test_timeouts_of_clients(training: tinker.TrainingClient) -> None:
    """A client raises the same error for an invalid timeout."""
    with pytest.raises(TypeError, match="timeout must be a number"):
        training.result("3")  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [None, 3, 0.5, np.float32(3), np.int64(3)])
def test_real_numbers_are_timeouts(timeout: Any) -> None:
    """Every real number is a valid timeout, and None means no timeout."""
    assert immediate(1).result(timeout) == 1
    assert immediate(1).exception(timeout) is None
    assert asyncio.run(immediate(1).result_async(timeout)) == 1


# Results that were not waited for


def test_attributes_of_results(training: tinker.TrainingClient, datum: MakeDatum) -> None:
    """Accessing an attribute that only the result has raises an error that says how to get the
    result.
    """
    future: Any = training.forward_backward([datum()], "cross_entropy")
    with pytest.raises(AttributeError) as caught:
        _ = future.loss
    assert "'APIFuture' object has no attribute 'loss'" in str(caught.value)
    assert "forward_backward" in str(caught.value)
    assert ".result()" in str(caught.value)
    assert "await" in str(caught.value)
    assert future.result(10).loss > 0


def test_attributes_that_are_looked_for() -> None:
    """`hasattr` and `getattr` with a default work; private names and clients have Python's usual
    message.
    """
    future: Any = immediate(1)
    assert not hasattr(future, "loss")
    assert getattr(future, "loss", 2) == 2
    with pytest.raises(AttributeError) as caught:
        _ = future._anything
    assert "await" not in str(caught.value)


def test_attributes_of_clients(training: Any) -> None:
    """A missing attribute of a client raises an error that does not mention a result."""
    with pytest.raises(AttributeError) as caught:
        _ = training.forward_backwards
    assert "'TrainingClient' object has no attribute 'forward_backwards'" in str(caught.value)
    assert "await" not in str(caught.value)


# Subclasses


@pytest.mark.parametrize(
    "client",
    [
        tinker.ServiceClient,
        tinker.TrainingClient,
        tinker.SamplingClient,
        tinker.RestClient,
        tinker.AdminClient,
    ],
)
def test_subclasses_without_init(client: type) -> None:
    """A subclass that does not call the constructor has a repr, as debuggers and failing tests need
    one.
    """

    class StandIn(client):
        def __init__(self) -> None:
            pass

    assert client.__name__ in repr(StandIn()) or "StandIn" in repr(StandIn())
    assert StandIn()._repr_html_().startswith("<table>")


def test_futures_without_init() -> None:
    """A future whose constructor was not called raises the usual errors for missing attributes."""

    class StandIn(APIFuture[int]):
        def __init__(self) -> None:
            pass

    with pytest.raises(AttributeError, match="operation"):
        _ = StandIn().operation


# Misspelled names


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: tinker.AdamParams(learning_rte=1),
            "AdamParams has no 'learning_rte'; did you mean 'learning_rate'?",
        ),
        (
            lambda: tinker.Datum(model_inputs=PROMPT),
            "Datum has no 'model_inputs'; did you mean 'model_input'?",
        ),
        (
            lambda: tinker.TensorData([1], dtyp="int64"),
            "TensorData has no 'dtyp'; did you mean 'dtype'?",
        ),
        (
            lambda: tinker.types.EncodedTextChunk(token=[1]),
            "EncodedTextChunk has no 'token'; did you mean 'tokens'?",
        ),
        (
            lambda: tinker.types.ImageChunk(data=b"x", formt="png"),
            "ImageChunk has no 'formt'; did you mean 'format'?",
        ),
        (
            lambda: tinker.ModelInput(xyz=[]),
            (
                "ModelInput has no 'xyz'; it has chunks; for token ids use "
                "ModelInput.from_ints(tokens)"
            ),
        ),
        (lambda: tinker.types.LoraConfig(rnk=1), "LoraConfig has no 'rnk'; did you mean 'rank'?"),
    ],
)
def test_misspelled_fields(make: Callable[[], object], message: str) -> None:
    """The constructor of a public type refuses an unknown field and suggests the intended one."""
    with pytest.raises(TypeError) as caught:
        make()
    assert str(caught.value) == message


def test_other_constructor_errors_are_unchanged() -> None:
    """Only unknown names get a suggestion; signatures are those of the constructors."""
    with pytest.raises(TypeError, match="needs a dtype: 'float32' or 'int64'"):
        tinker.TensorData([1])
    with pytest.raises(TypeError, match="missing 1 required"):
        tinker.Datum()  # type: ignore[call-arg]
    assert list(inspect.signature(tinker.TensorData).parameters)[:2] == ["data", "dtype"]
    assert "model_input" in inspect.signature(tinker.Datum).parameters


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            {"target_tokens": [1, 2], "weight": [1.0, 1.0]},
            "did you mean 'weights' instead of 'weight'?",
        ),
        (
            {"target_token": [1, 2]},
            "needs; did you mean 'target_tokens' instead of 'target_token'?",
        ),
    ],
)
def test_misspelled_loss_inputs(
    training: tinker.TrainingClient, wire: Any, inputs: Any, message: str
) -> None:
    """An input that the loss does not know is refused on the line of the call, with
    a suggestion.
    """
    with pytest.raises(ValueError, match="loss_fn_inputs") as caught:
        training.forward_backward([tinker.Datum(PROMPT, inputs)], "cross_entropy")
    assert str(caught.value).endswith(message)
    assert wire.requests("forward_backward") == []


MISSPELLED_LOSSES: list[tuple[str, dict[str, float], str]] = [
    (
        "cross_entrophy",
        {},
        "unknown loss_fn 'cross_entrophy'; {0} has .*; did you mean 'cross_entropy'",
    ),
    (
        "ppo",
        {"clip_low_treshold": 0.8},
        "unknown loss_fn_config key 'clip_low_treshold'; .*; did you mean 'clip_low_threshold'",
    ),
]


def test_settings_of_losses_that_are_not_numbers(
    training: tinker.TrainingClient, wire: Any
) -> None:
    """A setting that is nan, which no server can use, is refused at the call."""
    with pytest.raises(
        ValueError, match=r"^loss_fn_config\['clip_low_threshold'\] is nan; it must be a number$"
    ):
        training.forward_backward(
            [tinker.Datum(PROMPT, {"target_tokens": [1, 2], **POLICY_INPUTS})],
            "ppo",
            {"clip_low_threshold": float("nan")},
        )
    assert wire.requests("forward_backward") == []


@pytest.mark.parametrize(("name", "config", "said"), MISSPELLED_LOSSES)
def test_misspelled_losses(
    training: tinker.TrainingClient, wire: Any, name: str, config: dict[str, float], said: str
) -> None:
    """If the server has reported its losses, an unknown loss or setting is refused at the call and
    uses no number.
    """
    ready = tinker.Datum(
        PROMPT, {"target_tokens": [1, 2], **({} if name != "ppo" else POLICY_INPUTS)}
    )
    for call in (training.forward_backward, training.forward):
        with pytest.raises(ValueError, match=said.format("the server")):
            call([ready], name, config)
    assert wire.requests("forward_backward") == []
    training.optim_step(tinker.AdamParams(learning_rate=0.0)).result(10)
    assert wire.requests("optim_step")[0].seq_id == 1


@pytest.mark.parametrize(("name", "config", "said"), MISSPELLED_LOSSES)
def test_misspelled_losses_that_the_server_refuses(
    silent: tinker.TrainingClient, wire: Any, name: str, config: dict[str, float], said: str
) -> None:
    """A server that has not reported its losses receives the request; ours names the intended loss
    or setting in one line.
    """
    ready = tinker.Datum(
        PROMPT, {"target_tokens": [1, 2], **({} if name != "ppo" else POLICY_INPUTS)}
    )
    error = silent.forward_backward([ready], name, config).exception(10)
    assert isinstance(error, tinker.UnprocessableEntityError)
    assert re.search(said.format("this server"), str(error))
    assert getattr(error, "__notes__", []) == []


POLICY_INPUTS = {"logprobs": [0.0, 0.0], "advantages": [1.0, 1.0]}


def test_padding_of_weight_zero_is_not_warned_of(training: tinker.TrainingClient) -> None:
    """No warning is given if only some of the data have weights of 0, if none have weights, or by
    forward.
    """
    padding = tinker.Datum(PROMPT, {"target_tokens": [2, 3], "weights": [0.0, 0.0]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training.forward_backward([padding, DATUM], "cross_entropy").result(10)
        training.forward_backward([DATUM], "cross_entropy").result(10)
        training.forward([padding], "cross_entropy").result(10)


def test_losses_that_another_server_refuses(silent: tinker.TrainingClient, wire: Any) -> None:
    """If the server does not suggest a loss, the error does, unless no known name is similar."""
    for name, notes in (
        (
            "importance_samplng",
            ["loss function 'importance_samplng': did you mean 'importance_sampling'?"],
        ),
        ("mine", []),
        ("ppo", []),
        ("DPO", ["loss function 'DPO': write it as a function for forward_backward_custom"]),
    ):
        wire.fail("forward_backward", 422, body={"detail": f"{name} is not a loss"})
        error = silent.forward_backward(
            [tinker.Datum(PROMPT, {"target_tokens": [1, 2], **POLICY_INPUTS})], name
        ).exception(10)
        assert isinstance(error, tinker.UnprocessableEntityError)
        assert [
            note for note in getattr(error, "__notes__", []) if "loss function" in note
        ] == notes


def test_a_refusal_for_another_reason_suggests_no_loss(
    silent: tinker.TrainingClient, wire: Any
) -> None:
    """The name of a method is explained only where the server names it."""
    wire.fail("forward_backward", 422, body={"detail": "the weights must be finite"})
    error = silent.forward_backward([DATUM], "sft").exception(10)
    assert isinstance(error, tinker.UnprocessableEntityError)
    assert [note for note in getattr(error, "__notes__", []) if "loss function" in note] == []


def test_models_that_another_server_refuses(service: tinker.ServiceClient, wire: Any) -> None:
    """If the server has reported its models and refuses a name similar to one of them, the error
    suggests that model.
    """
    service.get_server_capabilities()
    meant = ["base model 'tinker/toi': did you mean 'tinker/toy'?"]
    for operation, create in (
        ("create_model", lambda: service.create_lora_training_client("tinker/toi")),
        (
            "create_sampling_session",
            lambda: service.create_sampling_client(base_model="tinker/toi"),
        ),
    ):
        wire.fail(operation, 400, body={"detail": "no such model: tinker/toi"})
        with pytest.raises(tinker.BadRequestError) as caught:
            create().result(10)
        assert caught.value.__notes__ == meant
    wire.fail("create_model", 400, body={"detail": "no adapters today"})
    error = service.create_lora_training_client("tinker/toi").exception(10)
    assert getattr(error, "__notes__", []) == []
    assert len(wire.requests("get_server_capabilities")) == 1


def test_misspelled_arguments_of_the_service() -> None:
    """A misspelled address or key argument raises TypeError; other arguments without effect are
    named in a warning.
    """
    for name, meant in (
        ("base_ul", "base_url"),
        ("url", "base_url"),
        ("baseurl", "base_url"),
        ("apikey", "api_key"),
        ("token", "api_key"),
    ):
        with pytest.raises(
            TypeError, match=f"^ServiceClient has no argument '{name}'; did you mean '{meant}'"
        ):
            tinker.ServiceClient(base_url="http://server", **{name: "http://other"})
    with pytest.warns(
        FutureWarning, match=r"arguments: telemetri \(did you mean telemetry=...\?\)"
    ):
        tinker.ServiceClient(telemetri=False, base_url="http://server")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"temperature": -1}, "temperature must be at least 0, got -1"),
        ({"temperature": float("nan")}, "temperature must be at least 0, got nan"),
        ({"top_p": 2}, "top_p must be from 0 to 1, got 2"),
        ({"min_p": -0.1}, "min_p must be from 0 to 1, got -0.1"),
        ({"presence_penalty": 3}, "presence_penalty must be from -2 to 2, got 3"),
        ({"repetition_penalty": 0}, "repetition_penalty must be above 0, got 0"),
        ({"json_schema": "{}"}, "json_schema must be a mapping or None, got '{}'"),
        (
            {"json_schema": {"const": {7}}},
            "json_schema cannot be sent as JSON: Object of type set is not JSON serializable",
        ),
        ({"priority": "first"}, "priority must be an integer or None, got 'first'"),
        ({"top_k": -5}, "top_k must be at least -1, got -5"),
        ({"max_tokens": -3}, "max_tokens must be at least 0, got -3"),
    ],
)
def test_invalid_sampling_parameters(wrong: Any, words: str) -> None:
    """Values outside the limits of the contract are refused when the parameters are created."""
    with pytest.raises(ValueError, match=f"^SamplingParams.{words}"):
        tinker.SamplingParams(**wrong)


@pytest.mark.parametrize(
    ("params", "error", "words"),
    [
        (
            None,
            TypeError,
            (
                r"^optim_step needs AdamParams or DimuonParams, such as "
                r"AdamParams\(learning_rate=1e-4\); got None"
            ),
        ),
        (1e-4, TypeError, "got float$"),
    ],
)
def test_invalid_optimizer_parameters(
    training: tinker.TrainingClient, wire: Any, params: Any, error: type[Exception], words: str
) -> None:
    """Invalid optimizer parameters are refused at the call, and nothing is sent."""
    with pytest.raises(error, match=words):
        training.optim_step(params)
    assert wire.requests("optim_step") == []


def test_negative_rank(service: tinker.ServiceClient, wire: Any) -> None:
    """A negative rank is refused on the line of the call, and nothing is sent; 0 is accepted, as
    some servers take it.
    """
    with pytest.raises(ValueError, match=r"^rank must be at least 0, got -1$"):
        service.create_lora_training_client("tinker/toy", rank=-1)
    assert wire.requests("create_model") == []


def test_names_that_other_clients_have(sampler: tinker.SamplingClient) -> None:
    """An attribute that belongs to the sequences of a response or to a tokenizer raises an error
    that says where it is.
    """
    response = sampler.sample(
        tinker.ModelInput.from_ints([1]), 1, tinker.SamplingParams(max_tokens=1)
    ).result(10)
    with pytest.raises(AttributeError, match=r"use response.sequences\[0\].tokens$"):
        response.tokens  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(
        AttributeError, match=r": use tokenizer.decode\(response.sequences\[0\].tokens\)$"
    ):
        response.text  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r": use tokenizer.decode\(sequence.tokens\)$"):
        response.sequences[0].text  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(
        AttributeError, match=r"'SampleResponse' object has no attribute 'nothing'$"
    ):
        response.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_a_custom_loss_that_returns_the_loss_alone(
    training: tinker.TrainingClient, datum: MakeDatum
) -> None:
    """A custom loss that returns only the loss raises an error that says what to return."""
    torch = pytest.importorskip("torch")
    with pytest.raises(
        ValueError, match=r"must return \(loss, metrics\), got Tensor: return loss, \{\}"
    ):
        training.forward_backward_custom(
            [datum()], lambda _, logprobs: -torch.cat(logprobs).sum()
        ).result(30)


def test_clients_that_cannot_be_pickled_say_what_to_do(
    service: tinker.ServiceClient, training: tinker.TrainingClient
) -> None:
    """Pickling such a client raises TypeError, which names the client and how to use one in the
    other process.
    """
    with pytest.raises(
        TypeError, match="a ServiceClient cannot be pickled or copied; create one in each process"
    ):
        pickle.dumps(service)
    with pytest.raises(TypeError, match="create_training_client_from_state"):
        pickle.dumps(training)


# Tracebacks


def test_tracebacks_show_the_line_of_the_user(training: tinker.TrainingClient) -> None:
    """A failure on the server is raised without frames of the I/O thread, however often it is
    raised.
    """
    bad = tinker.Datum(tinker.ModelInput.from_ints([10**6]), {"target_tokens": [1]})
    future = training.forward_backward([bad], "cross_entropy")
    for _ in range(2):
        with pytest.raises(tinker.RequestFailedError) as caught:
            future.result(10)
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert [frame.name for frame in frames][:2] == [
            "test_tracebacks_show_the_line_of_the_user",
            "result",
        ]
        assert len(frames) <= 3
    assert [entry.name for entry in caught.traceback.filter(caught)] == [
        "test_tracebacks_show_the_line_of_the_user"
    ]


def test_frames_of_functions_of_the_user_stay(
    training: tinker.TrainingClient, datum: MakeDatum
) -> None:
    """An error in the user's loss function shows where it was raised, without our frames, however
    often it is raised.
    """

    def fail(*_: object) -> Any:
        raise ValueError("mine")

    future = training.forward_backward_custom([datum()], tinker.with_gradients(fail))
    for _ in range(2):
        with pytest.raises(ValueError, match="mine") as caught:
            future.result(60)
        frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert frames == ["test_frames_of_functions_of_the_user_stay", "result", "fail"]


@pytest.mark.parametrize("value", [[1.0, 0.0, 1.0], np.array([1, 0, 1], np.float64)])
def test_a_loss_input_that_is_assigned_to_a_datum(datum: MakeDatum, value: Any) -> None:
    """A value assigned to a loss input becomes the tensor that the constructor makes of it,
    whichever way it is assigned.
    """
    wanted = tinker.Datum(datum().model_input, {"weights": value}).loss_fn_inputs["weights"]
    for assign in (
        lambda inputs: inputs.__setitem__("weights", value),
        lambda inputs: inputs.update(weights=value),
        lambda inputs: inputs.__ior__({"weights": value}),
        lambda inputs: (inputs.pop("weights", None), inputs.setdefault("weights", value)),
    ):
        one = datum()
        assign(one.loss_fn_inputs)
        assert one.loss_fn_inputs["weights"] == wanted
        assert type(one.loss_fn_inputs["weights"]) is tinker.TensorData
    inputs = one.loss_fn_inputs
    inputs |= {}
    assert inputs is one.loss_fn_inputs
    assert (
        pickle.loads(pickle.dumps(one))
        == one
        == tinker.Datum.model_validate_json(one.model_dump_json())
    )


def test_an_invalid_loss_input_is_refused_on_assignment(datum: MakeDatum) -> None:
    """An invalid assignment raises the error of the constructor, and the datum keeps its previous
    value.
    """
    one = datum()
    before = dict(one.loss_fn_inputs)
    with pytest.raises(
        TypeError, match=r"^loss_fn_inputs\['weights'\] must be a list, .*, got NoneType"
    ):
        one.loss_fn_inputs["weights"] = None  # type: ignore[assignment]
    assert one.loss_fn_inputs == before


@pytest.mark.parametrize("name", ["learning_rate", "lr", "learning_rte"])
@pytest.mark.parametrize("change", [lambda value, name: setattr(value, name, 1.0), delattr])
def test_a_field_that_is_changed(name: str, change: Callable[[object, str], object]) -> None:
    """Assigning to a field of a record raises an error that says how to make a changed copy and
    suggests the intended field.
    """
    params = tinker.AdamParams(learning_rate=1e-3)
    wanted = "make another, such as dataclasses.replace(value, learning_rate=...)"
    if name != "learning_rate":
        wanted = f"AdamParams has no {name!r}; did you mean 'learning_rate'?"
    with pytest.raises(AttributeError, match=re.escape(wanted)):
        change(params, name)
    assert params.learning_rate == 1e-3


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (DATUM, "model_input"),
        (DATUM.model_input, "chunks"),
        (DATUM.model_input.chunks[0], "tokens"),
        (DATUM.loss_fn_inputs["target_tokens"], "data"),
        (tinker.types.SaveWeightsResponse(path="tinker://a/weights/b"), "path"),
    ],
)
def test_a_value_that_is_changed(value: Any, name: str) -> None:
    """Assigning to any other value raises the same message, with an exception type that attrs and
    Python define.
    """
    with pytest.raises(
        attrs.exceptions.FrozenInstanceError,
        match=rf"make another, such as .*\(value, {name}=...\)",
    ):
        setattr(value, name, None)


def test_a_save_passed_as_its_path(
    training: tinker.TrainingClient, service: tinker.ServiceClient
) -> None:
    """Passing the result of a save as a path raises an error that says how to get the path."""
    saved = training.save_state("a")
    with pytest.raises(
        TypeError, match=r"^path must be a string, got APIFuture: pass future.result\(\).path"
    ):
        training.load_state(saved)  # pyright: ignore
    with pytest.raises(TypeError, match=r"got SaveWeightsResponse: pass response\.path"):
        service.create_sampling_client(saved.result(10))  # pyright: ignore


def test_a_refused_key(service: tinker.ServiceClient, wire: Any) -> None:
    """If the server refuses the key, the error says where the key comes from."""
    wire.fail("create_model", 401, body={"detail": "wrong key"})
    error = service.create_lora_training_client("tinker/toy").exception(10)
    assert (
        str(error)
        == "Error code: 401 - wrong key; check the key (api_key or TINKER_API_KEY) (create_model)"
    )


def test_reprs_of_helpers() -> None:
    """The repr of metrics and of a simulated clock shows their state."""
    assert (
        repr(tinker.observing.Metrics())
        == "<Metrics: 0 operations, 0 retries; snapshot() returns the numbers>"
    )
    assert repr(tinker.testing.SteppedClock()) == "<SteppedClock at 1000 s, 0 sleeps>"


def test_clients_and_futures_in_text_and_notebooks(
    service: tinker.ServiceClient, training: tinker.TrainingClient
) -> None:
    """Both show the server, the run or the operation, and how far it is; neither the key nor a
    table of nothing.
    """
    saved = training.save_state("first")
    saved.result(10)
    session = training.model_id.partition(":")[0]
    sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
    rest, new = service.create_rest_client(), APIFuture[int]("sample")
    shown: list[tuple[Any, str, list[str]]] = [
        (service, f"<ServiceClient http://server, session {session}>", ["server", "session"]),
        (
            training,
            f"<TrainingClient {training.model_id}, base model tinker/toy>",
            ["run", "base model"],
        ),
        (sampler, f"<SamplingClient {sampler.sampling_session_id}>", ["sampler"]),
        (rest, "<RestClient http://server>", ["server"]),
        (saved, "<APIFuture save_state, done>", ["operation", "state", "request"]),
        (new, "<APIFuture sample, pending>", ["operation", "state"]),
    ]
    for one, text, names in shown:
        assert repr(one) == text
        table = one._repr_html_()
        assert f"<caption>{type(one).__name__}</caption>" in table
        assert re.findall(r"<th [^>]*>([^<]*)</th>", table) == names
        assert "secret" not in table
        assert "None" not in table
    service.close().result(10)
    assert "closed" in service._repr_html_()


def test_names_of_modules() -> None:
    """`dir()` lists the public names of a module that loads its names lazily."""
    for module in (tinker.testing, tinker.local, tinker.observing):
        assert [name for name in dir(module) if not name.startswith("_")] == sorted(module.__all__)


def test_waiting_for_futures_as_for_tasks(training: tinker.TrainingClient) -> None:
    """asyncio.wait refuses futures at once and says what to pass, instead of waiting forever."""

    async def scenario() -> tuple[set[Any], set[Any]]:
        future = training.optim_step(tinker.AdamParams(learning_rate=1e-3))
        with pytest.raises(TypeError, match=r"pass asyncio.ensure_future\(future\)"):
            await asyncio.wait([future])
        return await asyncio.wait([asyncio.ensure_future(future)])

    done, pending = asyncio.run(scenario())
    assert [one.result().metrics is not None for one in done] == [True]
    assert not pending


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: tinker.Datum("abc", {}),
            TypeError,
            r"got str: use ModelInput.from_ints\(tokenizer.encode\(text\)\)",
        ),
        (
            lambda: tinker.Datum(PROMPT, {"weights": (1.0,)}),
            TypeError,
            r"loss_fn_inputs\['weights'\] .*, got tuple: write list",
        ),
        (
            lambda: tinker.Datum(PROMPT, labels=[1]),
            TypeError,
            "Datum has no 'labels'; did you mean 'loss_fn_inputs'",
        ),
        (
            lambda: tinker.Datum(model_input=PROMPT, loss_fn_inputs={}, label=[1]),
            TypeError,
            "it has .*loss_fn_inputs, model_input",
        ),
        (
            lambda: f"{APIFuture('x'):.3f}",
            TypeError,
            r"has no format '.3f': call .result\(\) or await it",
        ),
        (
            lambda: tinker.ModelInput([1, 2]),
            TypeError,
            r"; for token ids use ModelInput.from_ints\(tokens\)",
        ),
        (
            lambda: tinker.ModelInput(tokens=[1]),
            TypeError,
            "has no 'tokens'; it has chunks; for token ids use ModelInput",
        ),
        (
            lambda: tinker.ServiceClient(base_url="host:80"),
            ValueError,
            "got 'host:80'; did you mean 'http://host:80'?",
        ),
        (
            lambda: tinker.ServiceClient(base_url="local:toy"),
            ValueError,
            "got 'local:toy'; did you mean 'local://toy'?",
        ),
        (
            lambda: tinker.ServiceClient(base_url="local"),
            ValueError,
            "got 'local'; did you mean 'local://'?",
        ),
        (
            lambda: tinker.ServiceClient(base_url="local:80"),
            ValueError,
            "did you mean 'http://local:80'?",
        ),
        (lambda: pickle.dumps(APIFuture()), TypeError, "pickle future.result\\(\\) instead"),
        (
            lambda: tinker.ModelInput(chunks=[1, 2]),
            TypeError,
            "got int; for token ids use ModelInput.from_ints",
        ),
        (
            lambda: tinker.AdamParams(1e-4),
            TypeError,
            r"takes no positional arguments: write AdamParams\(learning_rate=...\)",
        ),
        (lambda: tinker.ServiceClient(api_key=3), TypeError, "api_key must be a string, got int"),
        (
            lambda: tinker.ServiceClient(base_url="http://h/api/v1"),
            ValueError,
            "base_url ends in /api/v1, which the client adds; write 'http://h'",
        ),
        (
            lambda: getattr(tinker, "Client"),  # noqa: B009
            AttributeError,
            "no attribute 'Client'; use tinker.ServiceClient",
        ),
        (
            lambda: tinker.Datum(PROMPT, {"logprobs": [None, 0.0]}),
            ValueError,
            "got None at position 0: the first token of a prompt",
        ),
        (
            lambda: tinker.AdamParams(learning_rate="fast"),
            ValueError,
            "AdamParams.learning_rate must be a number, got 'fast'",
        ),
        (
            lambda: tinker.AdamParams(learning_rate=-1),
            ValueError,
            "^AdamParams.learning_rate must be at least 0, got -1.0",
        ),
        (
            lambda: tinker.AdamParams(eps=-1),
            ValueError,
            "^AdamParams.eps must be at least 0, got -1.0",
        ),
        (
            lambda: tinker.AdamParams(beta2=1),
            ValueError,
            "^AdamParams.beta2 must be at least 0 and below 1, got 1.0",
        ),
        (
            lambda: tinker.AdamParams(weight_decay=float("nan")),
            ValueError,
            "^AdamParams.weight_decay must be finite, got nan",
        ),
        (
            lambda: tinker.types.LoraConfig(rank=1.5),
            ValueError,
            "LoraConfig.rank must be an integer, got 1.5",
        ),
        (
            lambda: tinker.SamplingParams(seed="a"),
            ValueError,
            "SamplingParams.seed must be an integer or None, got 'a'",
        ),
    ],
)
def test_values_of_the_wrong_type(
    make: Callable[[], object], error: type[Exception], message: str
) -> None:
    """Creating a value with a wrong type raises on that line and says which type is needed and how
    to write it.
    """
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"beta1": 1}, "beta1 must be at least 0 and below 1, got 1"),
        ({"beta2": -0.5}, "beta2 must be at least 0 and below 1, got -0.5"),
        ({"eps": -1e-8}, "eps must be at least 0, got -1e-08"),
        ({"eps": 1e-60}, "eps is 1e-60, which is 0 in float32, the type of the weights"),
        (
            {"learning_rate": 1e300},
            r"learning_rate is 1e\+300, which is too large for float32, the type of the weights",
        ),
        (
            {"beta2": 1 - 1e-12},
            "beta2 is 0.999999999999, which is 1 in float32, the type of the weights",
        ),
        ({"grad_clip_norm": -1e39}, r"grad_clip_norm is -1e\+39, which is too large for float32"),
        (
            {"learning_rate": 1e30, "weight_decay": 1e30},
            r"learning_rate \* weight_decay is 1\S*e\+60, which is too large",
        ),
    ],
)
def test_invalid_optimizer_steps(
    training: tinker.TrainingClient, wire: Any, wrong: Any, message: str
) -> None:
    """Optimizer parameters out of range are refused on the line of the step, and
    nothing is sent.
    """
    with pytest.raises(ValueError, match=f"^AdamParams.{message}"):
        training.optim_step(tinker.AdamParams(**wrong))
    assert wire.requests("optim_step") == []


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (
            lambda service: service.create_lora_training_client(None),
            "base_model must be the name of a model, got NoneType",
        ),
        (
            lambda service: service.create_sampling_client(base_model=3),
            "base_model must be the name of a model, got int",
        ),
        (
            lambda service: service.create_lora_training_client("a/b", optimizer="adam"),
            "optimizer must be AdamOptimizerConfig",
        ),
    ],
)
def test_arguments_of_clients(
    service: tinker.ServiceClient, wire: Any, create: Callable[[Any], object], message: str
) -> None:
    """An invalid model or optimizer is refused on the line that creates the client, and nothing is
    sent.
    """
    with pytest.raises(TypeError, match=f"^{message}"):
        create(service)
    assert wire.requests("create_model") == wire.requests("create_sampling_session") == []


@pytest.mark.parametrize(
    ("value", "name", "advice"),
    [
        (
            tinker.types.SampledSequence("stop", tokens=[1]),
            "text",
            r"tokenizer.decode\(sequence.tokens\)",
        ),
        (tinker.types.SampledSequence("stop", tokens=[1]), "token_ids", "sequence.tokens"),
        (tinker.types.SampledSequence("stop", tokens=[1]), "finish_reason", "sequence.stop_reason"),
        (
            tinker.ForwardBackwardOutput("x", []),
            "logprobs",
            r"output.loss_fn_outputs\[0\]\['logprobs'\]",
        ),
        (
            tinker.ForwardBackwardOutput("x", []),
            "loss",
            "the server did not send the metric 'loss:sum'; it sent: none",
        ),
    ],
)
def test_attributes_of_values(value: Any, name: str, advice: str) -> None:
    """A missing attribute of a value raises an error that says where to find it; other names have
    the usual message.
    """
    with pytest.raises(AttributeError, match=advice):
        getattr(value, name)
    with pytest.raises(
        AttributeError, match=f"^'{type(value).__name__}' object has no attribute 'unheard_of'$"
    ):
        _ = value.unheard_of


@pytest.mark.parametrize(
    ("client", "maker"),
    [
        (tinker.TrainingClient, r"ServiceClient.create_lora_training_client\(base_model\)"),
        (tinker.SamplingClient, r"ServiceClient.create_sampling_client\(base_model=...\)"),
    ],
)
def test_clients_that_a_service_makes(client: Callable[..., object], maker: str) -> None:
    """The signature of a client made by a service has no parameters, and calling its class names
    the method that creates it.
    """
    assert not inspect.signature(client).parameters
    for arguments in ((), ("tinker/toy",)):
        with pytest.raises(TypeError, match=maker):
            client(*arguments)


@pytest.mark.parametrize(
    ("inputs", "loss_fn", "message"),
    [
        (
            {"target_tokens": [-100, 3]},
            "cross_entropy",
            r"\['target_tokens'\] has negative token ids; to ignore a token",
        ),
        (
            {"target_tokens": [2, 3], "weights": [np.inf, 0.0]},
            "cross_entropy",
            r"\['weights'\] contains infinity at position 0",
        ),
        (
            {"target_tokens": [2, 3], "weights": [1e30, np.nan]},
            "cross_entropy",
            r"\['weights'\] contains NaN at position 1",
        ),
    ],
)
def test_values_that_losses_refuse(
    training: tinker.TrainingClient, wire: Any, inputs: Any, loss_fn: str, message: str
) -> None:
    """Values that a loss cannot use are refused on the line of the call, with datum index and
    field, and nothing is sent.
    """
    with pytest.raises(ValueError, match=r"^data\[1\].loss_fn_inputs" + message):
        training.forward_backward([DATUM, tinker.Datum(PROMPT, inputs)], loss_fn)
    assert wire.requests("forward_backward") == []


def test_large_weights_are_accepted(training: tinker.TrainingClient) -> None:
    """Weights whose squares overflow float32 are accepted."""
    heavy = tinker.Datum(PROMPT, {"target_tokens": [2, 3], "weights": [1e25, 0.0]})
    training.forward([heavy], "cross_entropy").result(10)


def test_a_future_used_as_its_result() -> None:
    """Iterating over a future, or indexing it, raises an error that says how to get the result."""
    future: Any = APIFuture("sample")
    for use in (lambda: future[0], lambda: list(future)):
        with pytest.raises(TypeError, match=r"call .result\(\) or await it"):
            use()
    assert future  # exists, and has no length


def test_tensors_read_like_arrays() -> None:
    """A tensor's repr shows its first values, and it has a length, items and an iterator."""
    tensor = tinker.TensorData([1.0, 2.5], "float32")
    assert repr(tensor) == "TensorData([1, 2.5], float32, shape=[2])"
    assert (
        repr(tinker.TensorData(list(range(9)), "int64"))
        == "TensorData([0, 1, 2, 3, 4, 5, 6, 7, ...], int64, shape=[9])"
    )
    assert (len(tensor), sum(tensor), tensor[1]) == (2, 3.5, 2.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda service: service.create_sampling_client(base_model="tinker/toy").sample(
                PROMPT, n=2, sampling_params=PARAMS
            ),
            "SamplingClient.sample has no 'n'; did you mean 'num_samples'?",
        ),
        (
            lambda service: service.create_lora_training_client(model="tinker/toy"),
            "ServiceClient.create_lora_training_client has no 'model'; did you mean 'base_model'?",
        ),
        (
            lambda service: service.create_lora_training_client("tinker/toy", lora_rank=4),
            "ServiceClient.create_lora_training_client has no 'lora_rank'; did you mean 'rank'?",
        ),
        (
            lambda service: service.create_rest_client().list_sessions(limt=1),
            "RestClient.list_sessions has no 'limt'; did you mean 'limit'?",
        ),
        (
            lambda service: asyncio.run(service.create_rest_client().list_sessions_async(limt=1)),
            "RestClient.list_sessions_async has no 'limt'; did you mean 'limit'?",
        ),
        (
            lambda service: asyncio.run(
                service.create_lora_training_client_async(model="tinker/toy")
            ),
            "ServiceClient.create_lora_training_client has no 'model'; did you mean 'base_model'?",
        ),
        (
            lambda service: service.create_lora_training_client(),
            r"missing 1 required positional argument: 'base_model'",
        ),
    ],
)
def test_misspelt_arguments(
    service: tinker.ServiceClient, call: Callable[[Any], object], message: str
) -> None:
    """An unknown argument of a method is named, with a suggestion; other call errors are Python's
    own.
    """
    with pytest.raises(TypeError, match=re.escape(message)):
        call(service)


@pytest.mark.parametrize(
    "client",
    [tinker.ServiceClient, tinker.TrainingClient, tinker.SamplingClient, tinker.RestClient],
)
def test_signatures_of_methods(client: type) -> None:
    """The signature of a public method names its parameters, and coroutine functions are still
    recognised as such.
    """
    for name, method in inspect.getmembers(client, inspect.isfunction):
        if not name.startswith("_"):
            written = inspect.unwrap(method)
            assert inspect.signature(method) == inspect.signature(written)
            assert inspect.iscoroutinefunction(method) == inspect.iscoroutinefunction(written)
            assert not any(
                one.kind is one.VAR_KEYWORD for one in inspect.signature(method).parameters.values()
            )


@pytest.mark.parametrize(
    "loss", [lambda logprobs: (0.0, {}), lambda data, logprobs, more: (0.0, {})]
)
def test_a_custom_loss_with_other_parameters(
    training: tinker.TrainingClient, datum: MakeDatum, loss: Any
) -> None:
    """A function that cannot be called with data and log-probabilities is refused on the line of
    the call.
    """
    with pytest.raises(
        TypeError,
        match=r"a custom loss is called as loss_fn\(data, logprobs\), but this function takes \(",
    ):
        training.forward_backward_custom([datum()], loss)
