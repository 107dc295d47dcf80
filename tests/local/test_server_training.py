"""Training requests: order, identity by number, gaps, both wire formats, and failures."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
from support.api import (
    Api,
    Clock,
    FullEngine,
    GatedEngine,
    MakeApi,
    RecordingEngine,
    datum,
    loss_body,
    model_body,
    step_body,
)

from tinker._wire import proto
from tinker.local.engines.protocol import Adam, EngineError
from tinker.local.engines.toy import ToyEngine
from tinker.types.model_input import Datum, ModelInput

PROTO_BODY = {"content-type": "application/x-protobuf"}


def proto_body(model: str, seq_id: int, data: list[Datum]) -> bytes:
    return b"".join(proto.encode_forward_backward(model, seq_id, data, "cross_entropy"))


# Order


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
    """After ``gap_seconds`` what follows a missing number runs; the number itself is then 409."""
    api = make_api(gap_seconds=0.0)
    model = api.model()
    assert "metrics" in api.result(api.step(model, 5))
    status, detail = api.refused("optim_step", step_body(model, 4))
    assert status == 409
    assert "is stale" in detail
    assert "metrics" in api.result(api.step(model, 6))


def test_a_refusal_whose_answer_was_lost_is_repeated(api: Api) -> None:
    """The last refused request is answered alike when sent again; its number stays used up."""
    model = api.model()
    api.wait(api.save(model, 1, "taken"))
    again = {"model_id": model, "seq_id": 2, "path": "taken"}
    first = api.refused("save_weights", again)
    assert (first[0], "choose another name" in first[1]) == (409, True)
    assert api.refused("save_weights", again) == first
    assert "is stale" in api.refused("save_weights", {**again, "path": "free"})[1]
    assert "is stale" in api.refused("optim_step", step_body(model, 2))[1]
    assert "metrics" in api.result(api.step(model, 3))


def test_a_gap_is_waited_for_by_the_servers_clock(make_api: MakeApi) -> None:
    """A missing number that arrives within the server's timeout runs in its place."""
    engine, clock = RecordingEngine(), Clock()
    api = make_api(engine, clock=clock, gap_seconds=60.0)
    model = api.model()
    late = api.loss(model, 2, data=[datum([2], [2])])
    clock.seconds += 59.0
    early = api.loss(model, 1, data=[datum([1], [1])])
    api.results((late, early))
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
    api.results(futures)
    assert engine.order == [one, two] * 3


# Identity


def test_another_body_under_a_used_number_is_409(api: Api) -> None:
    """Another body under a used number is 409 without a retry, and so is a number below 0."""
    model = api.model()
    api.result(api.loss(model, 1))
    other = api.call("forward_backward", loss_body(model, 1, loss_fn="ppo"))
    assert (other.status_code, other.headers["x-should-retry"]) == (409, "false")
    assert api.refused("optim_step", step_body(model, -1))[0] == 409


def made(tokens: list[int], **inputs: Any) -> Datum:
    return Datum(ModelInput.from_ints(tokens), inputs)


SAME = made([104, 101], target_tokens=[101, 108], weights=[1.0, 0.5])


OTHERS = {
    "value": made([104, 101], target_tokens=[101, 108], weights=[1.0, 0.25]),
    "token": made([104, 102], target_tokens=[101, 108], weights=[1.0, 0.5]),
    "length": made([104, 101, 108], target_tokens=[101, 108], weights=[1.0, 0.5]),
    "name": made([104, 101], target_tokens=[101, 108], advantages=[1.0, 0.5]),
    "type": made(
        [104, 101],
        target_tokens=[101, 108],
        weights=np.array([1.0, 0.5], np.float32).view(np.int32),
    ),
    "shape": made([104, 101], target_tokens=[[101, 108]], weights=[1.0, 0.5]),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_number_belongs_to_one_message(api: Api, other: str) -> None:
    """Protobuf that says the same in another order is one request, any other tensor another one."""
    model = api.model()
    swapped = Datum(SAME.model_input, dict(reversed(SAME.loss_fn_inputs.items())))
    bodies = [proto_body(model, 1, data=[one]) for one in (SAME, swapped)]
    assert bodies[0] != bodies[1]
    futures = [api.ok("forward_backward", content=body, headers=PROTO_BODY) for body in bodies]
    assert futures[0] == futures[1]
    changed = proto_body(model, 1, data=[OTHERS[other]])
    assert api.refused("forward_backward", content=changed, headers=PROTO_BODY)[0] == 409


def test_bodies_that_cannot_be_read_are_refused(api: Api) -> None:
    """Bytes that are no message or no zstd are 422; another encoding, or protobuf for JSON, 415."""
    zstd, brotli = ({**PROTO_BODY, "content-encoding": name} for name in ("zstd", "br"))
    for content, headers, status in (
        (b"\xff\xff", PROTO_BODY, 422),
        (b"xx", zstd, 422),
        (b"xx", brotli, 415),
        (b"", PROTO_BODY, 404),
    ):
        assert api.refused("forward_backward", content=content, headers=headers)[0] == status
    assert api.refused("optim_step", content=b"", headers=PROTO_BODY)[0] == 415


# Both wires


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
    api.fails(said, api.loss(model, 1, **fields))
    assert "loss:sum" in api.metrics(api.loss(model, 2))


LOSSES = "unknown loss_fn 'cross_entrophy'; this server has cross_entropy, "


KEYS = "ppo takes clip_low_threshold, clip_high_threshold; did you mean 'clip_low_threshold'?"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"loss_fn": "cross_entrophy"}, LOSSES),
        ({"loss_fn": "cross_entrophy"}, "; did you mean 'cross_entropy'?"),
        (
            {"loss_fn_config": {"beta": 1.0}},
            "unknown loss_fn_config key 'beta'; cross_entropy takes none",
        ),
        ({"loss_fn": "ppo", "loss_fn_config": {"clip_low_treshold": 1.0}}, KEYS),
    ],
)
def test_an_unknown_loss_is_refused_with_its_request(
    make_api: MakeApi, fields: dict[str, Any], said: str
) -> None:
    """An unknown loss or setting is 422 with the closest name; nobody waits for its number."""
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
    assert "loss:sum" in api.metrics(api.loss(model, 3))


def test_an_optimizer_that_is_not_there_is_refused(api: Api) -> None:
    """An unknown optimizer or version is refused when a model is created, with the known ones."""
    for fields, said in (
        ({"type": "lion", "beta": 1}, "'adamw' and 'dimuon'"),
        ({"type": "dimuon", "version": 2}, "version 2"),
    ):
        api.refuses(400, said, "create_model", model_body(api.session(), optimizer_config=fields))


DIMUON = {"type": "dimuon", "learning_rate": 0.01, "grad_clip_norm": 0.0, "beta1": 0.9}


def test_a_model_keeps_to_its_optimizer(api: Api) -> None:
    """Parameters of another optimizer, or of two, fail the step and name the model's optimizer."""
    session, adam = api.begin()
    dimuon = api.model(session, 1, optimizer_config={"type": "dimuon"})
    wrong = [
        (adam, {"optimizer_params": DIMUON}),
        (adam, {"optimizer_params": {"type": "lion"}}),
        (dimuon, {"adam_params": {}}),
        (dimuon, {}),
        (dimuon, {"adam_params": {}, "optimizer_params": DIMUON}),
    ]
    for model, params in wrong:
        said = "'adamw'" if model == adam else "'dimuon'"
        api.fails(said, api.ok("optim_step", {"model_id": model, **params}))


class Crashing(ToyEngine):
    """An engine that fails in an unexpected way."""

    def optim_step(self, adapter_id: str, params: Adam) -> dict[str, float]:
        raise ZeroDivisionError("the engine tripped")


def test_a_crash_of_the_engine_is_the_servers_fault_and_survived(make_api: MakeApi) -> None:
    """An unexpected exception becomes a failed future with its text; the next request is served."""
    api = make_api(Crashing(vocabulary=512))
    model = api.model()
    assert api.failure(api.step(model, 1)) == ("server", "ZeroDivisionError: the engine tripped")
    assert api.metrics(api.loss(model, 2))


def test_a_model_that_was_not_created_says_why(make_api: MakeApi) -> None:
    """Requests after a failed creation fail with its reason."""
    api = make_api(FullEngine())
    future = api.create_model(api.session(), lora_config={"rank": 13})
    assert "no room for rank 13" in api.failure(future)[1]
    said = "was not created: there is no room for rank 13"
    api.fails(said, api.loss(future["model_id"], 1))
    assert "no room for rank 13" in api.refused("get_info", {"model_id": future["model_id"]})[1]


def test_base_models_of_other_names_are_a_choice(make_api: MakeApi) -> None:
    """Another name than the model's is 400, and that of the model where the setting allows it."""
    strict, lenient = make_api(), make_api(any_base_model=True)
    body = {"session_id": strict.session(), "model_seq_id": 0, "base_model": "org/other"}
    strict.refuses(400, "'tinker/toy'", "create_model", body)
    model = lenient.model(base_model="org/other")
    assert lenient.ok("get_info", {"model_id": model})["model_data"]["model_name"] == "org/other"


def test_an_ended_session_finishes_what_was_submitted(make_api: MakeApi) -> None:
    """What was accepted before the end still runs, or fails behind a gap; the adapter goes."""
    engine = GatedEngine()
    api = make_api(engine)
    session, model = api.begin()
    running, queued, stranded = api.loss(model, 1), api.save(model, 2, "last"), api.step(model, 9)
    assert engine.entered.wait(30)
    api.finish(session)
    engine.gate.set()
    assert "metrics" in api.result(running)
    assert api.result(queued)["path"].endswith("/weights/last")
    assert "has ended" in api.failure(stranded)[1]
    api.state.close()
    with pytest.raises(EngineError):
        engine.snapshot(model)


def test_adam_parameters_default_as_the_contract_says(make_api: MakeApi) -> None:
    """A step without parameters uses the contract's defaults, one with some keeps the others."""
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
