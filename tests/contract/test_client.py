"""The client against the document: every operation, over real connections, each request and each
answer judged at the door.

The tests in tests/client are judged too, on their wire.
"""

from __future__ import annotations

import datetime
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
from click.testing import CliRunner
from starlette.types import ASGIApp
from support.contract import ROOT, load, the_contract
from support.derived_calls import derive_calls
from support.judge import Judge, Judging, judged_server
from support.recordings import exchanges
from tinker_wire import models
from tinker_wire.operations import OPERATIONS

import tinker
from tinker import checkpoints, types
from tinker._basics import config as _config
from tinker.cli import main
from tinker.local import Settings, State, create_app
from tinker.local.engines.toy import ToyEngine
from tinker.testing import SteppedClock

KEY = "tml-key"
PROMPT = tinker.ModelInput.from_ints([5, 6, 7])
DATUM = tinker.Datum(PROMPT, {"target_tokens": [6, 7, 8], "weights": [1.0, 0.5, 1.0]})  # type: ignore[dict-item]
POLICY = {
    "target_tokens": [6, 7, 8],
    "logprobs": [-1.0, -2.0, -3.0],
    "advantages": [1.0, 0.0, -1.0],
}
POLICY_DATUM = tinker.Datum(PROMPT, POLICY)  # type: ignore[arg-type]
ADAM = tinker.AdamParams(learning_rate=1e-3)
SECONDS = 30


@attrs.frozen
class Place:
    """Where a scenario takes place."""

    url: str
    folder: Path

    def service(self, **arguments: Any) -> tinker.ServiceClient:
        return tinker.ServiceClient(base_url=self.url, api_key=KEY, project_id="p", **arguments)


# ---------------------------------------------------------------------------------------- scenarios


def training(place: Place) -> None:
    """A run to its checkpoints and back, with losses in protobuf, compressed, and custom."""
    with place.service(
        user_metadata={"who": "me"}, display_name="contract", telemetry=True
    ) as service:
        service.get_server_capabilities()
        run = service.create_lora_training_client(
            "tinker/toy", rank=4, seed=1, user_metadata={"k": "v"}
        )
        run.forward_backward([DATUM], "cross_entropy")
        run.forward_backward_custom(
            [DATUM], lambda data, logprobs: (-sum(part.sum() for part in logprobs), {})
        )
        run.optim_step(ADAM)
        run.optim_step(types.DimuonParams(learning_rate=0.1)).exception(SECONDS)
        run.forward([POLICY_DATUM, POLICY_DATUM], "ppo", {"clip_low_threshold": 0.5}).result(
            SECONDS
        )
        run.save_state("a", ttl_seconds=7200, user_metadata={"k": "v"}).result(SECONDS)
        path = run.save_state("a", overwrite=True).result(SECONDS).path
        run.save_weights_external("b").result(SECONDS)
        for load in (
            service.create_training_client_from_state,
            service.create_training_client_from_state_with_optimizer,
        ):
            load(path).result(SECONDS)
        run.unload_model().result(SECONDS)


def total(logprobs: Any, weights: Any) -> tuple[Any, dict[str, Any]]:
    """Return a loss that can be traced."""
    loss = -(logprobs * weights).sum()
    return loss, {"custom/nll:sum": loss}


def custom_loss(place: Place) -> None:
    """A loss that the server computes."""
    service = place.service()
    handle = service.create_custom_loss(total, {"logprobs": 1, "weights": 1}).result(SECONDS)
    run = service.create_lora_training_client("tinker/toy")
    run.forward_backward_custom([DATUM], handle).result(SECONDS)
    service.close().result(SECONDS)


def sampling(place: Place) -> None:
    """Samples from base models, from saved and unsaved weights, and by copies."""
    service = place.service()
    run = service.create_lora_training_client("tinker/toy")
    path = run.save_weights_for_sampler("s").result(SECONDS).path
    params = tinker.SamplingParams(max_tokens=3, stop=["x"], seed=1, top_k=5)
    samplers = [
        service.create_sampling_client(base_model="tinker/toy"),
        service.create_sampling_client(model_path=path, record_stability_info=True),
        run.save_weights_and_get_sampling_client(),
        run.save_weights_and_get_sampling_client(kind="inflight"),
    ]
    for sampler in samplers:
        sampler.get_base_model()
        sampler.sample(
            PROMPT, 2, params, include_prompt_logprobs=True, topk_prompt_logprobs=1
        ).result(SECONDS)
        sampler.compute_logprobs(PROMPT, 2).result(SECONDS)
    copy: tinker.SamplingClient = pickle.loads(pickle.dumps(samplers[0]))
    copy.sample(PROMPT, 1, params).result(SECONDS)
    assert list(copy.sample_stream(PROMPT, 2, params))
    targets = tinker.TensorData([6, -1], "int64", [2, 1])
    samplers[0].sample(
        PROMPT, 1, params, target_prompt_logprobs=targets, prompt_alt_tokens_k=1
    ).result(SECONDS)
    service.close("errored", "on purpose").result(SECONDS)


def giving_up(place: Place) -> None:
    """Cancel a sample whose result is no longer wanted."""
    service = place.service()
    sampler = service.create_sampling_client(base_model="tinker/toy").result(SECONDS)
    futures = [
        sampler.sample(PROMPT, 1, tinker.SamplingParams(max_tokens=20_000)) for _ in range(20)
    ]
    futures[0].result(SECONDS)
    for future in futures:
        future.cancel()
    service.close().result(SECONDS)


def older_wire(place: Place) -> None:
    """The same in JSON, as servers of 2025 take it."""
    service = place.service(wire="json")
    run = service.create_lora_training_client("tinker/toy")
    run.forward_backward([DATUM], "cross_entropy").result(SECONDS)
    run.forward([POLICY_DATUM], "importance_sampling", {}).result(SECONDS)
    service.create_sampling_client(base_model="tinker/toy").sample(
        PROMPT, 1, tinker.SamplingParams(max_tokens=2)
    ).result(SECONDS)
    service.close().result(SECONDS)


def long_session(place: Place) -> None:
    """A long session: heartbeats and refreshed settings."""
    clock = SteppedClock()
    service = place.service(clock=clock.clock())
    service.create_lora_training_client("tinker/toy").result(SECONDS)
    clock.advance(11)
    clock.advance(301)
    service.close().result(SECONDS)


def keeping(place: Place) -> None:
    """What the server keeps, as far as `untried` has no call for it."""
    service = place.service(clock=SteppedClock().clock())
    run = service.create_lora_training_client("tinker/toy").result(SECONDS)
    path = run.save_weights_for_sampler("s").result(SECONDS).path
    external = run.save_weights_external("e").result(SECONDS).path
    rest = service.create_rest_client()
    rest.get_external_weights_urls(str(external)).result(SECONDS)
    rest.copy_weights(path, weights_access_token="secret").result(SECONDS)
    rest.get_checkpoint_archive_url_from_tinker_path(path).result(SECONDS)
    rest.export_session_trace(run.model_id.partition(":train:")[0]).result(SECONDS)
    upload = rest.external_weights_upload_start(
        "tinker/toy", tinker.LoraConfig(rank=4), "p"
    ).result(SECONDS)
    with pytest.raises(tinker.BadRequestError, match="missing"):
        rest.external_weights_upload_finish(upload.upload_id).result(SECONDS)
    folder = (
        checkpoints.download(str(external), place.folder, service=service)
        .result(SECONDS)
        .destination
    )
    checkpoints.upload(
        folder, base_model="tinker/toy", lora_config=tinker.LoraConfig(rank=32), service=service
    ).result(SECONDS)
    with pytest.warns(tinker.errors.ExperimentalWarning):
        rest.search_checkpoints(
            models.CheckpointSearchRequest(checkpoint_type="training", limit=5)
        ).result(SECONDS)
    with pytest.warns(tinker.errors.ExperimentalWarning):
        rest.search_sessions(
            models.SessionSearchRequest(statuses=[models.ActiveSessionStatusQuery()], limit=5)
        ).result(SECONDS)
    service.close().result(SECONDS)


def administration(place: Place) -> None:
    """The operations for an organization."""
    admin = tinker.AdminClient(base_url=place.url, api_key=KEY)
    now = datetime.datetime.now(datetime.UTC).replace(minute=0, second=0, microsecond=0)
    admin.get_audit_log(event_type="checkpoints", day=now.date()).result(SECONDS)
    admin.get_billing_usage(now - datetime.timedelta(days=1), now).result(SECONDS)
    admin.get_current_checkpoint_storage_usage(project_id="p").result(SECONDS)


def untried(place: Place, asked: set[str]) -> None:
    """The operations of no other scenario, derived from the contract."""
    service = place.service(clock=SteppedClock().clock())
    run = service.create_lora_training_client("tinker/toy").result(SECONDS)
    path = run.save_weights_for_sampler("u").result(SECONDS).path
    sampler = service.create_sampling_client(model_path=path).result(SECONDS)
    known = {
        "session_id": run.model_id.partition(":train:")[0],
        "training_run_id": run.model_id,
        "checkpoint_id": path.partition(f"{run.model_id}/")[2],
        "sampler_id": str(sampler._sampling_session_id),
        "tinker_path": path,
    }
    clients = {
        "rest": service.create_rest_client(),
        "admin": tinker.AdminClient(base_url=place.url, api_key=KEY),
    }
    for call in derive_calls(the_contract(), without=asked):
        call.make(clients[call.client], known)
    service.close().result(SECONDS)


def command_line(place: Place) -> None:
    """The operations that only commands use: describe a key, check the server, and revoke a key."""
    credentials = place.folder / ".tinker" / "credentials.json"
    environment = {"HOME": str(place.folder), "TINKER_BASE_URL": place.url}

    def tinker_command(*arguments: str, typed: str = "", **more: str) -> None:
        result = CliRunner().invoke(main, arguments, input=typed, env=environment | more)
        assert result.exit_code == 0, result.output

    with pytest.MonkeyPatch.context() as patch:
        # keys are stored for the hosted service only
        patch.setattr(_config, "HOSTED_URL", place.url)
        tinker_command("auth", "login", typed=f"{KEY}\n")
        tinker_command("doctor")
        stored = json.loads(credentials.read_text())
        stored["keys"][stored["default"]]["type"] = "generated"
        credentials.write_text(json.dumps(stored))
        tinker_command("auth", "logout")


#: After these come the remaining operations, and then the command line, which ends the key.
SCENARIOS = [
    training,
    custom_loss,
    sampling,
    giving_up,
    older_wire,
    long_session,
    keeping,
    administration,
]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    """Return the judge after all scenarios, on a server with every optional demand on a client."""
    folder = tmp_path_factory.mktemp("place")
    wishes = models.ClientConfigResponse(
        pjwt_auth_enabled=True,
        proto_compress_fwdbwd=True,
        sample_use_retrieve_futures=True,
        sample_join_sampling_session=True,
        custom_loss_server_side=True,
        fwdbwd_max_chunk_len=1,
    )
    settings = Settings(
        data_dir=folder / "server",
        api_key=KEY,
        hold_seconds=0.2,
        client_config=wishes,
        client_dynamic_config=models.ClientDynamicConfigResponse(sample_cancel_enabled=True),
    )
    judge = Judge()
    with (
        judged_server(State(ToyEngine, settings), judge) as url,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name in ("TINKER_API_KEY", "TINKER_BASE_URL", "TINKER_CREDENTIAL_CMD"):
            patch.delenv(name, raising=False)
        for scenario in SCENARIOS:
            scenario(Place(url, folder))
        untried(Place(url, folder), judge.asked)
        command_line(Place(url, folder))
    return judge


def test_every_request_fits(judged: Judge) -> None:
    """Path, query, headers and body of every request of the client fit the document."""
    # `tinker doctor` asks with a method that no operation has, to see which paths there are
    probes = "PATCH "
    assert [fault for fault in judged.bad_requests if not fault.startswith(probes)] == []


def test_every_header_of_recorded_clients_is_sent(judged: Judge) -> None:
    """A header that every recorded request of an operation has is in each of ours."""
    parameters = judged.contract.document["components"]["parameters"].values()
    known = {item["name"].lower() for item in parameters if item["in"] == "header"}
    wanted: dict[str, set[str]] = {}
    for one in exchanges():
        if one.reading == "sent" and one.path.startswith("/api/"):
            operation = judged.contract.find(one.method, one.path)
            names = known & {name.lower() for name in one.request.headers}
            wanted[operation.id] = wanted.get(operation.id, names) & names
    assert "x-idempotency-key" in wanted["optim_step"]
    assert {
        name: lost
        for name, names in wanted.items()
        if (lost := names - judged.headers.get(name, names))
    } == {}


def test_every_answer_fits(judged: Judge) -> None:
    """Every response to the client fits the document, each result that of its request."""
    assert judged.bad_answers == []


def test_every_operation_is_asked(judged: Judge) -> None:
    """The client calls every operation with success."""
    assert judged.asked == OPERATIONS.keys()
    assert judged.succeeded >= judged.asked


# ------------------------------------------------------------------------------------------- faults


class Clumsy(httpx.AsyncBaseTransport):
    """The wire of a client that has a fault: requests of one operation are changed on it."""

    def __init__(
        self, app: ASGIApp, operation: str, change: Callable[[httpx.Request, bytes], httpx.Request]
    ) -> None:
        self._inner = httpx.ASGITransport(app)
        self._path, self._change = OPERATIONS[operation].path, change

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        content = await request.aread()
        if request.url.path == self._path:
            request = self._change(request, content)
        return await self._inner.handle_async_request(request)


def again(
    request: httpx.Request, content: bytes, *, path: str | None = None, **headers: str | None
) -> httpx.Request:
    """Return a request with another content, path or header (None: without it)."""
    kept = {name: value for name, value in request.headers.items() if name != "content-length"}
    given = kept | {name.replace("_", "-"): value for name, value in headers.items()}
    url = request.url if path is None else request.url.copy_with(raw_path=path.encode())
    return httpx.Request(
        request.method,
        url,
        headers={k: v for k, v in given.items() if v is not None},
        content=content,
    )


def body(
    change: Callable[[dict[str, Any]], object],
) -> Callable[[httpx.Request, bytes], httpx.Request]:
    """Change the JSON of a request."""

    def apply(request: httpx.Request, content: bytes) -> httpx.Request:
        value = json.loads(content)
        change(value)
        return again(request, json.dumps(value).encode())

    return apply


FAULTS = {
    "a body": ("optim_step", body(lambda v: v["adam_params"].pop("eps")), "eps"),
    "a header": ("create_model", lambda r, c: again(r, c, x_api_key=None), "X-API-Key"),
    "a query": ("get_info", lambda r, c: again(r, c, path="/api/v1/get_info?v=1"), "v"),
    "a path": (
        "get_info",
        lambda r, c: again(r, c, path="/api/v1/get-info"),
        "not in the contract",
    ),
    "a message": ("forward_backward", lambda r, c: again(r, c[:-2]), "ForwardBackwardRequest"),
}


@pytest.mark.parametrize(("operation", "change", "words"), FAULTS.values(), ids=FAULTS)
def test_a_fault_of_the_client_is_found(
    tmp_path: Path,
    operation: str,
    change: Callable[[httpx.Request, bytes], httpx.Request],
    words: str,
) -> None:
    """A change of any part of a request is seen, also where the server takes it."""
    assert words in bad_requests(tmp_path, operation, change)[0]


def test_a_client_without_a_fault_has_none(tmp_path: Path) -> None:
    """The same requests, not changed, fit."""
    assert bad_requests(tmp_path, "create_model", again) == []


def bad_requests(
    folder: Path, operation: str, change: Callable[[httpx.Request, bytes], httpx.Request]
) -> list[str]:
    """Return the judge's faults of a short run in which one operation is changed."""
    state, judge = State(ToyEngine, Settings(data_dir=folder, hold_seconds=0.2)), Judge()
    transport = Clumsy(Judging(create_app(state), judge), operation, change)
    clock = SteppedClock()
    service = tinker.ServiceClient(
        base_url="http://server", api_key=KEY, transport=transport, clock=clock.clock()
    )
    run = service.create_lora_training_client("tinker/toy")
    run.forward_backward([DATUM], "cross_entropy")
    run.optim_step(ADAM)
    run.save_state("a").exception(SECONDS)
    service.close().result(SECONDS)
    state.close()
    return judge.bad_requests


def test_every_header_is_sent() -> None:
    """The client sets each header of the document, or the message says where to do so."""
    files = [path for name in ("*.py", "_*/**/*.py") for path in (ROOT / "tinker").glob(name)]
    sources = "".join(path.read_text(encoding="utf-8") for path in files).lower()
    headers = [
        one["name"] for one in load()["components"]["parameters"].values() if one["in"] == "header"
    ]
    assert [
        f"{name}: pass {argument} to the function of tinker_wire.api in "
        "tinker/_training/requests.py or tinker/_sampling/, or set "
        "it in tinker/_http/"
        for name in headers
        if (argument := name.lower().replace("-", "_")) not in sources
        and f'"{name.lower()}"' not in sources
    ] == []
