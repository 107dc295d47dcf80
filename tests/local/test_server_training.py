"""Training requests: their order, their identity by number, gaps, both wire formats, and the
category of failures.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
from support.api import (
    PROTO,
    Api,
    Clock,
    FullEngine,
    GatedEngine,
    MakeApi,
    RecordingEngine,
    datum,
    loss_body,
)
from support.tolerances import near

from tinker._wire import proto
from tinker.local.engines.protocol import Adam, EngineError, LossResult
from tinker.local.engines.toy import ToyEngine
from tinker.types.model_input import Datum, ModelInput

PROTO_BODY = {"content-type": "application/x-protobuf"}
DATA = [Datum(ModelInput.from_ints([104, 101]), {"target_tokens": [101, 108]})]


def proto_body(model: str, seq_id: int, loss_fn: str = "cross_entropy", **fields: Any) -> bytes:
    data = fields.pop("data", DATA)
    return b"".join(proto.encode_forward_backward(model, seq_id, data, loss_fn, **fields))


# Order


def test_requests_run_in_the_order_of_their_numbers(make_api: MakeApi) -> None:
    """Numbers 3, 2, 1 are accepted at once and run as 1, 2, 3."""
    engine = RecordingEngine()
    api = make_api(engine)
    model = api.model()
    late = api.step(model, 3)
    second = api.loss(model, 2, data=[datum([2], [2])])
    first = api.loss(model, 1, data=[datum([1], [1])])
    for future in (late, second, first):
        api.result(future)
    assert engine.order == [1, 2, "step"]


def test_a_gap_holds_back_what_is_behind_it_and_says_so(make_api: MakeApi) -> None:
    """While a number is missing the later ones wait, and a poll names the missing number."""
    api = make_api(hold_seconds=0)
    created = api.create_model(api.session())
    api.wait(created)
    future = api.step(created["model_id"], 2)
    answer = api.retrieve(future).json()
    assert answer["type"] == "try_again"
    assert "seq_id 1 of this model" in answer["queue_state_reason"]


def test_a_number_that_never_comes_is_given_up(make_api: MakeApi) -> None:
    """After ``gap_seconds`` the requests after a missing number run; the number itself is then
    refused with 409.
    """
    api = make_api(gap_seconds=0.0)
    model = api.model()
    assert "metrics" in api.result(api.step(model, 5))
    status, detail = api.refused("optim_step", {"model_id": model, "seq_id": 4, "adam_params": {}})
    assert status == 409
    assert "is stale" in detail
    assert "metrics" in api.result(api.step(model, 6))


def test_a_refusal_whose_answer_was_lost_is_repeated(make_api: MakeApi) -> None:
    """The last refused request of a model is answered alike when it is sent again; its number stays
    used up for others.
    """
    api = make_api()
    model = api.model()
    api.wait(api.save(model, 1, "taken"))
    again = {"model_id": model, "seq_id": 2, "path": "taken"}
    first = api.refused("save_weights", again)
    assert (first[0], "choose another name" in first[1]) == (409, True)
    assert api.refused("save_weights", again) == first
    assert "is stale" in api.refused("save_weights", {**again, "path": "free"})[1]
    assert (
        "is stale"
        in api.refused("optim_step", {"model_id": model, "seq_id": 2, "adam_params": {}})[1]
    )
    assert "metrics" in api.result(api.step(model, 3))


def test_a_gap_is_waited_for_by_the_servers_clock(make_api: MakeApi) -> None:
    """A missing number that arrives within the server's timeout runs in its place."""
    engine, clock = RecordingEngine(), Clock()
    api = make_api(engine, clock=clock, gap_seconds=60.0)
    model = api.model()
    late = api.loss(model, 2, data=[datum([2], [2])])
    clock.seconds += 59.0
    early = api.loss(model, 1, data=[datum([1], [1])])
    api.result(late)
    api.result(early)
    assert engine.order == [1, 2]


def test_a_missing_number_counts_as_the_next(api: Api) -> None:
    """A request without a number gets the next one."""
    model = api.model()
    body = {"model_id": model, "adam_params": {}}
    ids = [api.ok("optim_step", body)["request_id"] for _ in range(2)]
    assert [request_id.rpartition(":")[2] for request_id in ids] == ["1", "2"]
    assert "metrics" in api.result(api.step(model, 3))


def test_models_take_turns(make_api: MakeApi) -> None:
    """Two models with three requests each, submitted one after the other, run alternately."""
    engine = GatedEngine()
    api = make_api(engine)
    session = api.session()
    one, two = api.model(session, 0), api.model(session, 1)
    futures = [api.loss(model, number) for model in (one, two) for number in (1, 2, 3)]
    engine.gate.set()
    for future in futures:
        api.result(future)
    assert engine.order == [one, two] * 3


# Identity


def test_the_same_request_again_is_the_same_future(make_api: MakeApi) -> None:
    """A resent body changes nothing: it gets the same request id, and the work is done once."""
    engine = RecordingEngine()
    api = make_api(engine)
    model = api.model()
    futures = [api.loss(model, 1) for _ in range(3)]
    assert len({future["request_id"] for future in futures}) == 1
    api.result(futures[0])
    assert api.loss(model, 1) == futures[0]
    assert len(engine.order) == 1


def test_another_body_under_a_used_number_is_409(api: Api) -> None:
    """A number identifies one request, also across operations; another body is 409
    without a retry.
    """
    model = api.model()
    api.result(api.loss(model, 1))
    other = api.call("forward_backward", loss_body(model, 1, loss_fn="ppo"))
    step = api.call("optim_step", {"model_id": model, "seq_id": 1, "adam_params": {}})
    assert (other.status_code, step.status_code) == (409, 409)
    assert other.headers["x-should-retry"] == "false"
    assert api.refused("optim_step", {"model_id": model, "seq_id": -1, "adam_params": {}})[0] == 409


def test_protobuf_requests_are_compared_by_what_they_say(api: Api) -> None:
    """Two encodings of one message are one request; a changed tensor is another."""
    model = api.model()
    weights = {"target_tokens": [101, 108], "weights": [1.0, 0.5]}
    swapped = dict(reversed(weights.items()))
    bodies = [
        proto_body(model, 1, data=[Datum(DATA[0].model_input, inputs)])
        for inputs in (weights, swapped)
    ]
    assert bodies[0] != bodies[1]
    futures = [api.ok("forward_backward", content=body, headers=PROTO_BODY) for body in bodies]
    assert futures[0] == futures[1]
    changed = proto_body(
        model, 1, data=[Datum(DATA[0].model_input, {**weights, "weights": [1.0, 0.25]})]
    )
    assert api.refused("forward_backward", content=changed, headers=PROTO_BODY)[0] == 409


OTHERS = {
    "token": Datum(ModelInput.from_ints([104, 102]), {"target_tokens": [101, 108]}),
    "length": Datum(ModelInput.from_ints([104, 101, 108]), {"target_tokens": [101, 108]}),
    "name": Datum(ModelInput.from_ints([104, 101]), {"weights": [101, 108]}),
    "type": Datum(
        ModelInput.from_ints([104, 101]), {"target_tokens": np.array([101, 108]).view(np.float64)}
    ),
    "shape": Datum(ModelInput.from_ints([104, 101]), {"target_tokens": [[101, 108]]}),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_a_number_belongs_to_one_message(api: Api, other: Datum) -> None:
    """A protobuf request that differs in tokens, or in name, type or shape of a tensor, is another
    request.
    """
    model = api.model()
    data = [Datum(ModelInput.from_ints([104, 101]), {"target_tokens": [101, 108]})]
    api.ok("forward_backward", content=proto_body(model, 1, data=data), headers=PROTO_BODY)
    changed = proto_body(model, 1, data=[other])
    assert api.refused("forward_backward", content=changed, headers=PROTO_BODY)[0] == 409


def test_models_are_created_once_for_each_number(api: Api) -> None:
    """A model's id follows from session and number; the same body again is the same future, another
    one 409.
    """
    session = api.session()
    first, again = api.create_model(session, 3), api.create_model(session, 3)
    assert first == again
    assert api.result(first)["model_id"] == f"{session}:train:3"
    body = {
        "session_id": session,
        "model_seq_id": 3,
        "base_model": "tinker/toy",
        "lora_config": {"rank": 5},
    }
    assert api.refused("create_model", body)[0] == 409


# Both wires


def test_a_loss_is_the_same_over_json_and_protobuf(api: Api) -> None:
    """Request and result may each be JSON or protobuf; the numbers agree."""
    model = api.model()
    plain = api.loss(model, 1)
    packed = api.ok("forward_backward", content=proto_body(model, 2), headers=PROTO_BODY)
    from_json = api.result(plain)
    answer = api.retrieve(packed, headers=PROTO)
    assert answer.headers["content-type"] == "application/x-protobuf"
    from_proto = proto.decode_loss_output(answer.content)
    logprobs = from_json["loss_fn_outputs"][0]["logprobs"]
    assert (logprobs["dtype"], logprobs["shape"]) == ("float32", [2])
    np.testing.assert_array_equal(
        from_proto.loss_fn_outputs[0]["logprobs"].values, np.float32(logprobs["data"])
    )
    assert from_proto.metrics == from_json["metrics"]
    assert from_proto.metrics["loss:sum"] == near(-sum(logprobs["data"]), 2)
    assert api.retrieve(packed).json()["metrics"] == from_json["metrics"]


def test_sparse_inputs_are_zero_where_nothing_is_listed(api: Api) -> None:
    """A CSR weight counts the listed positions only."""
    model = api.model()
    targets = {"data": [101, 108, 108, 111], "dtype": "int64", "shape": [2, 2]}
    sparse = {
        "data": [1.0],
        "dtype": "float32",
        "shape": [2, 2],
        "sparse_crow_indices": [0, 1, 1],
        "sparse_col_indices": [1],
    }
    one = {"model_input": {"chunks": [{"type": "encoded_text", "tokens": [104, 101]}]}}
    one["loss_fn_inputs"] = {"target_tokens": targets, "weights": sparse}
    result = api.result(api.loss(model, 1, data=[one]))
    logprobs = result["loss_fn_outputs"][0]["logprobs"]
    assert logprobs["shape"] == [2, 2]
    assert result["metrics"]["loss:sum"] == near(-logprobs["data"][1])


def test_forward_leaves_no_gradient(api: Api) -> None:
    """Both ways to request only the loss compute it and accumulate nothing."""
    model = api.model()
    plain = api.ok(
        "forward",
        {
            "forward_input": loss_body(model, 1)["forward_backward_input"],
            "model_id": model,
            "seq_id": 1,
        },
    )
    packed = api.ok(
        "forward_backward", content=proto_body(model, 2, forward_only=True), headers=PROTO_BODY
    )
    assert api.result(plain)["metrics"] == api.result(packed)["metrics"]
    assert api.result(api.step(model, 3))["metrics"]["grad_norm:mean"] == 0.0
    api.loss(model, 4)
    assert api.result(api.step(model, 5))["metrics"]["grad_norm:mean"] > 0.0


def test_compressed_bodies_are_read(api: Api) -> None:
    """zstd is accepted for any body; an unknown encoding is 415, invalid zstd 422."""
    zstandard = pytest.importorskip("zstandard")
    model = api.model()
    squeezed = zstandard.compress(proto_body(model, 1))
    headers = {**PROTO_BODY, "content-encoding": "zstd"}
    assert (
        "loss:sum"
        in api.result(api.ok("forward_backward", content=squeezed, headers=headers))["metrics"]
    )
    assert api.refused("forward_backward", content=b"xx", headers=headers)[0] == 422
    assert (
        api.refused("forward_backward", content=b"xx", headers={"content-encoding": "br"})[0] == 415
    )


def test_protobuf_is_refused_where_it_means_nothing(api: Api) -> None:
    """Bytes that are not a message are 422; protobuf for a JSON operation is 415."""
    assert api.refused("forward_backward", content=b"\xff\xff", headers=PROTO_BODY)[0] == 422
    assert api.refused("forward_backward", content=b"", headers=PROTO_BODY)[0] == 404
    assert api.refused("optim_step", content=b"", headers=PROTO_BODY)[0] == 415


def test_training_lowers_the_loss(api: Api) -> None:
    """Twenty pipelined steps on one sentence bring its loss down to a fraction."""
    model = api.model()
    text = list(b"hello hello hello")
    losses = []
    for index in range(20):
        losses.append(api.loss(model, 2 * index + 1, data=[datum(text[:-1], text[1:])]))
        api.step(model, 2 * index + 2, learning_rate=0.01)
    values = [api.result(future)["metrics"]["loss:sum"] for future in losses]
    assert values[-1] < 0.5 * values[0]


# Failures


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"loss_fn": "ppo"}, "is missing advantages, logprobs"),
        ({"data": []}, "no data"),
        ({"data": [datum([104], [101, 108])]}, "data[0]: target_tokens has shape [2]"),
        (
            {"data": [datum([104], [101]), datum([900], [1])]},
            "data[1]: model_input contains token id 900",
        ),
        ({"data": [datum([2**40], [1])]}, "data[0]: tokens must fit in 32 bits"),
        (
            {
                "data": [
                    {**datum([1], [1]), "model_input": {"chunks": [{"type": "dmel", "dmel": ""}]}}
                ]
            },
            "'dmel'",
        ),
    ],
)
def test_a_users_mistake_fails_its_request_only(
    api: Api, fields: dict[str, Any], said: str
) -> None:
    """Invalid data is a user error in the result, and the model continues."""
    model = api.model()
    category, error = api.failure(api.loss(model, 1, **fields))
    assert category == "user"
    assert said in error
    assert "loss:sum" in api.result(api.loss(model, 2))["metrics"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"loss_fn": "cross_entrophy"},
            "unknown loss_fn 'cross_entrophy'; this server has cross_entropy, ",
        ),
        ({"loss_fn": "cross_entrophy"}, "; did you mean 'cross_entropy'?"),
        (
            {"loss_fn_config": {"beta": 1.0}},
            "unknown loss_fn_config key 'beta'; cross_entropy takes none",
        ),
        (
            {"loss_fn": "ppo", "loss_fn_config": {"clip_low_treshold": 1.0}},
            "ppo takes clip_low_threshold, clip_high_threshold; did you mean 'clip_low_threshold'?",
        ),
    ],
)
def test_an_unknown_loss_is_refused_with_its_request(
    make_api: MakeApi, fields: dict[str, Any], said: str
) -> None:
    """An unknown loss or setting is 422 with the closest name; later requests do not wait for its
    number.
    """
    api = make_api(gap_seconds=10_000.0)
    model = api.model()
    # repeated: the same response
    for number, operation in ((1, "forward_backward"), (1, "forward_backward"), (2, "forward")):
        body = loss_body(model, number, **fields)
        if operation == "forward":
            body["forward_input"] = body.pop("forward_backward_input")
        status, detail = api.refused(operation, body)
        assert status == 422
        assert said in detail[0]["msg"]
    assert "loss:sum" in api.result(api.loss(model, 3))["metrics"]


def test_an_optimizer_that_is_not_there_is_refused(api: Api) -> None:
    """An unknown optimizer or version is refused when a model is created, with the known ones."""
    base = {"session_id": api.session(), "model_seq_id": 1, "base_model": "tinker/toy"}
    status, detail = api.refused(
        "create_model", {**base, "optimizer_config": {"type": "lion", "beta": 1}}
    )
    assert (status, "'adamw' and 'dimuon'" in detail) == (400, True)
    status, detail = api.refused(
        "create_model", {**base, "optimizer_config": {"type": "dimuon", "version": 2}}
    )
    assert (status, "version 2" in detail) == (400, True)


DIMUON = {"type": "dimuon", "learning_rate": 0.01, "grad_clip_norm": 0.0, "beta1": 0.9}


def test_a_dimuon_model_learns(api: Api) -> None:
    """Dimuon steps lower the loss, and the model's information names its optimizer."""
    session = api.session()
    model = api.model(session, optimizer_config={"type": "dimuon", "version": 1})
    assert api.ok("get_info", {"model_id": model})["optimizer_config"] == {
        "type": "dimuon",
        "version": 1,
    }
    losses: list[float] = []
    for number in range(1, 11, 2):
        losses.append(api.result(api.loss(model, number))["metrics"]["loss:sum"])
        step = {"model_id": model, "seq_id": number + 1, "optimizer_params": DIMUON}
        assert "grad_norm:mean" in api.result(api.ok("optim_step", step))["metrics"]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


def test_a_model_keeps_to_its_optimizer(api: Api) -> None:
    """Parameters of another optimizer, or of two, fail the step and name the model's optimizer."""
    session = api.session()
    adam, dimuon = api.model(session), api.model(session, 1, optimizer_config={"type": "dimuon"})
    wrong = [
        (adam, {"optimizer_params": DIMUON}),
        (adam, {"optimizer_params": {"type": "lion"}}),
        (dimuon, {"adam_params": {}}),
        (dimuon, {}),
        (dimuon, {"adam_params": {}, "optimizer_params": DIMUON}),
    ]
    for model, params in wrong:
        category, error = api.failure(api.ok("optim_step", {"model_id": model, **params}))
        assert category == "user"
        assert ("'adamw'" if model == adam else "'dimuon'") in error


class CrashingEngine(ToyEngine):
    """An engine that fails in unexpected ways."""

    def __init__(self) -> None:
        super().__init__(vocabulary=512)

    def optim_step(self, adapter_id: str, params: Adam) -> dict[str, float]:
        raise ZeroDivisionError("the engine tripped")


def test_a_crash_of_the_engine_is_the_servers_fault_and_survived(make_api: MakeApi) -> None:
    """An unexpected exception becomes a failed future with its text; the next request is served."""
    api = make_api(CrashingEngine())
    model = api.model()
    assert api.failure(api.step(model, 1)) == ("server", "ZeroDivisionError: the engine tripped")
    assert "loss:sum" in api.result(api.loss(model, 2))["metrics"]


def test_a_model_that_was_not_created_says_why(make_api: MakeApi) -> None:
    """Requests after a failed creation fail with its reason."""
    api = make_api(FullEngine())
    session = api.session()
    future = api.create_model(session, lora_config={"rank": 13})
    assert "no room for rank 13" in api.failure(future)[1]
    category, error = api.failure(api.loss(future["model_id"], 1))
    assert category == "user"
    assert "was not created: there is no room for rank 13" in error
    assert "no room for rank 13" in api.refused("get_info", {"model_id": future["model_id"]})[1]


def test_an_engine_that_cannot_be_opened_is_reported(make_api: MakeApi) -> None:
    """Requests that need the engine fail with the reason why it cannot be opened; the others are
    answered.
    """
    api = make_api()
    api.state.served.models[0]._open = lambda: (_ for _ in ()).throw(OSError("no such model"))
    status, detail = api.refused("get_server_capabilities")
    assert (status, detail) == (500, "the model could not be loaded: no such model")
    assert api.ok("healthz") == {"status": "ok"}


def test_base_models_of_other_names_are_a_choice(make_api: MakeApi) -> None:
    """A name other than the loaded model's is 400 by default, and served under that name where the
    setting allows it.
    """
    strict, lenient = make_api(), make_api(any_base_model=True)
    body = {"session_id": strict.session(), "model_seq_id": 0, "base_model": "org/other"}
    status, detail = strict.refused("create_model", body)
    assert (status, "'tinker/toy'" in detail) == (400, True)
    model = lenient.model(base_model="org/other")
    assert lenient.ok("get_info", {"model_id": model})["model_data"]["model_name"] == "org/other"


def test_an_ended_session_finishes_what_was_submitted(make_api: MakeApi) -> None:
    """Requests accepted before finish still run; those behind a gap fail; the adapter is dropped
    afterwards.
    """
    engine = GatedEngine()
    api = make_api(engine)
    session = api.session()
    model = api.model(session)
    running, queued, stranded = api.loss(model, 1), api.save(model, 2, "last"), api.step(model, 9)
    assert engine.entered.wait(30)
    api.ok("finish_session", {"reason": {"type": "success"}, "detail": None}, session_id=session)
    engine.gate.set()
    assert "metrics" in api.result(running)
    assert api.result(queued)["path"].endswith("/weights/last")
    assert "has ended" in api.failure(stranded)[1]
    api.state.close()
    with pytest.raises(EngineError):
        engine.snapshot(model)


def test_an_engine_error_is_reported_unchanged(make_api: MakeApi) -> None:
    """The text of an EngineError reaches the user unchanged."""

    class Picky(ToyEngine):
        def forward_backward(self, *args: Any, **options: Any) -> LossResult:
            raise EngineError("data[3]: not today")

    api = make_api(Picky(vocabulary=512))
    assert api.failure(api.loss(api.model(), 1)) == ("user", "data[3]: not today")


def test_adam_parameters_default_as_the_contract_says(make_api: MakeApi) -> None:
    """A step without parameters uses the defaults of the contract, one with some
    keeps the others.
    """
    seen: list[Adam] = []

    class Listening(ToyEngine):
        def optim_step(self, adapter_id: str, params: Adam) -> dict[str, float]:
            seen.append(params)
            return super().optim_step(adapter_id, params)

    api = make_api(Listening(vocabulary=512))
    model = api.model()
    api.result(api.ok("optim_step", {"model_id": model, "seq_id": 1}))
    api.result(api.step(model, 2, learning_rate=0.5, grad_clip_norm=1.0))
    assert seen == [Adam(), attrs.evolve(Adam(), learning_rate=0.5, grad_clip_norm=1.0)]
