"""Arguments and names beside `first_mistakes.txt`: what is accepted, refusals by servers,
tracebacks, and what clients and values show of themselves.
"""

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
POLICY_INPUTS = {"logprobs": [0.0, 0.0], "advantages": [1.0, 1.0]}
CLIENTS = (tinker.ServiceClient, tinker.TrainingClient, tinker.SamplingClient, tinker.RestClient)
MakeDatum = Callable[..., tinker.Datum]


def make_datum(**inputs: Any) -> tinker.Datum:
    return tinker.Datum(PROMPT, {"target_tokens": [2, 3], **inputs})


DATUM = make_datum()


def test_unusual_arguments_that_are_right(
    training: tinker.TrainingClient, sampler: tinker.SamplingClient
) -> None:
    """Padding of weight 0, heavy weights and integers of numpy neither raise nor warn."""
    padding, heavy = make_datum(weights=[0.0, 0.0]), make_datum(weights=[1e25, 0.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training.forward_backward([padding, DATUM], "cross_entropy").result(10)
        for data in ([padding], [DATUM], [heavy]):
            training.forward(data, "cross_entropy").result(10)
        answer = sampler.sample(PROMPT, np.int64(2), PARAMS).result(10)  # type: ignore[arg-type]
    assert len(answer.sequences) == 2


@pytest.mark.parametrize("timeout", ["3", [1], {"seconds": 3}, 3j])
@pytest.mark.parametrize("ask", ["result", "exception", "result_async"])
def test_timeouts(timeout: Any, ask: str) -> None:
    """A timeout that is no number is an error of the call, whether or not the result is there."""

    async def call(future: APIFuture[int]) -> None:
        answer = getattr(future, ask)(timeout)
        await answer if inspect.isawaitable(answer) else answer

    for future in (immediate(1), APIFuture[int]("sample")):
        with pytest.raises(TypeError, match="timeout must be a number of seconds or None, got"):
            asyncio.run(call(future))


@pytest.mark.parametrize("timeout", [None, 3, 0.5, np.float32(3), np.int64(3)])
def test_real_numbers_are_timeouts(timeout: Any) -> None:
    """Every real number is a valid timeout, and None means no timeout."""
    assert immediate(1).result(timeout) == 1
    assert immediate(1).exception(timeout) is None
    assert asyncio.run(immediate(1).result_async(timeout)) == 1


@pytest.mark.parametrize("client", [*CLIENTS, tinker.AdminClient])
def test_subclasses_without_init(client: type) -> None:
    """A subclass that does not call the constructor has a repr, as debuggers need one."""

    class StandIn(client):
        def __init__(self) -> None:
            pass

    assert client.__name__ in repr(StandIn()) or "StandIn" in repr(StandIn())
    assert StandIn()._repr_html_().startswith("<table>")


@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        ("cross_entrophy", {}, "unknown loss_fn .*; this server has .* mean 'cross_entropy'"),
        (
            "ppo",
            {"clip_low_treshold": 0.8},
            "unknown loss_fn_config key .*; did you mean 'clip_low_threshold'",
        ),
    ],
)
def test_misspelled_losses_that_the_server_refuses(
    silent: tinker.TrainingClient, name: str, config: dict[str, float], said: str
) -> None:
    """A server that has not reported its losses receives the request; ours names the intended loss
    or setting in one line.
    """
    inputs = POLICY_INPUTS if name == "ppo" else {}
    error = silent.forward_backward([make_datum(**inputs)], name, config).exception(10)
    assert isinstance(error, tinker.UnprocessableEntityError)
    assert re.search(said, str(error))
    assert getattr(error, "__notes__", []) == []


@pytest.mark.parametrize(
    ("name", "detail", "note"),
    [
        ("importance_samplng", "{0} is not a loss", "did you mean 'importance_sampling'?"),
        ("DPO", "{0} is not a loss", "write it as a function for forward_backward_custom"),
        ("mine", "{0} is not a loss", None),
        ("ppo", "{0} is not a loss", None),
        ("sft", "the weights must be finite", None),
    ],
)
def test_losses_that_another_server_refuses(
    silent: tinker.TrainingClient, wire: Any, name: str, detail: str, note: str | None
) -> None:
    """Where the server names a loss that it refuses, the error suggests a similar one."""
    wire.fail("forward_backward", 422, body={"detail": detail.format(name)})
    error = silent.forward_backward([make_datum(**POLICY_INPUTS)], name).exception(10)
    assert isinstance(error, tinker.UnprocessableEntityError)
    notes = [one for one in getattr(error, "__notes__", []) if "loss function" in one]
    assert notes == ([f"loss function {name!r}: {note}"] if note else [])


def test_models_that_another_server_refuses(service: tinker.ServiceClient, wire: Any) -> None:
    """A refused model similar to one that the server has reported gets a suggestion."""
    service.get_server_capabilities()
    train = lambda: service.create_lora_training_client("tinker/toi")  # noqa: E731
    sample = lambda: service.create_sampling_client(base_model="tinker/toi")  # noqa: E731
    meant = ["base model 'tinker/toi': did you mean 'tinker/toy'?"]
    for operation, create, detail, notes in (
        ("create_model", train, "no such model: tinker/toi", meant),
        ("create_sampling_session", sample, "no such model: tinker/toi", meant),
        ("create_model", train, "no adapters today", []),
    ):
        wire.fail(operation, 400, body={"detail": detail})
        error = create().exception(10)
        assert isinstance(error, tinker.BadRequestError)
        assert getattr(error, "__notes__", []) == notes
    assert len(wire.requests("get_server_capabilities")) == 1


def test_tracebacks_show_the_line_of_the_user(training: tinker.TrainingClient) -> None:
    """A failure on the server is raised without frames of the I/O thread, however often."""
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
    """An error of the user's loss shows where it was raised, without our frames."""

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
    """A value assigned to a loss input, in any way, becomes what the constructor makes of it."""
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
    """An invalid assignment raises the constructor's error, and changes nothing."""
    one = datum()
    before = dict(one.loss_fn_inputs)
    with pytest.raises(
        TypeError, match=r"^loss_fn_inputs\['weights'\] must be a list, .*, got NoneType"
    ):
        one.loss_fn_inputs["weights"] = None  # type: ignore[assignment]
    assert one.loss_fn_inputs == before


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("learning_rate", "dataclasses.replace(value, learning_rate=...)"),
        ("lr", "AdamParams has no 'lr'; did you mean 'learning_rate'?"),
    ],
)
@pytest.mark.parametrize("change", [lambda value, name: setattr(value, name, 1.0), delattr])
def test_a_field_that_is_changed(
    name: str, said: str, change: Callable[[object, str], object]
) -> None:
    """Setting or deleting a field says how to make a changed copy, or suggests another field."""
    params = tinker.AdamParams(learning_rate=1e-3)
    with pytest.raises(AttributeError, match=re.escape(said)):
        change(params, name)
    assert params.learning_rate == 1e-3


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (DATUM, "model_input"),
        (PROMPT, "chunks"),
        (PROMPT.chunks[0], "tokens"),
        (DATUM.loss_fn_inputs["target_tokens"], "data"),
        (tinker.types.SaveWeightsResponse(path="tinker://a/weights/b"), "path"),
    ],
)
def test_a_value_that_is_changed(value: Any, name: str) -> None:
    """Setting a field of another value raises the same, as attrs and Python define it."""
    said = rf"make another, such as .*\(value, {name}=...\)"
    with pytest.raises(attrs.exceptions.FrozenInstanceError, match=said):
        setattr(value, name, None)


def test_reprs_of_helpers() -> None:
    """The repr of metrics, of a simulated clock and of a tensor shows their state."""
    metrics, long = tinker.observing.Metrics(), tinker.TensorData(list(range(9)), "int64")
    assert repr(metrics) == "<Metrics: 0 operations, 0 retries; snapshot() returns the numbers>"
    assert repr(tinker.testing.SteppedClock()) == "<SteppedClock at 1000 s, 0 sleeps>"
    assert repr(long) == "TensorData([0, 1, 2, 3, 4, 5, 6, 7, ...], int64, shape=[9])"


def test_tensors_read_like_lists() -> None:
    """A tensor has a length, items and an iterator."""
    tensor = tinker.TensorData([1.0, 2.5], "float32")
    assert (len(tensor), sum(tensor), tensor[1]) == (2, 3.5, 2.5)


def test_clients_and_futures_in_text_and_notebooks(
    service: tinker.ServiceClient, training: tinker.TrainingClient
) -> None:
    """Both show the server, the run or the operation and how far it is, and not the key."""
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


@pytest.mark.parametrize("client", CLIENTS)
def test_signatures_of_methods(client: type) -> None:
    """A method's signature names its parameters, and shows whether it is a coroutine function."""
    for name, method in inspect.getmembers(client, inspect.isfunction):
        if not name.startswith("_"):
            written, signature = inspect.unwrap(method), inspect.signature(method)
            assert signature == inspect.signature(written)
            assert inspect.iscoroutinefunction(method) == inspect.iscoroutinefunction(written)
            kinds = {one.kind for one in signature.parameters.values()}
            assert inspect.Parameter.VAR_KEYWORD not in kinds


def test_signatures_of_types() -> None:
    """The signature of a type names its parameters, which a client made by a service has none of."""
    for client in (tinker.TrainingClient, tinker.SamplingClient):
        assert not inspect.signature(client).parameters
    assert list(inspect.signature(tinker.TensorData).parameters)[:2] == ["data", "dtype"]
    assert "model_input" in inspect.signature(tinker.Datum).parameters
