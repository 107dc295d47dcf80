"""stable_reinforce: sequences recorded when sampled, referenced by the spans of a datum, and how
long they are kept.
"""

from __future__ import annotations

import logging
from typing import Any

import attrs
import numpy as np
import pytest
from support.api import Api, Clock, MakeApi
from support.tolerances import near

import tinker
from tinker._wire import proto
from tinker.local.app import HANDLERS
from tinker.local.state import recover
from tinker.types import Datum, ModelInput, PromptProvenanceSpan, SampledProvenanceSpan

DAY_SECONDS = 86_400.0
PROMPT = [104, 101, 108]


def sample(
    api: Api, session: str, number: int = 0, *, record: bool = True, count: int = 2
) -> list[dict[str, Any]]:
    """Sequences of three tokens, each with its id."""
    sampler = api.sampler(session, number)
    body = {
        "sampling_session_id": sampler, "seq_id": 1, "num_samples": count, "record_stability_info": record,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": PROMPT}]},
        "sampling_params": {"max_tokens": 3, "seed": 5, "stop": []},
    }  # fmt: skip
    future = api.ok("asample", body)
    pairs = zip(api.result(future)["sequences"], future["sample_sequence_ids"], strict=True)
    return [{**sequence, "sequence_id": name} for sequence, name in pairs]


def sampled(api: Api) -> tuple[str, list[dict[str, Any]]]:
    """Return a new model, and sequences of its session."""
    session, model = api.begin()
    return model, sample(api, session)


def to_datum(sequence: dict[str, Any], advantage: float = 1.0) -> Datum:
    """Make the datum of a sequence as the cookbook does: targets of the prompt are 0."""
    name, tokens = sequence["sequence_id"], sequence["tokens"]
    before, count = len(PROMPT) - 1, len(tokens)
    datum = Datum(
        ModelInput.from_ints(PROMPT + tokens[:-1]),
        {
            "target_tokens": [0] * before + tokens, "logprobs": [0.0] * before + sequence["logprobs"],
            "advantages": [0.0] * before + [advantage] * count,
        },
    )  # fmt: skip
    return datum.with_provenance(
        [
            PromptProvenanceSpan(sequence_id=name, length=before + 1),
            SampledProvenanceSpan(sequence_id=name, length=count - 1),
        ],
        [
            PromptProvenanceSpan(sequence_id=name, offset=1, length=before),
            SampledProvenanceSpan(sequence_id=name, length=count),
        ],
    )


def train(
    api: Api, model: str, number: int, data: list[Datum], config: dict[str, float] | None = None
) -> Any:
    """Submit a loss as protobuf, the only form that has spans."""
    head = proto.forward_backward_head(
        model, number, "stable_reinforce", dict(config or {}), forward_only=False
    )
    content = b"".join([*head, *map(bytes, proto.encode_data(data))])
    return api.call("forward_backward", content=content, headers={"content-type": proto.MEDIA_TYPE})


def refuse(api: Api, model: str, number: int, data: list[Datum]) -> str:
    answer = train(api, model, number, data)
    assert answer.status_code == 422, answer.text
    return str(answer.json()["detail"][0]["msg"])


def test_a_recorded_sequence_is_trained_on(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """The loss is truncated REINFORCE with the recorded log-probabilities, whatever the datum says
    they were.
    """
    model, (one, _) = sampled(api)
    lied = to_datum(one, 2.0)
    lied.loss_fn_inputs["logprobs"] = tinker.TensorData.from_numpy(np.full(5, -9.0, np.float32))
    with caplog.at_level(logging.INFO, "tinker.local"):
        metrics = api.result(train(api, model, 1, [lied]).json())["metrics"]
        api.result(train(api, model, 2, [lied]).json())
    # they are float32, in the exponent of a ratio and beside it
    size = 2.0 * sum(value * value for value in one["logprobs"])
    assert metrics["loss:sum"] == near(-2.0 * sum(one["logprobs"]), 5, size)
    assert (metrics["ratio:min"], metrics["ratio:max"]) == near((1.0, 1.0), 1, size)
    assert (metrics["tokens:sum"], metrics["truncated_reinforce/clipped:sum"]) == (3.0, 0.0)
    assert sum("not published" in record.getMessage() for record in caplog.records) == 1


def test_the_mask_of_a_datum_counts_as_well(api: Api) -> None:
    """A sampled token that the datum masks has no effect."""
    model, (one, _) = sampled(api)
    masked = to_datum(one)
    masked.loss_fn_inputs["mask"] = tinker.TensorData.from_numpy(
        np.array([1, 1, 0, 1, 1], np.float32)
    )
    assert api.result(train(api, model, 1, [masked]).json())["metrics"]["tokens:sum"] == 2.0


def test_what_cannot_be_named_is_refused(make_api: MakeApi) -> None:
    """Unknown, foreign and unrecorded sequences are refused with datum and field, and later
    requests do not wait for them.
    """
    api = make_api(gap_seconds=10_000.0)
    session, other = api.session(), api.session()
    model, good = api.model(session), sample(api, session)
    foreign, unrecorded = sample(api, other)[0], sample(api, session, 1, record=False)[0]
    said = refuse(
        api, model, 1, [to_datum(good[0]), to_datum({**good[1], "sequence_id": "nobody"})]
    )
    assert said.startswith(
        "stable_reinforce: data[1].model_input_spans: there is no record of the sequence 'nobody'"
    )
    assert "belongs to another session" in refuse(api, model, 2, [to_datum(foreign)])
    assert "sampled without record_stability_info=True" in refuse(
        api, model, 3, [to_datum(unrecorded)]
    )
    assert "loss:sum" in api.result(train(api, model, 4, [to_datum(good[0])]).json())["metrics"]


@pytest.mark.parametrize(
    ("spans", "said"),
    [
        ((None, None), "data[0] has no provenance"),
        (
            ([("p", 0, 3), ("s", 0, 1)], [("p", 1, 2), ("s", 0, 3)]),
            "model_input_spans cover 4 tokens, and there are 5",
        ),
        (
            ([("p", 0, 3), ("s", 0, 2)], [("p", 1, 2), ("s", 0, 4)]),
            "loss_fn_input_spans cover 6 tokens, and there are 5",
        ),
        (
            ([("p", 0, 4), ("s", 1, 1)], [("p", 1, 2), ("s", 0, 3)]),
            "0 to 4 are not in the 3 tokens of the prompt",
        ),
        (
            ([("p", 0, 3), ("s", 0, 2)], [("p", 1, 2), ("s", 1, 3)]),
            "1 to 4 are not in the 3 sampled tokens",
        ),
        (
            ([("p", 0, 3), ("s", 1, 2)], [("p", 1, 2), ("s", 0, 3)]),
            "the token at position 3 is not the one that was sampled",
        ),
        (
            ([("p", 0, 3), ("s", 0, 2)], [("p", 0, 3), ("s", 1, 2)]),
            "advantages is not 0 at position 2",
        ),
    ],
)
def test_spans_that_do_not_fit_are_refused(api: Api, spans: Any, said: str) -> None:
    """Spans that are missing, or do not match the datum or the sequence, are refused by name."""
    model, (one, _) = sampled(api)
    assert len(set(one["tokens"])) > 1
    kinds: Any = {"p": PromptProvenanceSpan, "s": SampledProvenanceSpan}

    def make(parts: Any) -> Any:
        return parts and [
            kinds[kind](sequence_id=one["sequence_id"], offset=at, length=n)
            for kind, at, n in parts
        ]

    datum = attrs.evolve(
        to_datum(one), model_input_spans=make(spans[0]), loss_fn_input_spans=make(spans[1])
    )
    assert said in refuse(api, model, 1, [datum])


def test_spans_that_overlap_are_refused(api: Api) -> None:
    """Two positions with the same sampled token as target are refused."""
    model, (one, _) = sampled(api)
    name, tokens = one["sequence_id"], one["tokens"]
    spans = [SampledProvenanceSpan(sequence_id=name, offset=at, length=2) for at in (0, 1)]
    targets = [tokens[0], tokens[1], tokens[1], tokens[2]]
    datum = Datum(
        ModelInput.from_ints(targets), {"target_tokens": targets, "advantages": [1.0] * 4}
    )
    assert "loss_fn_input_spans overlap" in refuse(
        api, model, 1, [datum.with_provenance(spans, spans)]
    )


def test_a_day_without_use(make_api: MakeApi, clock: Clock) -> None:
    """A sequence is kept for a day after its last use, and refused afterwards."""
    api = make_api(clock=clock, idle_session_seconds=10 * DAY_SECONDS)
    model, (used, unused) = sampled(api)
    clock.seconds += 0.9 * DAY_SECONDS
    api.result(train(api, model, 1, [to_datum(used)]).json())
    clock.seconds += 0.9 * DAY_SECONDS
    assert "has expired: it was not used for 86400 s" in refuse(api, model, 2, [to_datum(unused)])
    assert "loss:sum" in api.result(train(api, model, 3, [to_datum(used)]).json())["metrics"]


def test_as_many_as_there_may_be(make_api: MakeApi) -> None:
    """Beyond the limit the sequences unused for longest are dropped, and all of a session when it
    ends.
    """
    api = make_api(max_recorded_tokens=8)
    session, model = api.begin()
    first, second = sample(api, session)
    api.result(train(api, model, 1, [to_datum(first)]).json())
    sample(api, session, 1, count=1)
    assert api.shared.recorded.tokens == 6
    assert "there is no record" in refuse(api, model, 2, [to_datum(second)])
    api.result(train(api, model, 3, [to_datum(first)]).json())
    api.finish(session)
    assert api.shared.recorded.tokens == 0


def test_the_same_request_again(make_api: MakeApi, clock: Clock) -> None:
    """A request whose answer was lost is accepted again after its sequences were dropped; one with
    another datum is refused.
    """
    api = make_api(clock=clock, idle_session_seconds=10 * DAY_SECONDS)
    session = api.session()
    model, (one, other) = api.model(session), sample(api, session)
    accepted = train(api, model, 1, [to_datum(one)]).json()
    clock.seconds += 60.0
    api.shared.recorded.drop_session(session)
    assert train(api, model, 1, [to_datum(one)]).json()["request_id"] == accepted["request_id"]
    renamed = {**one, "sequence_id": other["sequence_id"]}
    assert train(api, model, 1, [to_datum(renamed)]).status_code == 409


def test_a_kill_keeps_what_was_recorded(make_api: MakeApi) -> None:
    """With durability `step` the next process computes lost gradients again, and accepts the ids of
    the previous one.
    """
    api = make_api(durability="step")
    model, (one, other) = sampled(api)
    repeated = train(api, model, 1, [to_datum(one)]).json()
    before = api.result(repeated)["metrics"]
    api.state.journal.close()  # as the end of its process does
    again = make_api(durability="step")
    again.runner.run(recover(again.state, HANDLERS))
    assert again.shared.recorded.tokens == 6
    again.wait(repeated)
    assert again.result(repeated)["metrics"] == before
    assert "loss:sum" in again.result(train(again, model, 2, [to_datum(other)]).json())["metrics"]
