"""The calls of the recorded clients, file by file, made with this client.

Under the name of each recording is the function that does it.
"""

from __future__ import annotations

import base64
import datetime
import math
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

import tinker
from support.judge import served
from support.replay import KEY, SESSION, Replay, as_app
from tinker import types
from tinker._basics import config as _config
from tinker._loop import loop_thread
from tinker.cli import main
from tinker.testing import SteppedClock

SECONDS = 10
BASE = "Qwen/Qwen3-8B"
STATE = "tinker://run-1/weights/0001"
PROMPT = tinker.ModelInput.from_ints([1, 2, 3, 4])
ADAM = tinker.AdamParams()


@attrs.frozen
class Player:
    """Makes clients whose server plays a recording."""

    replay: Replay
    clock: SteppedClock
    folder: Path
    services: list[tinker.ServiceClient] = attrs.field(factory=list)

    def given(self, **more: Any) -> dict[str, Any]:
        """Return what every client is made with."""
        wire = {"base_url": "http://server", "transport": self.replay, "clock": self.clock.clock()}
        return {**wire, "api_key": KEY, **more}

    def service(self, **more: Any) -> tinker.ServiceClient:
        self.services.append(tinker.ServiceClient(**self.given(**more)))
        return self.services[-1]

    def training(self) -> tinker.TrainingClient:
        return self.service().create_lora_training_client(BASE).result(SECONDS)

    def sampler(self) -> tinker.SamplingClient:
        return self.service().create_sampling_client(base_model=BASE).result(SECONDS)

    def rest(self, **more: Any) -> tinker.RestClient:
        return tinker.RestClient(**self.given(**more))


CALLS: dict[str, Callable[[Player], object]] = {}


def recorded(*files: str) -> Callable[[Callable[[Player], None]], Callable[[Player], None]]:
    """Return the calls behind these files."""

    def remember(calls: Callable[[Player], None]) -> Callable[[Player], None]:
        CALLS.update(dict.fromkeys(files, calls))
        return calls

    return remember


def datum(tokens: list[int], **inputs: Any) -> tinker.Datum:
    """Return a datum whose targets are the next integers."""
    return tinker.Datum(
        tinker.ModelInput.from_ints(tokens),
        {"target_tokens": [one + 1 for one in tokens], **inputs},
    )


PAIR = datum([1, 2])
WEIGHTED = datum([1, 2, 3], weights=[0.0, 1.0, 1.0])
POLICY = datum([1, 2, 3], logprobs=[-0.1, -0.2, -0.3], advantages=[0.0, 1.0, 1.0])
FIVE = [datum([one, one + 1]) for one in range(5)]


def sample_each(sampler: tinker.SamplingClient, *samples: int, max_tokens: int = 4) -> None:
    """So many samples, one after the other."""
    for count in samples:
        sampler.sample(PROMPT, count, tinker.SamplingParams(max_tokens=max_tokens)).result(SECONDS)


CALLS |= {
    "billing_402": lambda player: player.training().optim_step(ADAM).result(SECONDS),
    "forward_backward_chunked_bytes": lambda player: train(player, FIVE),
    "jwt_refresh": lambda player: (
        player.rest(api_key="tml-test-key2").list_user_checkpoints().result(SECONDS)
    ),
    "redirect_audit": lambda player: (
        tinker.AdminClient(**player.given()).get_audit_log().result(SECONDS)
    ),
    "try_again": lambda player: train(player, [PAIR]),
}


def train(player: Player, data: list[tinker.Datum]) -> None:
    player.training().forward_backward(data, "cross_entropy").result(SECONDS)


# ----------------------------------------------------------------------------------------- sessions


def begun(service: tinker.ServiceClient) -> tinker.ServiceClient:
    """Return a service whose session exists."""
    service.create_sampling_client(base_model=BASE).result(SECONDS)
    return service


@recorded("session_start")
def session_start(player: Player) -> None:
    service = begun(
        player.service(user_metadata={"who": "me"}, project_id="proj-1", display_name="nightly run")
    )
    player.clock.advance(11)
    player.replay.wait_for(4)
    player.clock.advance(11)
    player.replay.wait_for(6)
    service.close(detail="bye").result(SECONDS)


@recorded("session_edge_cases")
def session_edge_cases(player: Player) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKER_TAGS", "b,a")
        service = begun(player.service())
    player.clock.advance(11)
    player.replay.wait_for(4)
    player.clock.advance(11)
    player.replay.wait_for(6)
    service.close().result(SECONDS)


@recorded("session_start_jwt")
def session_start_jwt(player: Player) -> None:
    rest = player.rest()
    rest.list_user_checkpoints().result(SECONDS)
    with pytest.raises(tinker.AuthenticationError):
        rest.list_user_checkpoints().result(SECONDS)
    begun(player.service()).close().result(SECONDS)


@recorded("auth_credential_cmd")
def auth_credential_cmd(player: Player) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKER_CREDENTIAL_CMD", "echo tml-from-cmd")
        begun(player.service()).close().result(SECONDS)


@recorded("auth_login")
def auth_login(player: Player) -> None:
    credentials = player.folder / ".tinker" / "credentials.json"

    def command(*arguments: str, typed: str = "") -> int:
        environment = {"HOME": str(player.folder), "TINKER_API_KEY": "", "TINKER_BASE_URL": ""}
        return CliRunner().invoke(main, arguments, input=typed, env=environment).exit_code

    with served(as_app(player.replay)) as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_config, "HOSTED_URL", url)  # keys are stored for the hosted service only
        assert command("auth", "login", typed="tml-x\n") == 0
        credentials.write_text(credentials.read_text().replace('"manual"', '"generated"'))
        assert command("auth", "logout") == 0
        assert command("auth", "login", typed="tml-y\n") != 0


# ----------------------------------------------------------------------------------------- training


@recorded("create_model")
def create_model(player: Player) -> None:
    service = player.service()
    create = service.create_lora_training_client
    create(BASE, 16, seed=7, train_unembed=False, user_metadata={"run": "a"}).result(SECONDS)
    other = create(BASE, optimizer=types.DimuonOptimizerConfig()).result(SECONDS)
    other.optim_step(types.DimuonParams(learning_rate=0.01)).result(SECONDS)


@recorded("forward_backward_cross_entropy")
def forward_backward_cross_entropy(player: Player) -> None:
    run = player.training()
    run.forward_backward([WEIGHTED, datum([5, 6])], "cross_entropy").result(SECONDS)
    run.forward([WEIGHTED], "cross_entropy").result(SECONDS)


@recorded("forward_backward_variants")
def forward_backward_variants(player: Player) -> None:
    torch = pytest.importorskip("torch")
    run = player.training()
    run.forward_backward([POLICY], "importance_sampling").result(SECONDS)
    run.forward_backward(
        [POLICY], "ppo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}
    ).result(SECONDS)
    run.forward_backward([POLICY], "stable_reinforce", {"kl_coeff": 0.01, "mode": "abc"}).result(
        SECONDS
    )
    targets, weights = torch.zeros(3, 4, dtype=torch.int64), torch.zeros(3, 4)
    targets[0, 1], weights[0, 1] = 9, 0.5
    inputs = [
        tinker.Datum(
            tinker.ModelInput.from_ints([1, 2, 3]), {"target_tokens": targets, "weights": weights}
        ),
        tinker.Datum(
            tinker.ModelInput.from_ints([1, 2]),
            {"target_tokens": torch.ones(2, 2, dtype=torch.int64), "weights": torch.ones(2, 2)},
        ),
        datum([1, 2], weights=[1.0, 1.0]),
        tinker.Datum(MEDIA, {"target_tokens": [1] * 11}),
    ]
    for one in inputs:
        run.forward_backward([one], "cross_entropy").result(SECONDS)


PNG = base64.b64decode("iVBORw0KGgp4eA==")
MEDIA = tinker.ModelInput(
    chunks=[
        types.EncodedTextChunk(tokens=[1, 2]),
        types.ImageChunk(data=PNG, format="png", expected_tokens=3),
        types.ImageChunk(data=PNG, format="jpeg", expected_tokens=1),
        types.DmelChunk(dmel=base64.b64decode("AwIFBAAAAAAAAAAAAAAAAAAAAAAAAAAA")),
    ]
)


@recorded("forward_backward_chunked_parallel", "forward_backward_chunked_serial")
def forward_backward_chunked(player: Player) -> None:
    run = player.training()
    output = run.forward_backward(FIVE, "cross_entropy")
    run.optim_step(ADAM).result(SECONDS)
    output.result(SECONDS)


@recorded("optim_step")
def optim_step(player: Player) -> None:
    run = player.training()
    run.optim_step(ADAM).result(SECONDS)
    run.optim_step(adam_params=ADAM).result(SECONDS)
    run.optim_step(types.DimuonParams(learning_rate=0.02, grad_clip_norm=1.0)).result(SECONDS)


def minus_sum(data: Any, logprobs: Any) -> Any:
    """Return the sum of all log-probabilities, negated."""
    return -sum(part.sum() for part in logprobs), {}


@recorded("custom_loss_client_side")
def custom_loss_client_side(player: Player) -> None:
    torch = pytest.importorskip("torch")
    run = player.training()
    step = run.forward_backward_custom(FIVE[:3], minus_sum)
    run.optim_step(tinker.AdamParams(grad_clip_norm=1.0)).result(SECONDS)
    step.result(SECONDS)
    weighted = datum([1, 2], weights=[1.0, 0.5])

    def weighted_sum(data: Any, logprobs: Any) -> Any:
        return -sum((part * torch.tensor([1.0, 0.5])).sum() for part in logprobs), {}

    run.forward_backward_custom([weighted, weighted], weighted_sum).result(SECONDS)


def fancy(logprobs: Any, weights: Any) -> Any:
    """Return a loss with an argument of every kind in its graph."""
    torch = pytest.importorskip("torch")
    torch.exp(logprobs)[..., :1] + 0.0
    loss = (-(logprobs * weights).clamp(max=math.inf).sum(dim=(0,))).to(torch.float32)
    return loss, {"custom/neg_ll:sum": loss}


@recorded("custom_loss_server_side")
def custom_loss_server_side(player: Player) -> None:
    pytest.importorskip("torch")
    service = player.service()
    run = service.create_lora_training_client(BASE).result(SECONDS)
    handle = service.create_custom_loss(fancy, {"logprobs": 1, "weights": 1}).result(SECONDS)
    weighted = datum([1, 2], weights=[1.0, 0.5])
    run.forward_backward_custom([weighted, weighted], handle).result(SECONDS)


@recorded("save_load_weights")
def save_load_weights(player: Player) -> None:
    service = player.service()
    run = service.create_lora_training_client(BASE).result(SECONDS)
    run.save_state("0001").result(SECONDS)
    run.save_state("0002", 7200, overwrite=True, user_metadata={"a": "b"}).result(SECONDS)
    run.save_weights_for_sampler("s1", 3600, {"x": "y"}).result(SECONDS)
    run.save_weights_and_get_sampling_client().result(SECONDS)
    run.save_weights_and_get_sampling_client(kind="inflight").result(SECONDS)
    run.save_weights_external("e1", 3600, ["age1abc"]).result(SECONDS)
    run.load_state(STATE).result(SECONDS)
    run.load_state_with_optimizer(STATE, "tok").result(SECONDS)
    second = service.create_training_client_from_state(STATE, user_metadata={"u": "v"}).result(
        SECONDS
    )
    service.create_training_client_from_state_with_optimizer(STATE, f"{BASE}:long").result(SECONDS)
    second.optim_step(ADAM).result(SECONDS)


# ----------------------------------------------------------------------------------------- sampling


@recorded("sample")
def sample(player: Player) -> None:
    service = player.service()
    sampler = service.create_sampling_client(base_model=BASE)
    sampler.sample(PROMPT, 2, tinker.SamplingParams(max_tokens=8, temperature=0.7)).result(SECONDS)
    for stop in (["\n\n"], [1, 2], [], "END"):
        params = tinker.SamplingParams(max_tokens=8, seed=5, stop=stop, top_k=10, top_p=0.9)
        sampler.sample(PROMPT, 1, params).result(SECONDS)
    one = tinker.SamplingParams(max_tokens=1)
    sampler.sample(PROMPT, 1, one, True, topk_prompt_logprobs=2, topk_sample_logprobs=3).result(
        SECONDS
    )
    sparse = tinker.TensorData([42], "int64", [3, 4], [0, 0, 0, 1], [0])
    sampler.sample(PROMPT, 1, one, target_prompt_logprobs=sparse, prompt_alt_tokens_k=2).result(
        SECONDS
    )
    dense = tinker.TensorData([5, 6, 7], "int64", [3, 1])
    sampler.sample(PROMPT, 1, one, target_prompt_logprobs=dense).result(SECONDS)
    saved = service.create_sampling_client(
        "tinker://run-1/sampler_weights/s1", record_stability_info=True
    )
    saved.get_base_model()
    saved.sample(POINTED, 1, tinker.SamplingParams()).result(SECONDS)


@recorded("topk")
def topk(player: Player) -> None:
    params = tinker.SamplingParams(max_tokens=2)
    result = (
        player.sampler()
        .sample(PROMPT, 2, params, topk_prompt_logprobs=2, topk_sample_logprobs=3)
        .result(SECONDS)
    )
    tables = [one.topk_logprobs_np for one in result.sequences]
    assert [None if one is None else one.token_ids.tolist() for one in tables] == [
        [[10, 11, 12], [20, 21, 22]],
        [[30, 31, 32]],
    ]


@recorded("spans")
def spans(player: Player) -> None:
    prompt, sampled = types.PromptProvenanceSpan, types.SampledProvenanceSpan
    of_input = [
        prompt(sequence_id="req-0009:0", offset=7, length=3),
        sampled(sequence_id="req-0009:0", length=2),
    ]
    of_targets = [
        prompt(sequence_id="req-0009:0", offset=8, length=2),
        sampled(sequence_id="req-0009:0", offset=0, length=1),
        sampled(sequence_id="req-0009:1", offset=4, length=2),
    ]
    told = datum([1, 2, 3, 4, 5]).with_provenance(of_input, of_targets)
    player.training().forward_backward([told], "cross_entropy").result(SECONDS)


POINTED = tinker.ModelInput(
    chunks=[
        types.EncodedTextChunk(tokens=[1, 2]),
        types.ImageChunk(data=base64.b64decode("iVBORw=="), format="png", expected_tokens=2),
        types.ImageAssetPointerChunk(format="jpeg", location="gs://b/x.jpg", expected_tokens=3),
        types.DmelChunk(dmel=base64.b64decode("AwIFBA==")),
    ]
)


@recorded("compute_logprobs")
def compute_logprobs(player: Player) -> None:
    sampler = player.sampler()
    sampler.compute_logprobs(PROMPT).result(SECONDS)
    sampler.compute_logprobs(PROMPT, 2).result(SECONDS)


@recorded("sample_clone_join", "sample_clone_random")
def sample_clones(player: Player) -> None:
    sampler = player.sampler()
    sample_each(sampler, 1)
    copy: tinker.SamplingClient = pickle.loads(pickle.dumps(sampler))
    sample_each(copy, 1, 1)


@recorded("sample_retrieve_futures")
def sample_retrieve_futures(player: Player) -> None:
    sampler = player.sampler()
    called = threading.Event()
    # the recording tells of all three, so none is sent before all are called
    loop_thread().call(lambda: called.wait(SECONDS))
    futures = [sampler.sample(PROMPT, 1, tinker.SamplingParams(max_tokens=4)) for _ in range(3)]
    called.set()
    for future in futures:
        future.result(SECONDS)
    player.replay.wait_for(10)


@recorded("sample_retrieve_futures_failed")
def sample_retrieve_futures_failed(player: Player) -> None:
    with pytest.raises(tinker.RequestFailedError, match="bad prompt"):
        sample_each(player.sampler(), 1)
    player.replay.wait_for(6)


@recorded("sample_429_backpressure")
def sample_429_backpressure(player: Player) -> None:
    future = player.sampler().sample(PROMPT, 1, tinker.SamplingParams(max_tokens=4))
    player.replay.wait_for(1)
    player.clock.advance(32)
    future.result(SECONDS)


@recorded("sample_410_resubmit")
def sample_410_resubmit(player: Player) -> None:
    """Without retries: the recorded client does not submit again what failed on the server."""
    sampler = player.service(max_retries=0).create_sampling_client(base_model=BASE).result(SECONDS)
    sample_each(sampler, 1)
    with pytest.raises(tinker.RequestFailedError, match="oom"):
        sample_each(sampler, 1)


@recorded("cancel")
def cancel(player: Player) -> None:
    service = player.service()
    sampler = service.create_sampling_client(base_model=BASE).result(SECONDS)
    for poll, cancelled in ((3, 4), (6, 7)):
        future = sampler.sample(PROMPT, 1, tinker.SamplingParams(max_tokens=4))
        player.replay.wait_for(poll)
        future.cancel()
        player.replay.wait_for(cancelled)
    service.close("interrupted", "ctrl-c").result(SECONDS)


# ----------------------------------------------------------------------------------------- failures


@recorded("submit_429_retry_after")
def submit_429_retry_after(player: Player) -> None:
    future = player.training().forward_backward([PAIR], "cross_entropy")
    player.replay.wait_for(8)
    player.clock.advance(62)
    future.result(SECONDS)


@recorded("json_instead_of_proto")
def one_pair_without_outputs(player: Player) -> None:
    error = player.training().forward_backward([PAIR], "cross_entropy").exception(SECONDS)
    assert isinstance(error, tinker.APIResponseValidationError)


@recorded("user_error", "retrieve_errors")
def three_failures(player: Player) -> None:
    run = player.training()
    calls: list[Callable[[], tinker.APIFuture[Any]]] = [
        lambda: run.forward_backward([PAIR], "cross_entropy"),
        lambda: run.optim_step(ADAM),
        lambda: run.save_state("x"),
    ]
    # each after the failure before it was received; called ahead, it might not be sent
    for call in calls:
        assert isinstance(call().exception(SECONDS), tinker.TinkerError)


@recorded("submit_503_should_not_retry")
def submit_503_should_not_retry(player: Player) -> None:
    run = player.training()
    run.optim_step(ADAM).result(SECONDS)
    run.save_state("a").result(SECONDS)


@recorded("submit_400_user_error")
def submit_400_user_error(player: Player) -> None:
    run = player.service(wire="proto").create_lora_training_client(BASE)
    with pytest.raises(tinker.BadRequestError, match="bad request"):
        run.forward_backward([PAIR], "cross_entropy").result(SECONDS)


@recorded("telemetry_rejected")
def telemetry_rejected(player: Player) -> None:
    rest = player.rest(api_key="tml-test-key-tel")
    for _ in range(2):
        with pytest.raises(tinker.NotFoundError):
            rest.list_user_checkpoints().result(SECONDS)


# -------------------------------------------------------------------------------------- stored data


@recorded("rest_client")
def rest_client(player: Player) -> None:
    rest = player.rest()
    rest.get_server_capabilities().result(SECONDS)
    rest.get_training_run("run-1").result(SECONDS)
    rest.get_training_run("run-1", "accessible").result(SECONDS)
    rest.get_training_run_by_tinker_path(STATE).result(SECONDS)
    rest.get_weights_info_by_tinker_path(STATE).result(SECONDS)
    rest.list_training_runs().result(SECONDS)
    rest.list_training_runs(5, 10, "accessible", "proj 1/é").result(SECONDS)
    rest.list_checkpoints("run-1").result(SECONDS)
    rest.list_user_checkpoints().result(SECONDS)
    rest.list_user_checkpoints(3, 6).result(SECONDS)
    rest.get_external_weights_urls("tinker://run-1/external_weights/e1").result(SECONDS)
    rest.delete_checkpoint("run-1", "weights/0001").result(SECONDS)
    rest.delete_checkpoint_from_tinker_path("tinker://run-1/sampler_weights/s1").result(SECONDS)
    rest.publish_checkpoint_from_tinker_path(STATE).result(SECONDS)
    rest.unpublish_checkpoint_from_tinker_path(STATE).result(SECONDS)
    rest.set_checkpoint_ttl_from_tinker_path(STATE, 86400).result(SECONDS)
    rest.set_checkpoint_ttl_from_tinker_path(STATE, None).result(SECONDS)
    rest.copy_weights(STATE, "proj-2", ttl_seconds=7200, weights_access_token="wtok").result(
        SECONDS
    )
    rest.get_session(SESSION).result(SECONDS)
    rest.list_sessions().result(SECONDS)
    rest.list_sessions(2, 2, "accessible").result(SECONDS)
    rest.assign_session_project(SESSION, "proj-1").result(SECONDS)
    rest.export_session_trace(SESSION).result(SECONDS)
    rest.get_sampler(f"{SESSION}:sample:0").result(SECONDS)
    search(rest)
    administration(rest)


def search(rest: tinker.RestClient) -> None:
    """Search sessions by their fields, and fetch the next page."""
    wanted = types.SessionSearchRequest(
        project_ids=["proj-1"],
        user_metadata={"a": "b"},
        display_name="nightly",
        owner=types.UserSearchOwner(owner_urns=["u1"]),
        statuses=[
            types.ClientFinishedSessionStatusQuery(reasons=["success"]),
            types.FailedSessionStatusQuery(),
        ],
    )
    begin = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    cursor = types.SessionSearchCursor(last_created_at=begin, last_session_id=SESSION)
    for request in (wanted, types.SessionSearchRequest(session_id=SESSION, cursor=cursor)):
        with pytest.warns(tinker.errors.ExperimentalWarning):
            rest.search_sessions(request).result(SECONDS)


def administration(admin: tinker.RestClient) -> None:
    """The operations for an organization."""
    day = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    admin.get_audit_log().result(SECONDS)
    admin.get_audit_log("checkpoints", day.date()).result(SECONDS)
    admin.get_billing_usage(day, day + datetime.timedelta(days=1)).result(SECONDS)
    admin.get_current_checkpoint_storage_usage().result(SECONDS)
    admin.get_current_checkpoint_storage_usage("proj-1").result(SECONDS)


# ---------------------------------------------------------------------------------- clients of 2025


@recorded("legacy_041")
def legacy_041(player: Player) -> None:
    pytest.importorskip("torch")
    service, run = legacy_training(player)
    run.load_state(STATE).result(SECONDS)
    sampler = legacy_sampling(service, run)
    service.create_training_client_from_state(STATE, user_metadata={}).result(SECONDS)
    legacy_rest(service.create_rest_client())
    legacy_end(player, run, sampler)


@recorded("legacy_070")
def legacy_070(player: Player) -> None:
    pytest.importorskip("torch")
    service, run = legacy_training(player)
    run.load_state(STATE).result(SECONDS)
    run.load_state_with_optimizer(STATE).result(SECONDS)
    sampler = legacy_sampling(service, run)
    service.create_training_client_from_state(STATE).result(SECONDS)
    rest = service.create_rest_client()
    legacy_rest(rest)
    rest.get_session(SESSION).result(SECONDS)
    rest.list_sessions().result(SECONDS)
    rest.get_sampler(f"{SESSION}:sample:0").result(SECONDS)
    rest.get_weights_info_by_tinker_path(STATE).result(SECONDS)
    legacy_end(player, run, sampler)


def legacy_training(player: Player) -> tuple[tinker.ServiceClient, tinker.TrainingClient]:
    service = player.service(user_metadata={"a": "b"})
    service.get_server_capabilities()
    run = service.create_lora_training_client(BASE, 16).result(SECONDS)
    assert run.get_info().model_data.model_name == BASE
    first = run.forward_backward([WEIGHTED, datum([5, 6])], "cross_entropy").result(SECONDS)
    assert first.metrics["loss:sum"] == 3.0
    run.forward([WEIGHTED], "cross_entropy").result(SECONDS)
    run.forward_backward([POLICY], "ppo", {"clip_low_threshold": 0.9}).result(SECONDS)
    run.forward_backward_custom([PAIR], minus_sum).result(SECONDS)
    run.optim_step(ADAM).result(SECONDS)
    run.optim_step(ADAM).result(SECONDS)
    run.save_state("0001").result(SECONDS)
    run.save_weights_for_sampler("s1").result(SECONDS)
    return service, run


def legacy_sampling(
    service: tinker.ServiceClient, run: tinker.TrainingClient
) -> tinker.SamplingClient:
    sampler = run.save_weights_and_get_sampling_client()
    sample_each(sampler, 2, max_tokens=8)
    params = tinker.SamplingParams(max_tokens=8, stop=["x"], temperature=0.5)
    sampled = sampler.sample(PROMPT, 1, params, True, 2).result(SECONDS)
    assert sampled.sequences[0].tokens == [11, 12, 13]
    assert sampler.compute_logprobs(PROMPT).result(SECONDS) == [None, -1.0, -1.0, -1.0]
    image = types.ImageChunk(data=base64.b64decode("iVBORw=="), format="png", expected_tokens=4)
    prompt = tinker.ModelInput(chunks=[types.EncodedTextChunk(tokens=[1]), image])
    other = service.create_sampling_client(base_model=BASE)
    other.sample(prompt, 1, tinker.SamplingParams(max_tokens=1)).result(SECONDS)
    return sampler


def legacy_rest(rest: tinker.RestClient) -> None:
    rest.get_training_run("run-1").result(SECONDS)
    rest.list_training_runs().result(SECONDS)
    rest.list_checkpoints("run-1").result(SECONDS)
    rest.list_user_checkpoints().result(SECONDS)
    rest.get_checkpoint_archive_url_from_tinker_path("tinker://run-1/sampler_weights/s1").result(
        SECONDS
    )
    rest.delete_checkpoint("run-1", "weights/0001").result(SECONDS)
    rest.publish_checkpoint_from_tinker_path(STATE).result(SECONDS)
    rest.unpublish_checkpoint_from_tinker_path(STATE).result(SECONDS)


def legacy_end(player: Player, run: tinker.TrainingClient, sampler: tinker.SamplingClient) -> None:
    with pytest.raises(tinker.RequestFailedError, match="bad"):
        run.optim_step(ADAM).result(SECONDS)
    sample_each(sampler, 1, max_tokens=8)
    player.clock.advance(11)
