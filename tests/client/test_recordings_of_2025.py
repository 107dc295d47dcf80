"""A script of 0.4 to 0.7 on this client, with the recorded responses: it sends what those clients
were recorded sending.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl

import httpx
import msgspec
import pytest
from support.recordings import Exchange, exchanges
from tinker_wire import models
from tinker_wire.operations import OPERATIONS

import tinker
from tinker import types
from tinker.local.call import read_body

Request = tuple[str, str, frozenset[tuple[str, str]], Any]
STATE, SAMPLER = "tinker://run-1/weights/0001", "tinker://run-1/sampler_weights/s1"
PROMPT = types.ModelInput(chunks=[types.EncodedTextChunk(tokens=[1, 2, 3, 4])])
BODIES = {
    row.path.rpartition("/")[2]: row.body
    for row in OPERATIONS.values()
    if row.method == "POST" and "{" not in row.path
}

#: Recorded requests that this client does not make, each with the reason.
NOT_MADE = {
    "retrieve_future": "how often a result is asked for is a matter of time",
    "telemetry": "none is sent",
    "session_heartbeat": "likewise a matter of time",
}
ANOTHER_WAY = {
    "legacy_070.jsonl:11": "the forward pass of a custom loss has weights of zero, as in 0.38.0",
    "legacy_070.jsonl:40": "a run from a state is begun by one request, as 0.38.0 does",
    "legacy_070.jsonl:42": "likewise",
    "legacy_070.jsonl:60": "a sample that was told to wait keeps its number, as 0.38.0 does",
}


class Recorded(httpx.AsyncBaseTransport):
    """A transport that returns the recorded response of each request; 404 for requests that were
    not recorded.
    """

    def __init__(self, recording: Iterable[Exchange]) -> None:
        self.requests: list[Request] = []
        self._answers: dict[Any, deque[Exchange]] = defaultdict(deque)
        for exchange in recording:
            self._answers[_place(exchange.method, exchange.path, exchange.request.content)].append(
                exchange
            )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        content, path = await request.aread(), request.url.path
        self.requests.append(_request(request.method, path, request.url.query.decode(), content))
        answers = self._answers[_place(request.method, path, content)]
        if not answers:
            return httpx.Response(404, json={"detail": "not recorded"})
        answer = answers.popleft()
        headers = {
            name: value
            for name, value in answer.response.headers.items()
            if name.lower() != "content-length"
        }
        return httpx.Response(answer.status, headers=headers, content=answer.response.content)


def _place(method: str, path: str, content: bytes) -> tuple[str, str, str]:
    return (
        method,
        path,
        json.loads(content)["request_id"] if path.endswith("/retrieve_future") else "",
    )


def _request(method: str, path: str, query: str, content: bytes) -> Request:
    """Return a request with the defaults of the contract, which older clients omitted."""
    body = read_body(content, BODIES[path.rpartition("/")[2]]) if content else None  # type: ignore[type-var]
    if isinstance(body, models.CreateSessionRequest):
        body = msgspec.structs.replace(body, sdk_version="")
    return (
        method,
        path,
        frozenset(parse_qsl(query)) - {("access_scope", "owned")},
        _rounded(msgspec.to_builtins(body)),
    )


def _rounded(value: Any) -> Any:
    """Return numbers rounded to float32."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def tensor(data: list[Any], dtype: Any) -> types.TensorData:
    return types.TensorData(data=data, dtype=dtype, shape=[len(data)])


def datum(tokens: list[int], **inputs: types.TensorData) -> types.Datum:
    targets = tensor([token + 1 for token in tokens], "int64")
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens),
        loss_fn_inputs={"target_tokens": targets, **inputs},
    )


def test_the_script_of_0_7(clock: Any) -> None:
    """Training, checkpoints, samples and lists in the calling forms of 0.7.0 make every recorded
    request, with equal bodies.
    """
    torch = pytest.importorskip("torch")
    recording = [exchange for exchange in exchanges() if exchange.file == "legacy_070"]
    wire = Recorded(recording)
    service = tinker.ServiceClient(
        user_metadata={"a": "b"},
        base_url="http://server",
        api_key="tml-x",
        wire="json",
        transport=wire,
        clock=clock.clock(),
    )
    name = service.get_server_capabilities().supported_models[0].model_name or ""
    client = service.create_lora_training_client(base_model=name, rank=16)
    weighted = datum([1, 2, 3], weights=tensor([0.0, 1.0, 1.0], "float32"))
    reinforced = datum(
        [1, 2, 3],
        logprobs=tensor([-0.1, -0.2, -0.3], "float32"),
        advantages=tensor([0.0, 1.0, 1.0], "float32"),
    )
    assert (
        client.forward_backward([weighted, datum([5, 6])], "cross_entropy")
        .result(10)
        .metrics["loss:sum"]
        == 3.0
    )
    client.forward([weighted], "cross_entropy").result(10)
    client.forward_backward([reinforced], "ppo", {"clip_low_threshold": 0.9}).result(10)
    client.forward_backward_custom(
        [datum([1, 2])], lambda _, logprobs: (-torch.cat(logprobs).sum(), {})
    ).result(10)
    client.optim_step(types.AdamParams(learning_rate=0.0001)).result(10)
    client.optim_step(types.AdamParams()).result(10)
    client.save_state("0001").result(10)
    client.save_weights_for_sampler("s1").result(10)
    client.load_state(STATE).result(10)
    client.load_state_with_optimizer(STATE).result(10)
    sampler = client.save_weights_and_get_sampling_client().result(10)
    client.get_info()
    assert sampler.sample(PROMPT, 2, types.SamplingParams(max_tokens=8)).result(10).sequences[
        1
    ].tokens == [11, 12, 13]
    params = types.SamplingParams(max_tokens=8, stop=["x"], temperature=0.5)
    sampler.sample(PROMPT, 1, params, include_prompt_logprobs=True, topk_prompt_logprobs=2).result(
        10
    )
    assert sampler.compute_logprobs(PROMPT).result(10) == [None, -1.0, -1.0, -1.0]
    image = types.ImageChunk(data=bytes.fromhex("89504e47"), format="png", expected_tokens=4)
    seen = types.ModelInput(chunks=[types.EncodedTextChunk(tokens=[1]), image])
    service.create_sampling_client(base_model=name).sample(
        seen, 1, types.SamplingParams(max_tokens=1)
    ).result(10)
    service.create_training_client_from_state(STATE).result(10)
    rest = service.create_rest_client()
    rest.get_training_run("run-1").result(10)
    rest.list_training_runs().result(10)
    rest.list_checkpoints("run-1").result(10)
    rest.list_user_checkpoints().result(10)
    assert rest.get_checkpoint_archive_url_from_tinker_path(SAMPLER).result(10).url
    rest.delete_checkpoint_from_tinker_path(STATE).result(10)
    rest.publish_checkpoint_from_tinker_path(STATE).result(10)
    rest.unpublish_checkpoint_from_tinker_path(STATE).result(10)
    rest.get_session("5e551011-0000-4000-8000-000000000001").result(10)
    rest.list_sessions().result(10)
    rest.get_sampler("5e551011-0000-4000-8000-000000000001:sample:0").result(10)
    rest.get_weights_info_by_tinker_path(STATE).result(10)
    with pytest.raises(tinker.RequestFailedError, match="bad"):
        client.optim_step(types.AdamParams()).result(10)
    sampler.sample(PROMPT, 1, types.SamplingParams(max_tokens=8)).result(10)

    missing = {
        one.place
        for one in recording
        if one.path.rpartition("/")[2] not in NOT_MADE
        and _request(one.method, one.path, one.query, one.request.content) not in wire.requests
    }
    assert missing == ANOTHER_WAY.keys()
