"""vLLM as the sampler of the server: what is asked of it, what comes back, and what happens when it
fails.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.responses import JSONResponse, Response, StreamingResponse
from support import fake_vllm
from support.fake_vllm import GENERATE, LOAD, FakeVLLM, event, likely, refuse, running
from support.tolerances import near
from tinker_wire import models

import tinker
from tinker import ModelInput, SamplingParams
from tinker.local import Settings
from tinker.local.engines import vllm
from tinker.local.engines.protocol import SampleJob
from tinker.local.engines.toy import ToyEngine
from tinker.local.engines.vllm import write_params
from tinker.local.serving import running_server

PROMPT = ModelInput.from_ints([104, 101, 108, 108, 111])
BROKEN_OFF = Response(headers={"content-length": "1"})
GREEDY = SamplingParams(max_tokens=6, temperature=0.0)
SECONDS = 60.0


@contextmanager
def service(folder: Path, *samplers: str, **settings: Any) -> Iterator[tinker.ServiceClient]:
    """Yield a client, which sends nothing twice, of a server with the toy as trainer; without
    samplers, the toy samples, too.
    """
    chosen = Settings(data_dir=folder, sampler=samplers, **settings)
    with (
        running_server(chosen, ToyEngine(vocabulary=512)) as url,
        tinker.ServiceClient(base_url=url, max_retries=0) as client,
    ):
        yield client


def trained(client: tinker.ServiceClient, seed: int = 1, rank: int = 4) -> tinker.TrainingClient:
    """Train a run until its samples differ from the base model's."""
    run = client.create_lora_training_client(base_model="tinker/toy", rank=rank, seed=seed)
    datum = tinker.Datum(
        model_input=PROMPT,
        loss_fn_inputs={"target_tokens": [seed, seed + 1, seed + 2, seed + 3, seed + 4]},
    )
    run.forward_backward([datum], "cross_entropy").result()
    run.optim_step(tinker.AdamParams(learning_rate=5.0)).result()
    return run


def sampler_of(client: tinker.ServiceClient) -> tinker.SamplingClient:
    """Return a sampling client of the base model."""
    return client.create_sampling_client(base_model="tinker/toy")


def sampler_of_run(client: tinker.ServiceClient, **options: int) -> tinker.SamplingClient:
    """Return a sampling client of a run that has been trained."""
    return trained(client, **options).save_weights_and_get_sampling_client()


def draw(sampler: tinker.SamplingClient, params: SamplingParams = GREEDY) -> list[int]:
    """Return the tokens of a sample."""
    return sampler.sample(PROMPT, 1, params).result().sequences[0].tokens


def draw_stream(sampler: tinker.SamplingClient, params: SamplingParams = GREEDY) -> list[int]:
    """Return the tokens of a sample that is streamed."""
    return [token for one in sampler.sample_stream(PROMPT, 1, params) for token in one.tokens]


@pytest.fixture
def fake() -> FakeVLLM:
    return FakeVLLM()


@pytest.fixture
def client(fake: FakeVLLM, tmp_path: Path) -> Iterator[tinker.ServiceClient]:
    """Yield a client of a server that samples with the fake."""
    with running(fake) as url, service(tmp_path, url) as client:
        yield client


@pytest.fixture
def sampler(client: tinker.ServiceClient) -> tinker.SamplingClient:
    """Return a sampling client of the base model."""
    return sampler_of(client)


@pytest.fixture
def run_sampler(client: tinker.ServiceClient) -> tinker.SamplingClient:
    """Return a sampling client of a run that has been trained."""
    return sampler_of_run(client)


def test_samples_are_those_of_the_own_sampler(
    client: tinker.ServiceClient, fake: FakeVLLM, tmp_path: Path
) -> None:
    """Tokens, log-probabilities and likeliest tokens of an adapter are those that the engine's own
    sampler returns.
    """
    with service(tmp_path / "own") as own:
        mine, theirs = [
            sampler_of_run(one).sample(PROMPT, 2, GREEDY, topk_sample_logprobs=2).result()
            for one in (own, client)
        ]
    assert fake.asked[0]["model"] in fake.loaded
    for one, other in zip(theirs.sequences, mine.sequences, strict=True):
        assert (one.tokens, one.stop_reason) == (other.tokens, other.stop_reason)
        assert one.logprobs == near(other.logprobs)
        assert one.topk_logprobs == other.topk_logprobs


def test_scores_of_prompts_are_the_engines(
    client: tinker.ServiceClient, fake: FakeVLLM, tmp_path: Path
) -> None:
    """A request for scores of the prompt is the engine's, with the weights of the sampling session;
    vLLM is not asked.
    """
    options: dict[str, Any] = {
        "include_prompt_logprobs": True,
        "topk_prompt_logprobs": 3,
        "target_prompt_logprobs": tinker.TensorData.from_numpy(
            np.array([[7, -1], [8, 9], [-1, -1], [10, 7]])
        ),
    }
    with service(tmp_path / "own") as own:
        mine, theirs = [sampler_of_run(one) for one in (own, client)]
        for params in (SamplingParams(max_tokens=0), GREEDY):
            expected, found = (
                one.sample(PROMPT, 2, params, **options).result() for one in (mine, theirs)
            )
            assert found.sequences[0].tokens == expected.sequences[0].tokens
            assert found.prompt_logprobs == expected.prompt_logprobs
            assert found.topk_prompt_logprobs == expected.topk_prompt_logprobs
            assert found.target_prompt_logprobs == expected.target_prompt_logprobs
    assert not fake.asked
    draw(theirs)
    assert len(fake.asked) == 1


def test_likeliest_tokens_are_complete_where_an_unlikely_one_was_drawn(
    run_sampler: tinker.SamplingClient,
) -> None:
    """The k likeliest tokens are returned, in order, also where the drawn token is
    not one of them.
    """
    sampled = run_sampler.sample(
        PROMPT, 8, SamplingParams(max_tokens=4, temperature=2.0, seed=1), topk_sample_logprobs=3
    ).result()
    best = run_sampler.sample(
        PROMPT, 1, SamplingParams(max_tokens=1, temperature=0.0), topk_sample_logprobs=3
    ).result()
    assert best.sequences[0].topk_logprobs is not None
    first = [(sequence.topk_logprobs or [None])[0] or [] for sequence in sampled.sequences]
    assert first == best.sequences[0].topk_logprobs * 8
    assert any(
        sequence.tokens[0] not in [token for token, _ in first[0]] for sequence in sampled.sequences
    )


def test_each_snapshot_is_an_adapter_that_is_unloaded_when_nobody_samples_it(
    client: tinker.ServiceClient, fake: FakeVLLM
) -> None:
    """Two runs are sampled at once, each snapshot under a name of its own, and those of a closed
    server are unloaded.
    """
    runs = trained(client, 1), trained(client, 20)
    first, second = (run.save_weights_and_get_sampling_client() for run in runs)
    futures = [sampler.sample(PROMPT, 1, GREEDY) for sampler in (first, second, first)]
    tokens = [future.result().sequences[0].tokens for future in futures]
    assert tokens[0] == tokens[2] != tokens[1]
    assert len(fake.loaded) == len(set(fake.loaded)) == 2
    for _ in range(9):  # more than the server keeps in memory
        runs[0].save_weights_and_get_sampling_client().sample(PROMPT, 1, GREEDY).result()
    gc.collect()
    draw(second)
    assert len(set(fake.loaded)) == len(fake.loaded) >= 11
    assert len(fake.adapters) < len(fake.loaded)
    assert draw(first) == tokens[0]


def test_a_closed_server_leaves_no_adapter_and_no_folder(fake: FakeVLLM, tmp_path: Path) -> None:
    """At its end, the server unloads its adapters from a vLLM that goes on, and removes their
    folders.
    """
    with running(fake) as url:
        with service(tmp_path, url) as client:
            draw(sampler_of_run(client))
            assert len(fake.adapters) == 1
        assert not fake.adapters
    assert not [*(tmp_path / ".samplers").iterdir()]


def test_what_vllm_cannot_do_is_refused_by_name(
    client: tinker.ServiceClient, sampler: tinker.SamplingClient, fake: FakeVLLM
) -> None:
    """A parameter that vLLM refuses and an adapter that it does not load fail at once, with its
    sentence.
    """
    with pytest.raises(
        tinker.RequestFailedError,
        match=r"vLLM refuses the request: temperature must be in \[0, 2\]",
    ):
        sampler.sample(PROMPT, 1, SamplingParams(max_tokens=1, temperature=5.0)).result()
    with pytest.raises(
        tinker.RequestFailedError, match="LoRA rank 64 is greater than max_lora_rank 32"
    ):
        draw(sampler_of_run(client, rank=64))
    assert len(fake.asked) == 1
    assert draw(sampler)


def test_a_schema_and_a_priority_are_vllms(client: tinker.ServiceClient, fake: FakeVLLM) -> None:
    """vLLM is told the schema and the priority of a sample, and neither where there is none;
    elsewhere a schema is refused.
    """
    sampler, schema = sampler_of(client), {"type": "object"}
    sampler.sample(PROMPT, 1, SamplingParams(max_tokens=1, json_schema=schema, priority=3)).result()
    draw(sampler)
    told = [
        (body["sampling_params"].get("structured_outputs"), body["priority"]) for body in fake.asked
    ]
    assert told == [({"json": schema}, 3), (None, 0)]
    scored = sampler.sample(
        PROMPT, 1, SamplingParams(json_schema=schema), include_prompt_logprobs=True
    )
    with pytest.raises(
        tinker.RequestFailedError, match=r"json_schema needs vLLM .* without images and scores"
    ):
        scored.result()


def ask(**fields: Any) -> Any:
    """Return the parameters that vLLM is sent for a job."""
    given: dict[str, Any] = {"tokens": np.array([1], np.int32), "weights": None, "max_tokens": 1}
    return write_params(SampleJob(**{**given, **fields}))


def test_the_stop_of_a_job_decides_what_vllm_stops_at() -> None:
    """Without a stop vLLM stops at the model's own end of text, with one only there, and with an
    empty list nowhere.
    """

    for stop, *expected in (
        (None, False, [], [], False),
        ([], True, [], [], False),
        (["a", "b"], True, ["a", "b"], [], True),
        ([7], True, [], [7], False),
    ):
        params = ask(stop=stop)
        names = ("ignore_eos", "stop", "stop_token_ids", "detokenize")
        assert [params[name] for name in names] == expected


def test_parameters_are_sent_under_vllms_names() -> None:
    """Each parameter has vLLM's name; a top_p of 0, which vLLM refuses, is a small one, and stops
    may be special tokens.
    """
    given = {"max_tokens": 9, "temperature": 0.5, "top_k": 7, "min_p": 0.25}
    penalties = {"presence_penalty": 0.1, "frequency_penalty": 0.2, "repetition_penalty": 1.3}
    params = ask(top_p=0.0, **given, **penalties)
    assert {**params, **given, **penalties, "skip_special_tokens": False} == params
    assert 0 < params["top_p"] < 1e-6


def test_neighboring_seeds_share_no_sample() -> None:
    """The samples of one seed are none of those of the next one, though vLLM counts them up from
    the seed.
    """
    seeds = [
        ask(num_samples=64, seed=seed)["seed"] + index for seed in range(50) for index in range(64)
    ]
    assert len(set(seeds)) == len(seeds)
    assert ask(num_samples=64, seed=3)["seed"] == seeds[3 * 64]


def test_many_samples_are_several_requests(sampler: tinker.SamplingClient, fake: FakeVLLM) -> None:
    """A request for more samples than a vLLM runs at once becomes several, each of whose samples
    has another seed.
    """
    params = SamplingParams(max_tokens=2, seed=1)
    assert len(sampler.sample(PROMPT, 150, params).result().sequences) == 150
    asked = [body["sampling_params"] for body in fake.asked]
    assert [one["n"] for one in asked] == [64, 64, 22]
    assert [one["seed"] - asked[0]["seed"] for one in asked] == [0, 64, 128]
    chunks = [*sampler.sample_stream(PROMPT, 70, params)]
    streamed = [
        [token for one in chunks if one.index == index for token in one.tokens]
        for index in range(70)
    ]
    assert streamed == [one.tokens for one in sampler.sample(PROMPT, 70, params).result().sequences]


def test_tokens_are_streamed_as_they_come(run_sampler: tinker.SamplingClient) -> None:
    """A stream has the tokens of the same request without one, and the end of each sample."""
    params = SamplingParams(max_tokens=5, seed=3)
    whole = run_sampler.sample(PROMPT, 2, params).result()
    for index, sequence in enumerate(whole.sequences):
        chunks = [one for one in run_sampler.sample_stream(PROMPT, 2, params) if one.index == index]
        assert [token for one in chunks for token in one.tokens] == sequence.tokens
        assert [one.stop_reason for one in chunks] == [None] * (len(chunks) - 1) + [
            sequence.stop_reason
        ]


def test_a_vllm_that_has_lost_its_adapters_loads_them_again(
    run_sampler: tinker.SamplingClient, fake: FakeVLLM
) -> None:
    """A sample whose adapter vLLM does not know any more loads it again, and has its tokens."""
    before = draw(run_sampler)
    fake.adapters.clear()
    assert draw(run_sampler) == before
    assert fake.loaded == [fake.asked[0]["model"]] * 2


@pytest.mark.parametrize(
    "fault",
    [
        refuse(500, "EngineCore encountered an issue"),
        Response("<html>Bad Gateway</html>", 502),
        JSONResponse({"choices": [{"finish_reason": "abort"}]}),
        JSONResponse({"choices": []}),
        BROKEN_OFF,
    ],
    ids=["500", "502", "abort", "no sample", "broken off"],
)
def test_a_sample_that_vllm_fails_is_sent_again(
    client: tinker.ServiceClient, fake: FakeVLLM, fault: Response
) -> None:
    """A sample that fails by no fault of its own is sent again, and the adapter is not, which vLLM
    still has.
    """
    fake.faults[GENERATE] = [fault] * 2
    assert len(draw(sampler_of_run(client))) == 6
    assert (fake.faults[GENERATE], len(fake.asked), len(fake.loaded)) == ([], 1, 1)


def test_a_sample_that_always_fails_says_why(
    client: tinker.ServiceClient, sampler: tinker.SamplingClient, fake: FakeVLLM
) -> None:
    """A sample is given up after three attempts, and at once where vLLM refuses it or lacks an
    endpoint, with the beginning of its message; the next one is drawn.
    """
    for status, attempts, says in (
        (500, 3, r"the vLLM at http://127.0.0.1:\d+ failed"),
        (400, 1, "vLLM refuses the request"),
    ):
        fake.faults[GENERATE] = [refuse(status, "it is broken" + "!" * 9000)] * attempts
        with pytest.raises(tinker.RequestFailedError, match=f"{says}: it is broken") as caught:
            draw(sampler)
        assert 400 < len(str(caught.value)) < 1500
    for path, tried in (
        (GENERATE, sampler),
        (LOAD, sampler_of_run(client)),
    ):
        fake.faults[path] = [JSONResponse({"detail": "Not Found"}, 404)]
        with pytest.raises(
            tinker.RequestFailedError, match="lacks an endpoint; start it with --enable-scale-out"
        ):
            draw(tried)
    assert not fake.asked
    assert draw(sampler)


def test_samples_without_tokens_and_without_order(
    sampler: tinker.SamplingClient, fake: FakeVLLM
) -> None:
    """Samples are returned in the order of their numbers; one without log-probabilities has no
    tokens.
    """
    fake.faults[GENERATE] = [
        JSONResponse(
            {
                "choices": [
                    {
                        "index": 2,
                        "logprobs": {
                            "content": [{**likely(7, -1.0), "top_logprobs": [likely(7, -1.0)]}]
                        },
                        "finish_reason": "length",
                    },
                    {"index": 1, "logprobs": {"content": None}, "finish_reason": "stop"},
                    {"index": 0, "logprobs": None, "finish_reason": "stop"},
                ]
            }
        )
    ]
    sampled = sampler.sample(PROMPT, 3, GREEDY, topk_sample_logprobs=2).result().sequences
    assert [(one.tokens, one.stop_reason) for one in sampled] == [
        ([], "stop"),
        ([], "stop"),
        ([7], "length"),
    ]
    assert sampled[2].topk_logprobs == [[(7, -1.0)]]


def test_an_adapter_that_could_not_be_loaded_is_loaded_by_the_next_attempt(
    run_sampler: tinker.SamplingClient, fake: FakeVLLM
) -> None:
    """A vLLM that fails while it loads an adapter gets the sample again; one that refuses it does
    not, but the next sample.
    """
    fake.faults[LOAD] = [refuse(500, "out of memory"), refuse(500, "No adapter found")]
    fake.faults["/health"] = [Response(status_code=503)]
    with pytest.raises(
        tinker.RequestFailedError, match="vLLM refuses the request: No adapter found"
    ):
        draw(run_sampler)
    assert (fake.faults[LOAD], fake.loaded) == ([], [])
    assert draw(run_sampler)


def test_an_adapter_that_is_being_loaded_is_not_loaded_again(
    sampler: tinker.SamplingClient, run_sampler: tinker.SamplingClient, fake: FakeVLLM
) -> None:
    """A sample that fails while vLLM loads an adapter does not make it load the adapter twice."""
    fake.is_open.clear()
    samples = [run_sampler.sample(PROMPT, 1, GREEDY)]
    assert fake.has_asked.wait(SECONDS)
    fake.has_asked.clear()
    fake.faults[GENERATE] = [refuse(500, "it is broken")]
    samples.append(sampler.sample(PROMPT, 1, GREEDY))
    assert fake.has_asked.wait(SECONDS)
    samples.append(run_sampler.sample(PROMPT, 1, GREEDY))
    fake.is_open.set()
    assert len([sample.result() for sample in samples]) == 3
    assert len(fake.loaded) == 1


def test_a_stream_that_is_closed_leaves_its_adapter_to_others(
    sampler: tinker.SamplingClient, run_sampler: tinker.SamplingClient, fake: FakeVLLM
) -> None:
    """A stream that is closed while vLLM loads its adapter ends no other sample that waits for the
    adapter.
    """
    fake.is_open.clear()
    streams: list[tinker.SampleStream] = []
    for one in (run_sampler, sampler):
        fake.has_asked.clear()
        streams.append(one.sample_stream(PROMPT, 1, GREEDY))
        assert fake.has_asked.wait(SECONDS)
    other = run_sampler.sample(PROMPT, 1, GREEDY)
    for stream in streams:
        stream.close()
    assert fake.has_left.wait(SECONDS)
    fake.is_open.set()
    assert other.result(SECONDS).sequences
    assert len(fake.loaded) == 1


def broken_stream(*tokens: int) -> Response:
    """Return a stream that fails after these tokens of its first sample, and then goes on."""
    error = f"data: {json.dumps({'error': {'message': 'the engine is dead'}})}\n\n"
    return Response(
        event(0, [likely(token, -1.0) for token in tokens], None)
        + error
        + event(0, [likely(9, -1.0)], "stop")
    )


def test_a_stream_that_fails_goes_on_or_says_that_it_cannot(
    run_sampler: tinker.SamplingClient, fake: FakeVLLM
) -> None:
    """A stream goes on where vLLM repeats its tokens, whatever ended it, and fails where vLLM draws
    others.
    """
    whole = draw(run_sampler)
    # without a reason
    ended = Response(event(0, [likely(token, -1.0) for token in whole[:2]], None))
    fake.faults[GENERATE] = [refuse(500, "it is broken"), broken_stream(*whole[:3])]
    assert draw_stream(run_sampler) == whole
    fake.faults[GENERATE] = [ended]
    assert draw_stream(run_sampler) == whole
    fake.faults[GENERATE] = [Response(event(0, [], "abort")), broken_stream(whole[0], whole[1] + 1)]
    with pytest.raises(tinker.SampleStreamError, match="does not repeat its tokens"):
        list(run_sampler.sample_stream(PROMPT, 1, GREEDY))
    assert fake.faults[GENERATE] == []


@pytest.mark.parametrize(
    "text", ["a\u2028b", "a\u2029b", "a\x85b", "a\x0bb", "a\x0cb", "a\x1cb", "é😀"]
)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_events_are_not_cut_within_a_text(
    run_sampler: tinker.SamplingClient,
    fake: FakeVLLM,
    text: str,
    size: int,
) -> None:
    """An event whose text has a separator of lines, as vLLM writes it, is one event, in whatever
    pieces it arrives.
    """
    choice = {
        "index": 0,
        "logprobs": {"content": [likely(5, -1.0)]},
        "finish_reason": "length",
        "text": text,
    }
    whole = f"data: {json.dumps({'choices': [choice]}, ensure_ascii=False)}\n\ndata: [DONE]\n\n".encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(whole), size):
            yield whole[start : start + size]
            await asyncio.sleep(0)

    fake.faults[GENERATE] = [StreamingResponse(pieces(), media_type="text/event-stream")]
    assert draw_stream(run_sampler) == [5]
    assert fake.faults[GENERATE] == []


def test_the_context_length_is_vllms(tmp_path: Path) -> None:
    """A sample without max_tokens ends with vLLM's context, which may be shorter than the
    trainer's.
    """
    with running(FakeVLLM(context=8)) as url, service(tmp_path, url) as client:
        sampler = sampler_of(client)
        sampled = sampler.sample(PROMPT, 1, SamplingParams(temperature=0.0, stop=[])).result()
        assert (len(sampled.sequences[0].tokens), sampled.sequences[0].stop_reason) == (3, "length")


def test_a_vllm_that_does_not_answer_fails_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Samples fail when no vLLM has answered for as long as one at an address may take, which is
    not that of one started here.
    """
    monkeypatch.setattr(vllm, "MAX_PROBES", 1)
    monkeypatch.setattr(vllm, "MAX_PROBES_OF_START", 0)
    with (
        service(tmp_path, "http://127.0.0.1:9") as client,
        pytest.raises(
            tinker.RequestFailedError,
            match=r"the vLLM at http://127\.0\.0\.1:9 does not answer: ConnectError",
        ),
    ):
        draw(sampler_of(client))
    assert "waiting for the vLLM at http://127.0.0.1:9" in caplog.text


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (JSONResponse({"error": "Unauthorized"}, 401), "vLLM refuses the request: HTTP 401"),
        (Response("<html>It works!</html>"), "JSON is malformed"),
    ],
    ids=["a vLLM with a key", "no vLLM"],
)
def test_an_address_without_a_vllm_for_us_fails_at_once(
    client: tinker.ServiceClient, fake: FakeVLLM, answer: Response, says: str
) -> None:
    """A vLLM that wants a key, and a server that is none, are not asked again for the sample, whose
    error says what is wrong.
    """
    fake.faults["/v1/models"] = [answer]
    with pytest.raises(tinker.RequestFailedError, match=says):
        draw(sampler_of(client))


def test_samples_wait_for_a_vllm_that_starts(
    client: tinker.ServiceClient,
    fake: FakeVLLM,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Samples that are asked for before vLLM answers are drawn when it does; the log says what they
    wait for, once.
    """
    monkeypatch.setattr(vllm, "PROBE_SECONDS", 0.0)
    fake.faults["/v1/models"] = [BROKEN_OFF] * 3
    assert draw(sampler_of(client))
    said = caplog.text.count("waiting for the vLLM at http://127.0.0.1:")
    assert (fake.faults["/v1/models"], said) == ([], 1)


def test_a_proxy_of_the_environment_is_not_asked(
    client: tinker.ServiceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server connects to vLLM itself, whatever proxy its environment names."""
    monkeypatch.setattr(vllm, "MAX_PROBES", 1)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert draw(sampler_of(client))


def test_an_adapter_is_loaded_and_unloaded_where_it_is_sampled(
    fake: FakeVLLM, tmp_path: Path
) -> None:
    """Of two vLLMs, one that never needed an adapter is not asked to load or unload it."""
    other = FakeVLLM()
    with (
        running(fake) as first,
        running(other) as second,
        service(tmp_path, first, second) as client,
    ):
        run = trained(client)
        for _ in range(12):  # more than the server keeps in memory
            run.save_weights_and_get_sampling_client().sample(PROMPT, 1, GREEDY).result()
            gc.collect()
        assert (len(fake.loaded), len(other.loaded)) == (6, 6)
        assert len({*fake.adapters, *other.adapters}) < 12


def test_a_cancelled_sample_ends_in_vllm(fake: FakeVLLM, tmp_path: Path) -> None:
    """Cancelling a sample closes its connection to vLLM, which then stops drawing."""
    fake.is_open.clear()
    config = models.ClientDynamicConfigResponse(sample_cancel_enabled=True)
    with running(fake) as url, service(tmp_path, url, client_dynamic_config=config) as client:
        sampler = sampler_of(client)
        future = sampler.sample(PROMPT, 1, GREEDY)
        assert fake.has_asked.wait(SECONDS)
        future.cancel()
        assert fake.has_left.wait(SECONDS)
        fake.is_open.set()
        assert draw(sampler)


def test_a_run_trains_while_its_samples_wait(client: tinker.ServiceClient, fake: FakeVLLM) -> None:
    """Training goes on while vLLM samples, and the samples are those of the weights that they were
    asked from.
    """
    run = trained(client)
    sampler = run.save_weights_and_get_sampling_client()
    before = draw(sampler)
    fake.is_open.clear()
    waiting = [sampler.sample(PROMPT, 1, GREEDY) for _ in range(20)]
    datum = tinker.Datum(model_input=PROMPT, loss_fn_inputs={"target_tokens": [9, 9, 9, 9, 9]})
    for _ in range(3):
        run.forward_backward([datum], "cross_entropy").result()
        run.optim_step(tinker.AdamParams(learning_rate=5.0)).result()
    assert not any(future.done() for future in waiting)
    fake.is_open.set()
    assert {tuple(future.result().sequences[0].tokens) for future in waiting} == {tuple(before)}


def test_a_conversation_stays_on_its_vllm_and_leaves_it_when_it_is_gone(tmp_path: Path) -> None:
    """Prompts that continue one another are sampled in one place, other prompts elsewhere; a vLLM
    that ends loses nothing.
    """
    fakes = FakeVLLM(), FakeVLLM()
    with (
        ExitStack() as one,
        running(fakes[1]) as second,
        service(tmp_path, one.enter_context(running(fakes[0])), second) as client,
    ):
        sampler = sampler_of(client)
        prompts = [[start] * 64 for start in range(1, 9)]
        for prompt in prompts:
            sampler.sample(ModelInput.from_ints(prompt), 1, GREEDY).result()
        homes = [{tuple(body["token_ids"]) for body in fake.asked} for fake in fakes]
        assert [len(home) for home in homes] == [4, 4]
        for turn in range(1, 4):
            for prompt in prompts:
                sampler.sample(
                    ModelInput.from_ints(prompt + [turn] * 64 * turn), 1, GREEDY
                ).result()
        for _ in range(20):  # one after another: its vLLM is never busier than the other one
            sampler.sample(ModelInput.from_ints(prompts[0]), 1, GREEDY).result()
        assert [{tuple(body["token_ids"][:64]) for body in fake.asked} for fake in fakes] == homes
        one.close()
        asked = len(fakes[1].asked)
        for prompt in prompts:
            assert sampler.sample(ModelInput.from_ints(prompt), 1, GREEDY).result().sequences
        assert len(fakes[1].asked) == asked + 8


def test_another_model_is_refused_when_the_server_starts(tmp_path: Path) -> None:
    """A vLLM that serves another model is not used; the message names both, and no adapter."""
    fake = FakeVLLM("other/model")
    fake.adapters["adapter"] = None
    with (
        running(fake) as url,
        service(tmp_path, url) as client,
        pytest.raises(tinker.RequestFailedError, match="serves other/model, not tinker/toy"),
    ):
        draw(sampler_of(client))


@pytest.mark.parametrize(("name", "root"), [("mine", "tinker/toy"), ("tinker/toy", "/models/toy")])
def test_a_model_is_known_by_its_name_or_its_source(name: str, root: str, tmp_path: Path) -> None:
    """A vLLM may serve the model under another name, or from a folder; it is asked for the name."""
    fake = FakeVLLM(name, root=root)
    with running(fake) as url, service(tmp_path, url) as client:
        assert draw(sampler_of(client))
    assert fake.asked[0]["model"] == name


@pytest.mark.parametrize(
    "sampler", ["sglang", ["vllm", "vllm"], "localhost:8000", ["http://a", "b"]]
)
def test_a_sampler_is_vllm_or_urls(sampler: Any, tmp_path: Path) -> None:
    """The setting takes the word vllm, or URLs."""
    with pytest.raises(ValueError, match="it must be 'vllm', or one or more URLs"):
        Settings(data_dir=tmp_path, sampler=sampler)


def test_samplers_at_urls_are_for_one_model(tmp_path: Path) -> None:
    """Several models cannot share the vLLMs of one list of URLs."""
    engines = [ToyEngine(base_model=name) for name in ("a", "b")]
    settings = Settings(data_dir=tmp_path, sampler="http://127.0.0.1:9")
    with (
        pytest.raises(ValueError, match="samplers at URLs serve one base model"),
        running_server(settings, engines),
    ):
        raise AssertionError


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a program `vllm` on PATH, which is the fake; the child is started where its trainer's
    device is known.
    """
    pytest.importorskip("torch")
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "vllm"
    roots = os.pathsep.join(path for path in sys.path if path)
    program.write_text(
        f'#!/bin/sh\necho $$ >> {folder}/pids\necho "$@" > {folder}/arguments\n'
        f'PYTHONPATH={roots} exec {sys.executable} {fake_vllm.__file__} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return program


def is_running(pid: str) -> bool:
    """Return whether a process with this id runs."""
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True


def test_a_vllm_that_is_killed_is_started_again_and_its_samples_are_sent_again(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A vLLM that dies with samples in it is started again, loads the adapters again, and every
    sample arrives; it ends with the server.
    """
    monkeypatch.setenv("FAKE_VLLM_DIES", str(tmp_path / "has-died"))
    with service(tmp_path / "data", "vllm") as client, service(tmp_path / "own") as own:
        mine, theirs = (sampler_of_run(one) for one in (own, client))
        params = [SamplingParams(max_tokens=4, temperature=0.0) for _ in range(20)]
        futures = [theirs.sample(PROMPT, 1, one) for one in params]
        expected = draw(mine, params[0])
        assert [one.result(SECONDS).sequences[0].tokens for one in futures] == [expected] * 20
    pids = (program.parent / "pids").read_text().split()
    assert len(pids) == 2
    assert not any(map(is_running, pids))
    assert "vLLM ended with code -9, and is started again" in caplog.text


def test_a_vllm_that_does_not_start_says_why(program: Path, tmp_path: Path) -> None:
    """A wrong argument fails at once, with the end of what vLLM wrote; it comes after those that
    the documentation names.
    """
    with service(tmp_path / "data", "vllm", sampler_args="--fail") as client:
        with pytest.raises(
            tinker.RequestFailedError, match=r"(?s)vLLM ended with code 1 .*there is no such option"
        ) as caught:
            draw(sampler_of(client))
        assert len(str(caught.value)) < 3000
    assert re.search(
        "--max-lora-rank 32 --max-loras 4 .*--fail", (program.parent / "arguments").read_text()
    )


def test_a_missing_vllm_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a program `vllm` the message says what is missing."""
    pytest.importorskip("torch")
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        service(tmp_path / "data", "vllm") as client,
        pytest.raises(tinker.RequestFailedError, match="there is no program `vllm` on PATH"),
    ):
        draw(sampler_of(client))


def test_a_stream_that_vllm_breaks_off_goes_on_with_the_same_tokens(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream whose vLLM is killed is asked for again, and its client sees each token once."""
    monkeypatch.setenv("FAKE_VLLM_BREAKS", str(tmp_path / "has-died"))
    monkeypatch.setattr(vllm, "MAX_PROBES", 0)  # of one at an address
    with service(tmp_path / "data", "vllm") as client:
        sampler = sampler_of_run(client)
        params = SamplingParams(max_tokens=5, seed=3)
        drawn = draw_stream(sampler, params)
        assert drawn == draw(sampler, params)
    assert len((program.parent / "pids").read_text().split()) == 2
