"""Sampling: sessions over base models and checkpoints, samples by number, batches, and frozen or
inflight weights.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.api import PROTO, Api, CountingEngine, GatedEngine, MakeApi, datum, sample_body
from support.tolerances import assert_near

from tinker._wire import proto
from tinker.local.engines import PACKAGED_FOLDER
from tinker.local.engines.protocol import SampleJob, SampleResult
from tinker.local.engines.toy import ToyEngine
from tinker.local.storage.sessions import IN_MEMORY, SPOOL


def save_for_sampler(api: Api, model: str, seq_id: int, **fields: Any) -> Any:
    return api.ok("save_weights_for_sampler", {"model_id": model, "seq_id": seq_id, **fields})


def learn(api: Api, model: str, first: int) -> int:
    """Teach the model that ``z`` follows ``h`` and ``z``; return the next free number."""
    for index in range(30):
        api.loss(model, first + 2 * index, data=[datum([104, 122], [122, 122])])
        api.step(model, first + 2 * index + 1, learning_rate=0.05)
    return first + 60


def greedy(api: Api, sampler: str, seq_id: int) -> list[int]:
    future = api.sample(sampler, seq_id, tokens=[104], params={"temperature": 0.0, "max_tokens": 3})
    return api.result(future)["sequences"][0]["tokens"]


def test_a_sampling_session_is_made_once_for_each_number(api: Api) -> None:
    """A session's id follows from session and number; the same source again gives the same session,
    another source is 409.
    """
    session = api.session()
    assert api.sampler(session, 4) == api.sampler(session, 4) == f"{session}:sample:4"
    future = save_for_sampler(api, api.model(session), 1, path="a")
    other = {
        "session_id": session,
        "sampling_session_seq_id": 4,
        "model_path": api.result(future)["path"],
    }
    assert api.refused("create_sampling_session", other)[0] == 409
    assert (
        api.refused(
            "create_sampling_session", {"session_id": session, "sampling_session_seq_id": 5}
        )[0]
        == 400
    )
    unknown = {"session_id": session, "sampling_session_seq_id": 5, "base_model": "org/other"}
    assert api.refused("create_sampling_session", unknown)[0] == 400


def test_a_sampler_can_be_asked_what_it_is(api: Api) -> None:
    """A sampler has its base model and tokenizer, and its checkpoint if it has one."""
    session = api.session()
    base = api.sampler(session)
    known = {"sampler_id": base, "base_model": "tinker/toy", "tokenizer_id": str(PACKAGED_FOLDER)}
    assert api.ok("get_sampler", sampler_id=base) == known
    path = api.result(save_for_sampler(api, api.model(session), 1, path="a"))["path"]
    stored = api.sampler(session, 1, model_path=path)
    assert api.ok("get_sampler", sampler_id=stored)["model_path"] == path
    named = api.sampler(session, 2, model_path=path, base_model="tinker/toy")
    assert api.ok("get_sampler", sampler_id=named) == {
        **known,
        "sampler_id": named,
        "model_path": path,
    }


def targets(tokens: list[int], shape: list[int], **sparse: list[int]) -> dict[str, Any]:
    return {"data": tokens, "dtype": "int64", "shape": shape, **sparse}


def test_every_sample_has_an_id(api: Api) -> None:
    """A submitted request has as many sequence ids as samples, all different."""
    future = api.sample(api.sampler(api.session()), num_samples=3)
    assert len(set(future["sample_sequence_ids"])) == 3
    assert len(api.result(future)["sequences"]) == 3


def test_the_same_sample_request_again_is_the_same_future(api: Api) -> None:
    """Numbers may be large and need no order; another body under a used number is 409."""
    sampler = api.sampler(api.session())
    first = api.sample(sampler, 10**18)
    assert api.sample(sampler, 10**18) == first
    assert api.refused("asample", sample_body(sampler, 10**18, num_samples=2))[0] == 409
    assert api.sample(sampler, 3)["request_id"] != first["request_id"]


def test_a_sample_is_the_same_over_json_and_protobuf(api: Api) -> None:
    """Both forms carry the same tokens, logprobs, prompt logprobs and top-k tables."""
    fields = {"prompt_logprobs": True, "topk_prompt_logprobs": 2, "topk_sample_logprobs": 3}
    future = api.sample(api.sampler(api.session()), **fields)
    plain = api.result(future)
    packed = proto.decode_sample(api.retrieve(future, headers=PROTO).content)
    (sequence,) = plain["sequences"]
    assert packed.sequences[0].tokens == sequence["tokens"]
    assert list(packed.sequences[0].logprobs or []) == sequence["logprobs"]
    assert packed.sequences[0].stop_reason == sequence["stop_reason"] == "length"
    assert plain["prompt_logprobs"][0] is None
    assert packed.prompt_logprobs == plain["prompt_logprobs"]
    assert [len(row) if row else 0 for row in plain["topk_prompt_logprobs"]] == [0, 2]
    assert [len(row) for row in sequence["topk_logprobs"]] == [3] * 4


def test_samples_follow_what_was_learned_and_snapshots_stay(api: Api) -> None:
    """A snapshot keeps its weights while training continues; a stored checkpoint samples like its
    model.
    """
    session = api.session()
    model = api.model(session)
    before = api.result(save_for_sampler(api, model, 1, sampling_session_seq_id=0))[
        "sampling_session_id"
    ]
    assert before == f"{session}:sample:0"
    untrained = greedy(api, before, 0)
    number = learn(api, model, 2)
    path = api.result(save_for_sampler(api, model, number, path="z"))["path"]
    after = api.sampler(session, 1, model_path=path)
    assert greedy(api, after, 0) == [122, 122, 122]
    assert greedy(api, before, 1) == untrained != [122, 122, 122]


def test_inflight_samplers_move_with_the_model(api: Api) -> None:
    """Each inflight save renews the weights of all inflight samplers of that model; snapshots stay
    unchanged.
    """
    session = api.session()
    model = api.model(session)
    fields = {"kind": "inflight", "sampling_session_seq_id": 0}
    moving = api.result(save_for_sampler(api, model, 1, **fields))["sampling_session_id"]
    frozen = api.result(save_for_sampler(api, model, 2, sampling_session_seq_id=1))[
        "sampling_session_id"
    ]
    untrained = greedy(api, moving, 0)
    number = learn(api, model, 3)
    assert greedy(api, moving, 1) == untrained
    api.result(save_for_sampler(api, model, number, **{**fields, "sampling_session_seq_id": 2}))
    assert greedy(api, moving, 2) == [122, 122, 122]
    assert greedy(api, frozen, 0) == untrained


def test_a_sampler_exists_from_its_save_on(make_api: MakeApi) -> None:
    """A sampler's session is unknown until its save has run; a failed save frees the number."""
    engine = GatedEngine()
    api = make_api(engine)
    session = api.session()
    model = api.model(session)
    api.loss(model, 1)
    saving = save_for_sampler(api, model, 2, sampling_session_seq_id=0)
    assert api.refused("get_sampler", sampler_id=f"{session}:sample:0")[0] == 404
    taken = {"model_id": model, "seq_id": 3, "sampling_session_seq_id": 0}
    assert api.refused("save_weights_for_sampler", taken)[0] == 409
    engine.gate.set()
    api.result(saving)
    assert api.ok("get_sampler", sampler_id=f"{session}:sample:0")["base_model"] == "tinker/toy"
    broken = api.create_model(session, 1, lora_config={"rank": 13})["model_id"]
    api.failure(save_for_sampler(api, broken, 1, sampling_session_seq_id=9))
    assert api.sampler(session, 9) == f"{session}:sample:9"


def test_a_sample_needs_no_session(api: Api) -> None:
    """A request may name a base model or a checkpoint itself; without either it is 400."""
    body = sample_body(None)
    del body["sampling_session_id"]
    by_base = api.ok("asample", {**body, "base_model": "tinker/toy"})
    assert len(api.result(by_base)["sequences"]) == 1
    model = api.model()
    path = api.result(save_for_sampler(api, model, 1, path="a"))["path"]
    assert len(api.result(api.ok("asample", {**body, "model_path": path}))["sequences"]) == 1
    assert api.refused("asample", body)[0] == 400
    assert api.refused("asample", {**body, "model_path": "tinker://a/sampler_weights/b"})[0] == 404


def queue_samples(api: Api, engine: GatedEngine, bodies: list[dict[str, Any]]) -> list[Any]:
    """Submit while the engine is busy, so that all requests wait together; then release it."""
    sampler = api.sampler(api.session())
    api.loss(api.model(), 1)
    assert engine.entered.wait(30)
    futures = [api.sample(sampler, index, **fields) for index, fields in enumerate(bodies)]
    engine.gate.set()
    return futures


def test_each_waiting_sample_is_sampled(make_api: MakeApi) -> None:
    """Waiting samples are batched up to the limit of tokens; a larger request runs alone."""
    engine = CountingEngine()
    api = make_api(engine, sample_batch_tokens=12)
    futures = queue_samples(api, engine, [{}, {}, {}, {"num_samples": 5}, {}])
    for future in futures:
        assert "sequences" in api.result(future)
    assert engine.sampled == 5


def test_the_lowest_priority_is_sampled_first(make_api: MakeApi) -> None:
    """Of the samples that wait, those with the lowest priority begin first; without one it is 0."""
    seeds: list[int | None] = []

    class Noting(CountingEngine):
        def sample(self, jobs: Sequence[SampleJob]) -> list[Any]:
            seeds.extend(job.seed for job in jobs)
            return super().sample(jobs)

    engine = Noting()
    api = make_api(engine, sample_batch_tokens=1)
    fields = [
        {"params": {"seed": 1, "priority": 1}},
        {"params": {"seed": 2}},
        {"params": {"seed": 3, "priority": -1}},
    ]
    for future in queue_samples(api, engine, fields):
        api.result(future)
    assert seeds == [3, 2, 1]


def test_one_bad_request_does_not_spoil_the_batch(make_api: MakeApi) -> None:
    """Only the invalid request fails; the others get the results that they would get alone."""
    engine = CountingEngine()
    api = make_api(engine)
    good, bad, also = queue_samples(api, engine, [{}, {"params": {"top_p": 7.0}}, {}])
    assert api.failure(bad) == ("user", "top_p is 7.0; it must be from 0 to 1")
    assert api.result(good) == api.result(also)


def test_a_seed_decides_the_sample(api: Api) -> None:
    """The same seed gives the same tokens in any request; without a seed two long
    samples differ.
    """
    sampler = api.sampler(api.session())
    seeded = [api.result(api.sample(sampler, number)) for number in (1, 2)]
    assert seeded[0] == seeded[1]
    free = [
        api.result(api.sample(sampler, n, params={"max_tokens": 40, "seed": None})) for n in (3, 4)
    ]
    assert free[0] != free[1]


@pytest.mark.parametrize("stop", [" ", [" "], [32]])
def test_stops_of_every_form_are_understood(api: Api, stop: Any) -> None:
    """A text, a list of texts or of ids ends the sequence, and is its last token."""
    params = {"max_tokens": 400, "stop": stop}
    (sequence,) = api.result(api.sample(api.sampler(api.session()), params=params))["sequences"]
    assert sequence["stop_reason"] == "stop"
    assert sequence["tokens"].index(32) == len(sequence["tokens"]) - 1


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
        (
            {"tokens": [5] * 9000, "topk_prompt_logprobs": 512},
            "it must be 0 to 466 for a prompt of 9000 tokens",
        ),
        (
            {"tokens": [5] * 9000, "prompt_alt_tokens_k": 512},
            "it must be 0 to 466 for a prompt of 9000 tokens",
        ),
        (
            {"topk_sample_logprobs": 40, "num_samples": 1000, "params": {"max_tokens": 1000}},
            (
                "topk_sample_logprobs is 40; it must be 0 to 4 for 1000 samples of 1000 tokens, as "
                "an answer has at most 4194304"
            ),
        ),
        (
            {"topk_sample_logprobs": 200, "params": {"max_tokens": None}},
            "it must be 0 to 128 for 1 samples of 32766 tokens",
        ),
        ({"target_prompt_logprobs": targets([5], [1])}, "it must be int64 [1, K]"),
        ({"target_prompt_logprobs": targets([5, 5], [2, 1])}, "it must be int64 [1, K]"),
        (
            {"target_prompt_logprobs": {**targets([5], [1, 1]), "dtype": "float32"}},
            "target_prompt_logprobs is float32",
        ),
        ({"target_prompt_logprobs": targets([-1], [1, 1])}, "does not name any token"),
        (
            {"target_prompt_logprobs": targets([700], [1, 1])},
            "target_prompt_logprobs contains token id 700",
        ),
        ({"target_prompt_logprobs": targets([5, 5], [1, 1])}, "target_prompt_logprobs: "),
        ({"prompt_logprobs_last_n": 1}, "needs prompt_logprobs"),
        ({"prompt_logprobs": True, "prompt_logprobs_last_n": 2}, "it must be 1 to 1"),
    ],
)
def test_a_users_mistake_is_reported(api: Api, fields: dict[str, Any], said: str) -> None:
    """An impossible sample is a user error, with the reason."""
    category, error = api.failure(api.sample(api.sampler(api.session()), **fields))
    assert category == "user"
    assert said in error


def test_the_number_of_samples_is_bounded(make_api: MakeApi) -> None:
    """No samples and too many are 400 at once."""
    api = make_api(max_samples=3)
    sampler = api.sampler(api.session())
    for count in (0, 4):
        assert api.refused("asample", sample_body(sampler, num_samples=count))[0] == 400


def test_no_tokens_are_sampled_only_to_score_the_prompt(api: Api) -> None:
    """``max_tokens=0`` is refused in a sentence where the result would be empty, and accepted with
    scores of the prompt.
    """
    sampler = api.sampler(api.session())
    detail = (
        "max_tokens is 0; it must be at least 1, unless log-probabilities of "
        "the prompt are requested"
    )
    assert api.refused("asample", sample_body(sampler, params={"max_tokens": 0})) == (400, detail)
    result = api.result(api.sample(sampler, params={"max_tokens": 0}, prompt_logprobs=True))
    assert [sequence["tokens"] for sequence in result["sequences"]] == [[]]
    assert len(result["prompt_logprobs"]) == 2


def test_only_the_last_prompt_logprobs_are_sent_where_asked(api: Api) -> None:
    """Positions before the suffix are null; the suffix equals that of the full result."""
    sampler = api.sampler(api.session())
    fields = {"tokens": [104, 101, 108, 108], "prompt_logprobs": True}
    whole = api.result(api.sample(sampler, 0, **fields))["prompt_logprobs"]
    tail = api.result(api.sample(sampler, 1, **fields, prompt_logprobs_last_n=2))["prompt_logprobs"]
    assert tail == [None, None, *whole[2:]]


def test_only_the_last_top_k_rows_are_sent_where_asked(api: Api) -> None:
    """The suffix limits the top-k table as well."""
    fields = {"tokens": [104, 101, 108, 108], "prompt_logprobs": True, "topk_prompt_logprobs": 3}
    future = api.sample(api.sampler(api.session()), **fields, prompt_logprobs_last_n=1)
    assert [row and len(row) for row in api.result(future)["topk_prompt_logprobs"]] == [
        None,
        None,
        None,
        3,
    ]


def test_chosen_tokens_of_the_prompt_are_scored(api: Api) -> None:
    """Dense and sparse targets get a tensor of their shape and layout: the model's logprobs, 0
    where there is no target.
    """
    sampler = api.sampler(api.session())
    fields = {"tokens": [104, 101, 108], "topk_prompt_logprobs": 512}
    dense = targets([101, 7, -1, 108], [2, 2])
    sparse = targets([101, 108], [2, 2], sparse_crow_indices=[0, 1, 2], sparse_col_indices=[0, 1])
    futures = [
        api.sample(sampler, n, target_prompt_logprobs=asked, **fields)
        for n, asked in enumerate((dense, sparse))
    ]
    one, other = (
        proto.decode_sample(api.retrieve(future, headers=PROTO).content) for future in futures
    )
    tables = [dict(row or ()) for row in one.topk_prompt_logprobs or ()]
    assert one.target_prompt_logprobs is not None
    expected = [[tables[1][101], tables[1][7]], [0.0, tables[2][108]]]
    assert_near(one.target_prompt_logprobs.to_numpy(), expected)
    assert other.target_prompt_logprobs is not None
    assert (
        other.target_prompt_logprobs.sparse_crow_indices,
        other.target_prompt_logprobs.shape,
    ) == ([0, 1, 2], [2, 2])
    assert_near(other.target_prompt_logprobs.values, [expected[0][0], expected[1][1]])


def test_alternatives_of_the_prompt_are_drawn(api: Api) -> None:
    """For each prompt token but the first come k tokens and their logprobs; the same seed draws the
    same ones.
    """
    sampler = api.sampler(api.session())
    bodies = [
        {"tokens": [104, 101, 108], "prompt_alt_tokens_k": 4, "topk_prompt_logprobs": 512}
    ] * 2
    futures = [api.sample(sampler, number, **fields) for number, fields in enumerate(bodies)]
    first, second = (
        proto.decode_sample(api.retrieve(future, headers=PROTO).content) for future in futures
    )
    drawn = first.prompt_alt_tokens
    assert drawn is not None
    assert second.prompt_alt_tokens is not None
    assert drawn.tokens.tolist() == second.prompt_alt_tokens.tokens.tolist()
    assert (drawn.tokens.dtype, drawn.tokens.shape, drawn.logprobs.shape) == (
        "int64",
        [2, 4],
        [2, 4],
    )
    tables = [dict(row or ()) for row in first.topk_prompt_logprobs or ()][1:]
    known = [
        [table[token] for token in row]
        for table, row in zip(tables, drawn.tokens.to_numpy().tolist())
    ]
    assert_near(drawn.logprobs.to_numpy(), known)


def test_what_json_has_no_field_for_is_a_failure(api: Api) -> None:
    """A client without protobuf gets a failure when it requests scored or drawn tokens, instead of
    none.
    """
    category, error = api.failure(api.sample(api.sampler(api.session()), prompt_alt_tokens_k=1))
    assert (category, "protobuf only" in error) == ("server", True)


def test_copies_of_a_sampler_get_numbers(api: Api) -> None:
    """Copies are numbered 1, 2, 3, ... in each sampling session; an unknown session is 404."""
    session = api.session()
    one, other = api.sampler(session), api.sampler(session, 1)
    numbers = [
        api.ok("join_sampling_session", {"sampling_session_id": name})["client_counter"]
        for name in (one, one, other)
    ]
    assert numbers == [1, 2, 1]
    assert api.refused("join_sampling_session", {"sampling_session_id": "nobody"})[0] == 404


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

    engine = Crashing()
    api = make_api(engine)
    crashed, beside = queue_samples(api, engine, [{"num_samples": 2}, {}])
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
    """A request that runs out of memory is no failure of the server, which clients would repeat; no
    traceback is logged.
    """

    class Small(ToyEngine):
        def sample(self, jobs: Sequence[SampleJob]) -> list[SampleResult]:
            raise error

        def forward_backward(self, *_: Any, **__: Any) -> Any:
            raise error

    api = make_api(Small(vocabulary=512))
    for future in (api.sample(api.sampler(api.session())), api.loss(api.model(), 1)):
        category, said = api.failure(future)
        assert category == "user"
        assert (
            said
            == f"the server has too little memory for this request; ask for less at once ({error})"
        )
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
    """A cancelled request, and those of a session that ends, are removed from the engine between
    two tokens.
    """
    engine = EndlessEngine()
    api = make_api(engine)
    session = api.session()
    future = api.sample(api.sampler(session))
    assert engine.drawn.wait(30)
    if way == "closed":
        api.ok(
            "finish_session", {"reason": {"type": "success"}, "detail": None}, session_id=session
        )
    else:
        api.ok("cancel_future", {"request_id": future["request_id"]})
    assert engine.dropped.wait(30)
    assert {"cancelled": "cancelled by its client", "closed": "has ended"}[way] in api.failure(
        future
    )[1]
    assert engine.jobs == {}


# Weights without a name


def test_old_snapshots_still_sample(api: Api) -> None:
    """Beyond the number of snapshots kept in memory, each one still samples as when it was made."""
    session = api.session()
    model = api.model(session)
    seen: list[tuple[str, list[int]]] = []
    number = 1
    for index in range(IN_MEMORY + 3):
        saved = api.result(save_for_sampler(api, model, number, sampling_session_seq_id=index))
        sampler = saved["sampling_session_id"]
        seen.append((sampler, greedy(api, sampler, 0)))
        number = learn(api, model, number + 1) if index == 0 else number + 1
    assert seen[0][1] != seen[1][1]
    assert [greedy(api, sampler, 1) for sampler, _ in seen] == [tokens for _, tokens in seen]


def test_unnamed_weights_leave_the_disk_with_their_session(
    make_api: MakeApi, tmp_path: Path
) -> None:
    """Files of sampling sessions are deleted with the session or at shutdown; named checkpoints
    stay.
    """
    api = make_api()
    ended, open_ = api.session(), api.session()
    for session in (ended, open_):
        model = api.model(session)
        api.result(save_for_sampler(api, model, 1, sampling_session_seq_id=0))
        api.result(save_for_sampler(api, model, 2, path="kept"))
    assert len(weights_below(tmp_path, SPOOL)) == 2
    api.ok("finish_session", {"reason": {"type": "success"}, "detail": None}, session_id=ended)
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
        api.result(save_for_sampler(api, api.model(), 1, sampling_session_seq_id=0))
    assert not dead.exists()
    assert len(weights_below(tmp_path, SPOOL)) == 2
