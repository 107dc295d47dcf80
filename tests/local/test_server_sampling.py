"""Sampling: sessions over base models and checkpoints, samples, batches, and kept weights."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.api import (
    PROTO,
    Api,
    CountingEngine,
    MakeApi,
    datum,
    occupied,
    sample_body,
    sampler_body,
)
from support.tolerances import assert_near

from tinker._wire import proto
from tinker.local.engines import PACKAGED_FOLDER
from tinker.local.engines.protocol import SampleJob, SampleResult
from tinker.local.engines.toy import ToyEngine
from tinker.local.storage.sessions import IN_MEMORY, SPOOL
from tinker.types.results import SampleResponse


def greedy(api: Api, sampler: str, seq_id: int) -> list[int]:
    future = api.sample(sampler, seq_id, tokens=[104], params={"temperature": 0.0, "max_tokens": 3})
    return api.result(future)["sequences"][0]["tokens"]


def learn(api: Api, model: str, first: int) -> None:
    """Teach the model that ``z`` follows ``h`` and ``z``, with sixty requests."""
    for number in range(first, first + 60, 2):
        api.loss(model, number, data=[datum([104, 122], [122, 122])])
        api.step(model, number + 1, learning_rate=0.05)


def test_a_sampler_has_one_source(api: Api) -> None:
    """A sampler is what its model or checkpoint is; another source, or an unknown one, is refused."""
    session = api.session()
    path = api.result(api.save_sampler(api.model(session), 1, path="a"))["path"]
    sampler = api.sampler(session, 4, model_path=path, base_model="tinker/toy")
    assert sampler == f"{session}:sample:4"
    told = api.ok("get_sampler", sampler_id=sampler)
    assert (told["model_path"], told["tokenizer_id"]) == (path, str(PACKAGED_FOLDER))
    unknown = sampler_body(session, 5, base_model="org/other")
    for body, status in ((sampler_body(session, 4), 409), (unknown, 400)):
        assert api.refused("create_sampling_session", body)[0] == status


def test_a_sampler_can_be_asked_what_it_is(api: Api) -> None:
    """A sampler has its base model and tokenizer, and its checkpoint if it has one."""
    session = api.session()
    base = api.sampler(session)
    known = {"sampler_id": base, "base_model": "tinker/toy", "tokenizer_id": str(PACKAGED_FOLDER)}
    assert api.ok("get_sampler", sampler_id=base) == known
    path = api.result(api.save_sampler(api.model(session), 1, path="a"))["path"]
    stored = api.sampler(session, 1, model_path=path)
    assert api.ok("get_sampler", sampler_id=stored)["model_path"] == path
    named = api.sampler(session, 2, model_path=path, base_model="tinker/toy")
    assert api.ok("get_sampler", sampler_id=named) == {
        **known,
        "sampler_id": named,
        "model_path": path,
    }


def targets(tokens: list[int], shape: list[int], **fields: Any) -> dict[str, Any]:
    return {"data": tokens, "dtype": "int64", "shape": shape, **fields}


def test_a_sampler_exists_from_its_save_on(make_api: MakeApi) -> None:
    """A sampler's session is unknown until its save has run; a failed save frees the number."""
    api, engine, _ = occupied(make_api)
    session = api.session()
    model = api.create_model(session)["model_id"]
    saving = api.save_sampler(model, 1, sampling_session_seq_id=0)
    assert api.refused("get_sampler", sampler_id=f"{session}:sample:0")[0] == 404
    taken = {"model_id": model, "seq_id": 2, "sampling_session_seq_id": 0}
    assert api.refused("save_weights_for_sampler", taken)[0] == 409
    engine.gate.set()
    api.result(saving)
    assert api.ok("get_sampler", sampler_id=f"{session}:sample:0")["base_model"] == "tinker/toy"
    broken = api.create_model(session, 1, lora_config={"rank": 13})["model_id"]
    api.failure(api.save_sampler(broken, 1, sampling_session_seq_id=9))
    assert api.sampler(session, 9) == f"{session}:sample:9"


def test_a_sample_needs_no_session(api: Api) -> None:
    """A request may name a checkpoint itself; without it, a base model or a session it is 400."""
    body = sample_body(None)
    del body["sampling_session_id"]
    path = api.result(api.save_sampler(api.model(), 1, path="a"))["path"]
    assert len(api.result(api.ok("asample", {**body, "model_path": path}))["sequences"]) == 1
    assert api.refused("asample", body)[0] == 400
    assert api.refused("asample", {**body, "model_path": "tinker://a/sampler_weights/b"})[0] == 404


def queue_samples(
    make_api: MakeApi, engine: CountingEngine, *bodies: dict[str, Any], **settings: Any
) -> tuple[Api, list[Any]]:
    """Submit while the engine is busy, so that all requests wait together; then release it."""
    api, _, _ = occupied(make_api, engine, **settings)
    sampler = api.sampler(api.session())
    futures = [api.sample(sampler, index, **fields) for index, fields in enumerate(bodies)]
    engine.gate.set()
    return api, futures


def test_each_waiting_sample_is_sampled(make_api: MakeApi) -> None:
    """Waiting samples are batched up to the limit of tokens; a larger request runs alone."""
    engine, bodies = CountingEngine(), [{}, {}, {}, {"num_samples": 5}, {}]
    api, futures = queue_samples(make_api, engine, *bodies, sample_batch_tokens=12)
    assert all("sequences" in result for result in api.results(futures))
    assert engine.sampled == 5


def test_the_lowest_priority_is_sampled_first(make_api: MakeApi) -> None:
    """Of the samples that wait, those with the lowest priority begin first; without one it is 0."""
    seeds: list[int | None] = []

    class Noting(CountingEngine):
        def sample(self, jobs: Sequence[SampleJob]) -> list[Any]:
            seeds.extend(job.seed for job in jobs)
            return super().sample(jobs)

    chosen = ({"seed": 1, "priority": 1}, {"seed": 2}, {"seed": 3, "priority": -1})
    bodies = [{"params": params} for params in chosen]
    api, futures = queue_samples(make_api, Noting(), *bodies, sample_batch_tokens=1)
    api.results(futures)
    assert seeds == [3, 2, 1]


def test_one_bad_request_does_not_spoil_the_batch(make_api: MakeApi) -> None:
    """Only the invalid request fails; the others get the results that they would get alone."""
    wrong = {"params": {"top_p": 7.0}}
    api, (good, bad, also) = queue_samples(make_api, CountingEngine(), {}, wrong, {})
    assert api.failure(bad) == ("user", "top_p is 7.0; it must be from 0 to 1")
    assert api.result(good) == api.result(also)


@pytest.mark.parametrize("stop", [" ", [" "], [32]])
def test_stops_of_every_form_are_understood(api: Api, stop: Any) -> None:
    """A text, a list of texts or of ids ends the sequence, and is its last token."""
    params = {"max_tokens": 400, "stop": stop}
    (sequence,) = api.result(api.sample(api.sampler(api.session()), params=params))["sequences"]
    assert sequence["stop_reason"] == "stop"
    assert sequence["tokens"].index(32) == len(sequence["tokens"]) - 1


LONG: dict[str, Any] = {"tokens": [5] * 9000}


MANY = "it must be 0 to 4 for 1000 samples of 1000 tokens, as an answer has at most 4194304"


def scored(tokens: list[int], shape: list[int], **fields: Any) -> dict[str, Any]:
    return {"target_prompt_logprobs": targets(tokens, shape, **fields)}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"params": {"stop": ["a", 1]}}, "stop must be"),
        ({"params": {"stop": {"a": 1}}}, "stop must be"),
        ({"params": {"temperature": -1}}, "temperature is -1"),
        ({"params": {"max_tokens": 10**6}}, "exceeds the context length"),
        ({"tokens": []}, "the prompt is empty"),
        ({"tokens": [700]}, "the prompt contains token id 700"),
        ({"tokens": [2**40]}, "the prompt: tokens must fit in 32 bits"),
        ({"prompt_alt_tokens_k": -1}, "prompt_alt_tokens_k is -1"),
        ({"prompt_alt_tokens_k": 10**7}, "prompt_alt_tokens_k is 10000000"),
        ({**LONG, "topk_prompt_logprobs": 512}, "it must be 0 to 466 for a prompt of 9000 tokens"),
        ({**LONG, "prompt_alt_tokens_k": 512}, "it must be 0 to 466 for a prompt of 9000 tokens"),
        ({"topk_sample_logprobs": 40, "num_samples": 1000, "params": {"max_tokens": 1000}}, MANY),
        (
            {"topk_sample_logprobs": 200, "params": {"max_tokens": None}},
            "it must be 0 to 128 for 1 samples of 32766 tokens",
        ),
        (scored([5], [1]), "it must be int64 [1, K]"),
        (scored([5, 5], [2, 1]), "it must be int64 [1, K]"),
        (scored([5], [1, 1], dtype="float32"), "target_prompt_logprobs is float32"),
        (scored([-1], [1, 1]), "does not name any token"),
        (scored([700], [1, 1]), "target_prompt_logprobs contains token id 700"),
        (scored([5, 5], [1, 1]), "target_prompt_logprobs: "),
        ({"prompt_logprobs_last_n": 1}, "needs prompt_logprobs"),
        ({"prompt_logprobs": True, "prompt_logprobs_last_n": 2}, "it must be 1 to 1"),
    ],
)
def test_a_users_mistake_is_reported(
    api: Api, sampler: str, fields: dict[str, Any], said: str
) -> None:
    """An impossible sample is a user error, with the reason."""
    api.fails(said, api.sample(sampler, **fields))


def test_the_number_of_samples_is_bounded(make_api: MakeApi) -> None:
    """No samples and too many are 400 at once."""
    api = make_api(max_samples=3)
    sampler = api.sampler(api.session())
    for count in (0, 4):
        assert api.refused("asample", sample_body(sampler, num_samples=count))[0] == 400


def test_no_tokens_are_sampled_only_to_score_the_prompt(api: Api, sampler: str) -> None:
    """``max_tokens=0`` is refused where the result would be empty, and taken with prompt scores."""
    detail = (
        "max_tokens is 0; it must be at least 1, unless log-probabilities of "
        "the prompt are requested"
    )
    assert api.refused("asample", sample_body(sampler, params={"max_tokens": 0})) == (400, detail)
    result = api.result(api.sample(sampler, params={"max_tokens": 0}, prompt_logprobs=True))
    assert [sequence["tokens"] for sequence in result["sequences"]] == [[]]
    assert len(result["prompt_logprobs"]) == 2


def test_only_the_last_top_k_rows_are_sent_where_asked(api: Api) -> None:
    """The suffix limits the top-k table as well."""
    fields = {"tokens": [104, 101, 108, 108], "prompt_logprobs": True, "topk_prompt_logprobs": 3}
    future = api.sample(api.sampler(api.session()), **fields, prompt_logprobs_last_n=1)
    rows = api.result(future)["topk_prompt_logprobs"]
    assert [row and len(row) for row in rows] == [None, None, None, 3]


def decoded(api: Api, number: int, **fields: Any) -> SampleResponse:
    """Return a sample, with the likeliest tokens of its prompt, as protobuf has it."""
    sampler = api.sampler(api.session())
    future = api.sample(sampler, number, tokens=[104, 101, 108], topk_prompt_logprobs=512, **fields)
    return proto.decode_sample(api.retrieve(future, headers=PROTO).content)


def test_chosen_tokens_of_the_prompt_are_scored(api: Api) -> None:
    """Targets, dense or sparse, get the model's logprobs in their layout, 0 where there is none."""
    sparse = {"sparse_crow_indices": [0, 1, 2], "sparse_col_indices": [0, 1]}
    one = decoded(api, 0, target_prompt_logprobs=targets([101, 7, -1, 108], [2, 2]))
    other = decoded(api, 1, target_prompt_logprobs=targets([101, 108], [2, 2], **sparse))
    tables = [dict(row or ()) for row in one.topk_prompt_logprobs or ()]
    dense, thin = one.target_prompt_logprobs, other.target_prompt_logprobs
    assert dense is not None
    assert thin is not None
    assert_near(dense.to_numpy(), [[tables[1][101], tables[1][7]], [0.0, tables[2][108]]])
    assert (thin.sparse_crow_indices, thin.shape) == ([0, 1, 2], [2, 2])
    assert_near(thin.values, [tables[1][101], tables[2][108]])


def test_alternatives_of_the_prompt_are_drawn(api: Api) -> None:
    """Each prompt token but the first has k tokens and their logprobs, drawn by the seed."""
    first, second = (decoded(api, number, prompt_alt_tokens_k=4) for number in range(2))
    drawn, again = first.prompt_alt_tokens, second.prompt_alt_tokens
    assert drawn is not None
    assert again is not None
    rows = drawn.tokens.to_numpy().tolist()
    assert rows == again.tokens.to_numpy().tolist()
    assert (drawn.tokens.dtype, drawn.logprobs.shape) == ("int64", [2, 4])
    tables = [dict(row or ()) for row in first.topk_prompt_logprobs or ()][1:]
    assert_near(
        drawn.logprobs.to_numpy(),
        [[t[token] for token in row] for t, row in zip(tables, rows, strict=True)],
    )


def test_what_json_has_no_field_for_is_a_failure(api: Api, sampler: str) -> None:
    """A client that reads JSON gets a failure when it asks for scored or drawn tokens."""
    api.fails("protobuf only", api.sample(sampler, prompt_alt_tokens_k=1), "server")


def test_without_max_tokens_the_context_is_the_limit(make_api: MakeApi) -> None:
    """A sample with no stop and no limit fills the context exactly."""
    api = make_api(ToyEngine(vocabulary=512, max_context_length=20))
    params = {"max_tokens": None, "stop": []}
    (sequence,) = api.result(api.sample(api.sampler(api.session()), params=params))["sequences"]
    assert (len(sequence["tokens"]), sequence["stop_reason"]) == (18, "length")


def test_a_crash_while_sampling_fails_that_sample_and_nothing_else(make_api: MakeApi) -> None:
    """Only the request whose sample crashes fails; the others and the next one are served."""

    class Crashing(CountingEngine):
        def sample(self, jobs: Sequence[SampleJob]) -> list[SampleResult]:
            if jobs[0].num_samples > 1:
                raise RuntimeError("too much at once")
            return super().sample(jobs)

    api, (crashed, beside) = queue_samples(make_api, Crashing(), {"num_samples": 2}, {})
    assert api.failure(crashed) == ("server", "RuntimeError: too much at once")
    assert "sequences" in api.result(beside)
    assert "sequences" in api.result(api.sample(api.sampler(api.session())))


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 12.0 GiB for an array"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. "
            "DefaultCPUAllocator: can't allocate memory"
        ),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    ],
)
def test_what_needs_too_much_memory_is_refused(
    make_api: MakeApi, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """What runs out of memory is a user error, which no client repeats, without a traceback."""

    class Small(ToyEngine):
        def sample(self, jobs: Sequence[SampleJob]) -> list[SampleResult]:
            raise error

        def forward_backward(self, *_: Any, **__: Any) -> Any:
            raise error

    api = make_api(Small(vocabulary=512))
    said = f"the server has too little memory for this request; ask for less at once ({error})"
    for future in (api.sample(api.sampler(api.session())), api.loss(api.model(), 1)):
        assert api.failure(future) == ("user", said)
    assert [record.exc_info for record in caplog.records] == [None, None]


class EndlessEngine(ToyEngine):
    """An engine that draws samples without end, and records which ones are removed."""

    def __init__(self) -> None:
        super().__init__(vocabulary=512)
        self.jobs: dict[object, SampleJob] = {}
        self.drawn, self.dropped = threading.Event(), threading.Event()

    def open_batch(self, limit: int) -> EndlessEngine:
        return self

    @property
    def tokens(self) -> int:
        return 0

    def add(self, ticket: object, job: SampleJob) -> None:
        self.jobs[ticket] = job

    def drop(self, ticket: object) -> None:
        del self.jobs[ticket]
        self.dropped.set()

    def step(self) -> list[Any]:
        self.drawn.set()
        return []


@pytest.mark.parametrize("way", ["cancelled", "closed"])
def test_a_running_sample_that_nobody_wants_stops(make_api: MakeApi, way: str) -> None:
    """A cancelled sample, or one of an ended session, leaves the engine between two tokens."""
    engine = EndlessEngine()
    api = make_api(engine)
    session = api.session()
    future = api.sample(api.sampler(session))
    assert engine.drawn.wait(30)
    if way == "closed":
        api.finish(session)
    else:
        api.ok("cancel_future", {"request_id": future["request_id"]})
    assert engine.dropped.wait(30)
    said = {"cancelled": "cancelled by its client", "closed": "has ended"}[way]
    assert said in api.failure(future)[1]
    assert engine.jobs == {}


# Weights without a name


def test_old_snapshots_still_sample(api: Api) -> None:
    """Beyond the number of snapshots kept in memory, each one still samples as when it was made."""
    model = api.model()
    seen: list[tuple[str, list[int]]] = []
    number = 1
    for index in range(IN_MEMORY + 3):
        saved = api.result(api.save_sampler(model, number, sampling_session_seq_id=index))
        number += 1
        seen.append((saved["sampling_session_id"], greedy(api, saved["sampling_session_id"], 0)))
        if index == 0:
            learn(api, model, number)
            number += 60
    assert seen[0][1] != seen[1][1]
    assert [greedy(api, sampler, 1) for sampler, _ in seen] == [tokens for _, tokens in seen]


def test_unnamed_weights_leave_the_disk_with_their_session(api: Api, tmp_path: Path) -> None:
    """Files of sampling sessions go with the session or the server; named checkpoints stay."""
    ended, open_ = api.session(), api.session()
    for session in (ended, open_):
        model = api.model(session)
        api.result(api.save_sampler(model, 1, sampling_session_seq_id=0))
        api.result(api.save_sampler(model, 2, path="kept"))
    assert len(weights_below(tmp_path, SPOOL)) == 2
    api.finish(ended)
    api.result(api.step(model, 3))
    api.state.close()
    assert not weights_below(tmp_path, SPOOL)
    assert len(weights_below(tmp_path, "sampler_weights")) == 2


def weights_below(root: Path, part: str) -> list[Path]:
    return [file for file in root.rglob("toy_adapter.npz") if part in file.parts]


def test_what_a_killed_server_left_is_removed(make_api: MakeApi, tmp_path: Path) -> None:
    """Folders of dead servers are removed by the next server; those of running servers stay."""
    dead = tmp_path / "data" / SPOOL / "nobody"
    dead.mkdir(parents=True)
    first, second = make_api(), make_api()
    for api in (first, second):
        api.result(api.save_sampler(api.model(), 1, sampling_session_seq_id=0))
    assert not dead.exists()
    assert len(weights_below(tmp_path, SPOOL)) == 2
