"""Profiles: the servers that the local server imitates, tested through their clients' requests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.api import PROTO, Api, GatedEngine, MakeApi, datum, loss_body, sample_body
from support.tolerances import assert_near, near
from tinker_wire.operations import OPERATIONS

from tinker._wire import proto
from tinker.local import close_in_process, in_process_app
from tinker.local.call import find_profile
from tinker.local.settings import Settings
from tinker.testing.servers import MINIMAL_JSON, PROFILES, SKYRL
from tinker.types.model_input import Datum, ModelInput
from tinker.types.tensor_data import TensorData

PROTO_BODY = {"content-type": "application/x-protobuf"}
CREATE = {"model_seq_id": 0, "base_model": "tinker/toy", "lora_config": {"rank": 4, "seed": 1}}


@pytest.fixture
def skyrl(make_api: MakeApi) -> Api:
    """Return a server like SkyRL's."""
    return make_api(profile="skyrl")


@pytest.fixture
def minimal(make_api: MakeApi) -> Api:
    """Return a server with the JSON core only."""
    return make_api(profile="minimal-json")


def packed(
    model: str, seq_id: int, *data: Datum, loss_fn: str = "cross_entropy", **options: Any
) -> bytes:
    given = data or (Datum(ModelInput.from_ints([104, 101]), {"target_tokens": [101, 108]}),)
    return b"".join(proto.encode_forward_backward(model, seq_id, given, loss_fn, **options))


# Choosing


def test_a_profile_is_chosen_by_name() -> None:
    """A profile is chosen by name or as an object, and sets the hold; unknown names are errors."""
    assert Settings(profile="skyrl").profile is find_profile(SKYRL) is SKYRL
    assert [Settings(profile=name).hold_seconds for name in PROFILES] == [
        30.0,
        300.0,
        30.0,
        30.0,
        30.0,
    ]
    assert Settings(profile="skyrl", hold_seconds=1.0).hold_seconds == 1.0
    with pytest.raises(ValueError, match="official, skyrl, minimal-json"):
        Settings(profile="tuft")


def test_a_profile_is_chosen_in_a_local_url(tmp_path: Path) -> None:
    """The query of a local:// URL chooses the profile; any other query is refused."""
    plain, other = (
        in_process_app(url, tmp_path) for url in ("local://toy", "local://toy?profile=skyrl")
    )
    assert plain is not other
    assert other is in_process_app("local://toy?profile=skyrl", tmp_path)
    for query, fault in {
        "profile=nothing": "profile",
        "engine=torch": "engine is 'torch'",
        "profile=skyrl&x": "profile",
    }.items():
        with pytest.raises(ValueError, match=fault):
            in_process_app(f"local://toy?{query}", tmp_path)
    close_in_process()


def test_profiles_name_operations_of_the_contract() -> None:
    """Every operation that a profile changes or removes exists in the contract."""
    for profile in PROFILES.values():
        assert (
            profile.absent.keys() | profile.requests.keys() | profile.answers.keys()
            <= OPERATIONS.keys()
        )
        assert not profile.absent.keys() & (profile.requests.keys() | profile.answers.keys())


@pytest.mark.parametrize("profile", [SKYRL, MINIMAL_JSON], ids=str)
def test_what_is_absent_is_absent(make_api: MakeApi, profile: Any) -> None:
    """Operations that the imitated server lacks are refused with its status."""
    api = make_api(profile=profile)
    path = {
        "session_id": "s",
        "sampler_id": "s",
        "training_run_id": "r",
        "checkpoint_id": "weights/c",
    }
    for name, status in profile.absent.items():
        found, detail = api.refused(name, {}, **path)
        assert (name, found) == (name, status)
        assert isinstance(detail, str)


def test_what_skyrl_lacks() -> None:
    """SkyRL lacks most of what is newer than 0.7.0, lists and usage, with odd statuses."""
    missing = {name for name, status in SKYRL.absent.items() if status == 404}
    assert {
        "client_dynamic_config",
        "finish_session",
        "save_weights_external",
        "list_user_checkpoints",
    } <= missing
    assert {
        "retrieve_futures",
        "cancel_future",
        "create_custom_loss",
        "auth_token",
        "get_session",
    } <= missing
    assert {name: status for name, status in SKYRL.absent.items() if status != 404} == {
        "publish_checkpoint": 405,
        "unpublish_checkpoint": 422,
        "set_checkpoint_ttl": 405,
        "get_external_weights_urls": 405,
    }


# SkyRL


def test_skyrl_names_things_its_own_way(skyrl: Api) -> None:
    """Ids have a kind and eight hexadecimal digits; request ids are consecutive numbers."""
    session = skyrl.session()
    created = skyrl.ok("create_model", {"session_id": session, **CREATE})
    assert re.fullmatch("session_[0-9a-f]{8}", session)
    assert re.fullmatch("model_[0-9a-f]{8}", created["model_id"])
    assert re.fullmatch("sampling_[0-9a-f]{8}", skyrl.sampler(session))
    step = skyrl.step(created["model_id"], 1)
    assert (created["request_id"], step["request_id"]) == ("1", "2")
    assert "metrics" in skyrl.result(step)
    assert skyrl.refused("retrieve_future", {"request_id": "99"})[0] == 404
    assert skyrl.refused("retrieve_future", {"request_id": "x"})[0] == 500


def test_skyrl_makes_a_new_model_each_time(skyrl: Api) -> None:
    """The client's number identifies nothing: the same request makes another model or sampler."""
    session = skyrl.session()
    body = {"session_id": session, **CREATE}
    one, other = (skyrl.ok("create_model", body) for _ in range(2))
    assert one["model_id"] != other["model_id"]
    assert skyrl.sampler(session) != skyrl.sampler(session)
    assert skyrl.result(one)["model_id"] == one["model_id"]


def test_skyrl_answers_with_its_own_fields(skyrl: Api) -> None:
    """Responses echo, omit and add fields as SkyRL's do."""
    session = skyrl.session()
    created = skyrl.ok("create_model", {"session_id": session, **CREATE})
    assert created == {
        "model_id": created["model_id"],
        "base_model": "tinker/toy",
        "lora_config": {"rank": 4, "seed": 1},
        "status": "created",
        "request_id": "1",
    }
    model = created["model_id"]
    assert skyrl.step(model, 1) == {"future_id": "2", "status": "pending", "request_id": "2"}
    assert skyrl.sample(skyrl.sampler(session)) == {
        "future_id": "3",
        "status": "pending",
        "request_id": "3",
    }
    assert skyrl.ok("client_config", {"sdk_version": "1"}) == {"pjwt_auth_enabled": False}
    capabilities = skyrl.ok("get_server_capabilities")
    assert capabilities["supported_models"] == [{"model_name": "tinker/toy"}]
    assert "dppo" in capabilities["supported_loss_fns"]
    info = skyrl.ok("get_info", {"model_id": model})
    data = {
        "base_model": "tinker/toy",
        "lora_config": {"rank": 4, "seed": None},
        "model_name": "tinker/toy",
    }
    assert info == {"model_id": model, "status": "created", "model_data": data}


def test_skyrl_creates_no_model_from_a_checkpoint(skyrl: Api) -> None:
    """``load_weights`` needs a model, and must be its first request."""
    session, model = skyrl.begin()
    skyrl.result(skyrl.step(model, 1, learning_rate=0.1))
    skyrl.result(skyrl.save(model, 2, "a"))
    path = f"tinker://{model}/weights/a"
    create = {
        "session_id": session,
        "model_seq_id": 1,
        "path": path,
        "optimizer": True,
        "type": "load_weights",
    }
    status, detail = skyrl.refused("load_weights", create)
    assert (status, detail[0]["loc"], detail[0]["type"]) == (422, ["body", "model_id"], "missing")
    late = {"model_id": model, "seq_id": 3, "path": path, "optimizer": False}
    assert skyrl.refused("load_weights", late) == (
        400,
        "LoadWeights is not permitted with seq_id 3",
    )
    fresh = {"model_id": skyrl.model(session), "seq_id": 1, "path": path}
    assert skyrl.result(skyrl.ok("load_weights", fresh)) == {"type": "load_weights"}


def test_skyrl_restores_the_optimizer_unless_told_otherwise(skyrl: Api) -> None:
    """A load restores the saved optimizer unless ``optimizer`` is false."""
    session, source = skyrl.begin()
    skyrl.loss(source, 1)
    skyrl.result(skyrl.step(source, 2, learning_rate=0.01))
    skyrl.result(skyrl.save(source, 3, "a"))

    def next_loss(optimizer: dict[str, bool] | None) -> float:
        model = source
        if optimizer is not None:
            model = skyrl.model(session)
            body = {
                "model_id": model,
                "seq_id": 1,
                "path": f"tinker://{source}/weights/a",
                **optimizer,
            }
            skyrl.result(skyrl.ok("load_weights", body))
        skyrl.loss(model, 4)
        skyrl.result(skyrl.step(model, 5, learning_rate=0.01))
        loss: float = skyrl.metrics(skyrl.loss(model, 6))["total_loss:sum"]
        return loss

    expected = next_loss(None)
    assert next_loss({"optimizer": True}) == next_loss({}) == expected
    assert next_loss({"optimizer": False}) != expected


def test_skyrl_polls_time_out(make_api: MakeApi) -> None:
    """A poll of a pending request is 408 with only a text, for old and new clients."""
    engine = GatedEngine()
    api = make_api(engine, profile="skyrl", hold_seconds=0)
    created = api.ok("create_model", {"session_id": api.session(), **CREATE})
    future = api.loss(created["model_id"], 1)
    for body in ({}, {"allow_metadata_only": True}):
        answer = api.call("retrieve_future", {"request_id": future["request_id"], **body})
        assert (answer.status_code, answer.json()) == (
            408,
            {"detail": "Timeout waiting for result"},
        )
    engine.gate.set()


def test_skyrl_runs_requests_as_they_arrive(skyrl: Api) -> None:
    """A number only identifies a repeated request: gaps are not waited for, nor is order."""
    model = skyrl.model()
    for number in (7, 3, 5):
        assert "metrics" in skyrl.result(skyrl.step(model, number))
    first = skyrl.loss(model, 9)
    assert skyrl.loss(model, 9) == first
    answer = skyrl.call("forward_backward", loss_body(model, 9, data=[datum([1], [2])]))
    assert (answer.status_code, answer.json()["detail"]) == (
        409,
        "Training request sequence number was reused",
    )
    assert "x-should-retry" not in answer.headers


def test_skyrl_has_its_own_metrics(skyrl: Api) -> None:
    """The metrics have no ``loss:sum``; each token's loss is returned with its log-probability."""
    model = skyrl.model()
    future = skyrl.ok("forward_backward", content=packed(model, 1), headers=PROTO_BODY)
    output = proto.decode_loss_output(skyrl.retrieve(future, headers=PROTO).content)
    assert output.loss_fn_output_type == "scalar"
    assert output.metrics.keys() == {"total_loss:sum", "num_tokens:sum"}
    fields = output.loss_fn_outputs[0]
    assert_near(fields["elementwise_loss"].to_numpy(), -fields["logprobs"].to_numpy())
    policy = datum(
        [104, 101], [101, 108], logprobs=[-1.0, -2.0], advantages=[1.0, -1.0], weights=[1.0, 0.0]
    )
    result = skyrl.result(skyrl.loss(model, 2, loss_fn="importance_sampling", data=[policy]))
    elementwise = result["loss_fn_outputs"][0]["elementwise_loss"]["data"]
    assert (
        result["metrics"]["pg_loss:sum"]
        == result["metrics"]["total_loss:sum"]
        == near(sum(elementwise), 2)
    )
    assert elementwise[1] == 0


def test_skyrl_has_adam_only(skyrl: Api) -> None:
    """A Dimuon model is created but its steps are 422; the gradient is never clipped."""
    session, model = skyrl.begin(optimizer_config={"type": "dimuon"})
    step = {
        "model_id": model,
        "seq_id": 1,
        "optimizer_params": {"type": "dimuon", "learning_rate": 0.1},
    }
    assert skyrl.refused("optim_step", step)[1][0]["loc"] == ["body", "adam_params"]
    models = [skyrl.model(session) for _ in range(2)]
    for name, clip in zip(models, (0.0, 1e-3)):
        skyrl.loss(name, 1)
        skyrl.result(skyrl.step(name, 2, learning_rate=0.1, grad_clip_norm=clip))
    after = [skyrl.metrics(skyrl.loss(name, 3))["total_loss:sum"] for name in models]
    assert after[0] == after[1]


def test_skyrl_lists_checkpoints_by_their_bare_names(skyrl: Api) -> None:
    """A listed checkpoint has four fields, a time without a zone and a name without its kind."""
    session, model = skyrl.begin()
    skyrl.result(skyrl.save(model, 1, "a", ttl_seconds=1))
    path = skyrl.result(skyrl.save_sampler(model, 2, path="s"))["path"]
    assert path == f"tinker://{model}/s"
    listed = skyrl.ok("list_checkpoints", training_run_id=model)["checkpoints"]
    assert {one["checkpoint_id"] for one in listed} == {"a", "s"}
    assert all(
        one.keys() == {"checkpoint_id", "checkpoint_type", "time", "tinker_path"} for one in listed
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?", listed[0]["time"])
    assert (
        skyrl.ok("get_sampler", sampler_id=skyrl.sampler(session, model_path=path))["base_model"]
        == "tinker/toy"
    )
    assert (
        len(
            skyrl.result(skyrl.ok("asample", {**sample_body(None), "model_path": path}))[
                "sequences"
            ]
        )
        == 1
    )
    info = {"base_model": "tinker/toy", "is_lora": True, "lora_rank": 4}
    assert skyrl.ok("weights_info", {"tinker_path": f"tinker://{model}/weights/a"}) == info
    assert skyrl.refused("delete_checkpoint", training_run_id=model, checkpoint_id="a")[0] == 400
    assert (
        skyrl.call("get_checkpoint_archive", training_run_id=model, checkpoint_id="s").status_code
        == 302
    )
    skyrl.ok("delete_checkpoint", training_run_id=model, checkpoint_id="sampler_weights/s")


def test_skyrl_shows_runs_without_their_checkpoints(skyrl: Api) -> None:
    """Listed runs have no checkpoints and no owner."""
    model = skyrl.model(user_metadata={"a": "b"})
    skyrl.result(skyrl.save(model, 1, "a"))
    (run,) = skyrl.ok("list_training_runs")["training_runs"]
    assert run == skyrl.ok("get_training_run", training_run_id=model)
    assert (run["model_owner"], run["last_checkpoint"], run["user_metadata"]) == (
        "default",
        None,
        None,
    )
    assert not run["last_request_time"].endswith("Z")


# The JSON core


def test_the_json_core_reads_and_writes_json_only(minimal: Api) -> None:
    """Protobuf bodies are 415; a client that accepts protobuf gets JSON all the same."""
    session, model = minimal.begin()
    minimal.refuses(
        415, "application/json", "forward_backward", content=packed(model, 1), headers=PROTO_BODY
    )
    answer = minimal.retrieve(minimal.loss(model, 1), headers=PROTO)
    assert answer.headers["content-type"] == "application/json"
    assert "loss:sum" in answer.json()["metrics"]
    sampler = minimal.sampler(session)
    future = minimal.sample(sampler, topk_sample_logprobs=3, prompt_alt_tokens_k=2)
    assert "sample_sequence_ids" not in future
    answer = minimal.retrieve(future, headers=PROTO)
    assert answer.json()["sequences"][0].get("topk_logprobs") is None


def test_the_json_core_says_pending_with_408(make_api: MakeApi) -> None:
    """A pending poll is 408 with a queue state; large results are never announced."""
    api = make_api(profile="minimal-json", hold_seconds=0, inline_result_bytes=1)
    created = api.create_model(api.session())
    api.wait(created)
    assert "model_id" in api.retrieve(created, metadata=True).json()
    future = api.step(created["model_id"], 5)
    answer = api.retrieve(future, metadata=True)
    assert answer.status_code == 408
    assert answer.json()["queue_state"] == "active"
    assert answer.json().keys() <= {"queue_state", "detail"}


def test_the_json_core_trains_and_resumes(minimal: Api) -> None:
    """A model is created and then loaded into; there is Adam only, newer fields have no effect."""
    session, model = minimal.begin(optimizer_config={"type": "dimuon"})
    minimal.loss(model, 1)
    minimal.step(model, 2, learning_rate=0.1)
    path = minimal.saved(model, 3, "a", ttl_seconds=1)
    create = {"session_id": session, "model_seq_id": 1, "path": path, "optimizer": True}
    assert minimal.refused("load_weights", create)[0] == 422
    load = {"model_id": minimal.model(session, 1), "seq_id": 1, "path": path, "optimizer": True}
    assert minimal.result(minimal.ok("load_weights", load))["path"] == path
    dimuon = {
        "model_id": model,
        "seq_id": 4,
        "optimizer_params": {"type": "dimuon", "learning_rate": 0.1},
    }
    assert minimal.refused("optim_step", dimuon)[0] == 422
    assert minimal.ok("get_server_capabilities") == {
        "supported_models": [{"model_name": "tinker/toy"}]
    }


BASIC = """
healthz create_session session_heartbeat get_server_capabilities telemetry create_model unload_model get_info forward
forward_backward optim_step save_weights save_weights_for_sampler load_weights weights_info get_training_run
create_sampling_session get_sampler asample retrieve_future
"""


def test_the_json_core_has_the_basic_operations_only() -> None:
    """The JSON core has the operations of a training script of late 2025."""
    assert OPERATIONS.keys() - MINIMAL_JSON.absent.keys() == set(BASIC.split())


SPARSE = TensorData([5], "int64", [2, 2], [0, 1, 1], [0])


THIN = Datum(ModelInput.from_ints([1, 2]), {"target_tokens": SPARSE})


STOP = "['body', 'sampling_params', 'stop']"


def saving(model: str, **name: str) -> dict[str, Any]:
    return {"model_id": model, "seq_id": 1, **name}


def sampling(sampler: str, **params: object) -> dict[str, Any]:
    return sample_body(sampler, params=params)


@pytest.mark.parametrize(
    ("operation", "body", "status", "words"),
    [
        *(
            (
                "forward_backward",
                lambda run, _, name=name: packed(run, 1, loss_fn=name),
                422,
                "literal_error",
            )
            for name in ("dro", "stable_reinforce", "custom")
        ),
        (
            "forward_backward",
            lambda run, _: packed(run, 1, THIN),
            422,
            "Sparse loss_fn_input tensors",
        ),
        (
            "forward_backward",
            lambda run, _: loss_body(run, 1, loss_fn="dppo"),
            422,
            "unknown loss_fn 'dppo'",
        ),
        (
            "forward_backward",
            lambda run, _: loss_body(run, 1, loss_fn_config={"beta": 1.0}),
            422,
            "beta",
        ),
        ("save_weights", lambda run, _: saving(run, path="a b"), 422, ""),
        ("save_weights_for_sampler", lambda run, _: saving(run, path="a b"), 422, ""),
        ("save_weights", lambda run, _: saving(run), 422, ""),
        ("save_weights_for_sampler", lambda run, _: saving(run), 422, ""),
        (
            "asample",
            lambda _, name: sampling(name, max_tokens=None),
            400,
            "max_tokens is currently required",
        ),
        ("asample", lambda _, name: sampling(name, max_tokens=0), 400, ""),
        ("asample", lambda _, name: sampling(name, stop="x"), 422, STOP),
        ("asample", lambda *_: sample_body("a:sample:0"), 400, ""),
    ],
)
def test_skyrl_refuses_what_it_does_not_know(
    skyrl: Api, operation: str, body: Any, status: int, words: str
) -> None:
    """Its losses, options and names are its own; a sample needs max_tokens and a list of stops."""
    session, model = skyrl.begin()
    sent = body(model, skyrl.sampler(session))
    if isinstance(sent, bytes):
        skyrl.refuses(status, words, operation, content=sent, headers=PROTO_BODY)
    else:
        skyrl.refuses(status, words, operation, sent)


def test_skyrl_samples_without_a_stop(skyrl: Api) -> None:
    """A sample without stops is taken; a sampler needs one source, and a name is not reused."""
    session = skyrl.session()
    options = {"topk_prompt_logprobs": 2, "prompt_alt_tokens_k": 3}
    future = skyrl.sample(skyrl.sampler(session), 1, params={"stop": []}, **options)
    result = skyrl.result(future)
    assert len(result["sequences"]) == 1
    assert result["prompt_logprobs"][0] is None
    body = {"session_id": session, "sampling_session_seq_id": 0}
    for source in ({}, {"base_model": "tinker/toy", "model_path": "tinker://a/b"}):
        assert skyrl.refused("create_sampling_session", {**body, **source})[0] == 400
    model = skyrl.model(session)
    skyrl.saved(model, 1, "a")
    again = skyrl.call("save_weights", {**saving(model, path="a"), "seq_id": 2, "overwrite": True})
    assert again.status_code == 409
    assert "x-should-retry" not in again.headers
