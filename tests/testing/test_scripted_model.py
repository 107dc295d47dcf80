"""The scripted model of a test server: samples, log-probabilities and losses."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.tolerances import near

import tinker
from tinker.testing import FaultyServer, ScriptedSample, toy_server
from tinker.testing.server import locate

PROMPT = tinker.ModelInput.from_ints(list(b"2 + 2 ="))
PARAMS = tinker.SamplingParams(max_tokens=8)
DATUM = tinker.Datum(PROMPT, {"target_tokens": list(b" + 2 = ")})


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with toy_server() as server:
        yield server


@pytest.fixture
def sampler(server: FaultyServer) -> tinker.SamplingClient:
    return server.service().create_sampling_client(base_model="tinker/toy")


def say(
    sampler: tinker.SamplingClient, count: int = 1, prompt: tinker.ModelInput = PROMPT
) -> list[str]:
    sequences = sampler.sample(prompt, count, PARAMS).result(30).sequences
    return [bytes(one.tokens).decode() for one in sequences]


def test_samples_come_in_order(server: FaultyServer, sampler: tinker.SamplingClient) -> None:
    """Answers are said once each, in their order; what is longer than max_tokens is cut."""
    server.script_samples(["a", [98, 99]])
    server.script_samples(["0123456789"])
    assert say(sampler, 2) == ["a", "bc"]
    cut = sampler.sample(PROMPT, 1, PARAMS).result(30).sequences[0]
    assert (bytes(cut.tokens), cut.stop_reason) == (b"01234567", "length")
    server.verify()


def test_samples_by_prompt_and_by_rule(
    server: FaultyServer, sampler: tinker.SamplingClient
) -> None:
    """Each prompt has its own answers, in any order of requests; a rule answers all others."""
    server.script_samples({"one": ["1"], "two": ["2", "zwei"]})
    server.script_samples(lambda prompt: prompt[:2] or "empty")
    one, two = (tinker.ModelInput.from_ints(list(text)) for text in (b"one", b"two"))
    futures = [sampler.sample(prompt, 1, PARAMS) for prompt in (two, one, two, PROMPT)]
    said = [bytes(future.result(30).sequences[0].tokens) for future in futures]
    assert sorted((said[0], said[2])) == [b"2", b"zwei"]
    assert (said[1], said[3]) == (b"1", b"2 ")


def test_logprobs_are_real_unless_scripted(
    server: FaultyServer, sampler: tinker.SamplingClient
) -> None:
    """An answer has the weights' log-probabilities, or those of the script or of a rule."""
    server.script_samples(
        [" 4", ScriptedSample(" 4", logprobs=[-0.5, -0.25], stop_reason="length")]
    )
    real, scripted = sampler.sample(PROMPT, 2, PARAMS).result(30).sequences
    whole = tinker.ModelInput.from_ints([*PROMPT.to_ints(), *real.tokens])
    assert list(real.logprobs or []) == near(sampler.compute_logprobs(whole).result(30)[-2:])
    assert (scripted.logprobs, scripted.stop_reason) == ([-0.5, -0.25], "length")
    server.script_logprobs(lambda tokens: [-token / 1024 for token in tokens[1:]])
    assert sampler.compute_logprobs(tinker.ModelInput.from_ints([1, 512, 256])).result(30) == [
        None,
        -0.5,
        -0.25,
    ]


def test_what_is_scripted_is_streamed(server: FaultyServer, sampler: tinker.SamplingClient) -> None:
    """A stream says the same as a sample; an empty answer is the token that ends a text."""
    server.script_samples(["abc", ""])
    chunks = list(sampler.sample_stream(PROMPT, 1, PARAMS))
    assert b"".join(bytes(list(chunk.tokens)) for chunk in chunks) == b"abc"
    assert sampler.sample(PROMPT, 1, PARAMS).result(30).sequences[0].tokens == [256]


def test_a_prompt_that_is_not_in_the_script(
    server: FaultyServer, sampler: tinker.SamplingClient
) -> None:
    """The error of a prompt without a response names the prompts that have some."""
    server.script_samples({"3 + 3 =": ["6"]})
    with pytest.raises(
        tinker.RequestFailedError,
        match=r"no response left for the prompt '.*'; 1 asked for, 0 left; it has",
    ):
        say(sampler)


ANSWER = "a response must be a string, token ids or a ScriptedSample, got"


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        (lambda server: server.script_samples("text"), TypeError, "takes a list of responses"),
        (
            lambda server: server.script_samples(ScriptedSample("a")),
            TypeError,
            "takes a list of responses",
        ),
        (
            lambda server: server.script_samples({"2 + 2 =": "4"}),
            TypeError,
            r"for each prompt: write {'2 \+ 2 =': \['4'\]}",
        ),
        *(
            (lambda server, wrong=wrong: server.script_samples([wrong]), TypeError, ANSWER)
            for wrong in (5, None, [1.5], ["a"])
        ),
        (
            lambda server: server.script_logprobs(5),
            TypeError,
            "script_logprobs takes a function, got 5",
        ),
        (
            lambda server: server.script_losses(5),
            TypeError,
            "script_losses takes a list of losses or a function, got 5",
        ),
        (
            lambda server: server.script_losses([0.5, "x"]),
            TypeError,
            r"losses\[1\] must be a number, got 'x'",
        ),
        (lambda _: ScriptedSample("ab", logprobs=[0.0]), ValueError, "1 logprobs for 2 tokens"),
        (
            lambda _: ScriptedSample("ab", logprobs=[0.5, "x"]),  # type: ignore[list-item]
            TypeError,
            r"logprobs\[1\] must be a number, got 'x'",
        ),
        (
            lambda _: ScriptedSample("a", logprobs=[math.nan]),
            ValueError,
            "a log-probability cannot be NaN",
        ),
    ],
)
def test_what_is_no_script(
    server: FaultyServer, script: Callable[[Any], None], error: type[Exception], words: str
) -> None:
    """What cannot be said, or would be read letter by letter, is refused on the line of the test."""
    with pytest.raises(error, match=words):
        script(server)
    server.verify()


def test_what_arrived_is_read_in_any_format(
    server: FaultyServer, sampler: tinker.SamplingClient
) -> None:
    """Losses and samples that arrived show their arguments; others say which have them."""
    sampler.sample(PROMPT, 3, PARAMS).result(30)
    for wire in ("proto", "json"):
        training = server.service(wire=wire).create_lora_training_client("tinker/toy", rank=4)
        training.forward_backward([DATUM], "cross_entropy").result(30)
        training.forward([DATUM], "cross_entropy").result(30)
        training.optim_step(tinker.AdamParams(learning_rate=0.5)).result(30)
    assert {asked.adam_params.learning_rate for asked in server.requests("optim_step")} == {0.5}
    for one in (*server.requests("forward_backward"), *server.requests("forward")):
        assert (one.loss_fn, one.loss_fn_config, one.data) == ("cross_entropy", {}, [DATUM])
    asked = server.requests("asample")[0]
    assert (asked.prompt.to_ints(), asked.num_samples) == (PROMPT.to_ints(), 3)
    assert asked.sampling_params == PARAMS
    with pytest.raises(ValueError, match="of asample, not of forward or forward_backward"):
        _ = asked.loss_fn
    with pytest.raises(ValueError, match=r"protobuf; read \.data, \.loss_fn and \.loss_fn_config"):
        _ = server.requests("forward_backward")[0].json


def test_losses_are_reported_as_scripted(server: FaultyServer) -> None:
    """Requests report the losses of the list, then of the rule; training goes on underneath."""
    server.script_losses([3.0, 2.0])
    server.script_losses(lambda loss_fn, number: {"cross_entropy": 100.0}[loss_fn] + number)
    training = server.service().create_lora_training_client("tinker/toy", rank=4)
    outputs = [training.forward_backward([DATUM], "cross_entropy").result(30) for _ in range(2)]
    assert [one.loss for one in outputs] == [3.0, 2.0]
    assert training.forward([DATUM], "cross_entropy").result(30).loss == 102.0
    assert outputs[0].loss_fn_outputs[0]["logprobs"].tolist()[0] < 0


def test_what_the_script_lacks_fails(server: FaultyServer, sampler: tinker.SamplingClient) -> None:
    """What is asked for too often is refused in a sentence; what nobody asks for fails verify."""
    server.script_samples(["a"])
    with pytest.raises(
        tinker.RequestFailedError,
        match=r"no response left for the prompt '.*'; 2 asked for, 1 left",
    ):
        say(sampler, 2)
    server.script_samples(lambda prompt: 1 / 0)  # type: ignore[arg-type,return-value]
    with pytest.raises(
        tinker.RequestFailedError, match="raised ZeroDivisionError: division by zero"
    ):
        say(sampler)
    server.script_losses([1.0])
    server.script_samples({"x": ["1", "2"]})
    with pytest.raises(AssertionError, match=r"never used: 2 samples for 'x'; 1 loss\b"):
        server.verify()
    server.forget()
    server.verify()
    assert sampler.sample(PROMPT, 1, PARAMS).result(30).sequences[0].tokens


def _read_failure(ask: Callable[[], object]) -> str:
    """Return the server's reason for the failure of a call."""
    with pytest.raises(tinker.RequestFailedError) as caught:
        ask()
    assert caught.value.category == "user"
    return caught.value.reason


def _name_rule(rule: Callable[..., object]) -> str:
    return f"the rule {rule.__qualname__} ({__file__}:{rule.__code__.co_firstlineno})"  # type: ignore[attr-defined]


def lose(server: FaultyServer) -> float:
    training = server.service().create_lora_training_client("tinker/toy", rank=4)
    return training.forward_backward([DATUM], "cross_entropy").result(30).loss


SAMPLES, LOGPROBS, LOSSES = "script_samples", "script_logprobs", "script_losses"


WANTED = {
    SAMPLES: "it must return a string, token ids or a ScriptedSample",
    LOGPROBS: "it must return a number for each token after the first, none of them NaN; here 6 numbers",
    LOSSES: "it must return a number",
}


@pytest.mark.parametrize(
    ("kind", "rule", "said"),
    [
        (SAMPLES, lambda prompt: {}["answer"], "raised KeyError: 'answer'"),
        (
            SAMPLES,
            lambda: "4",
            "raised TypeError: <lambda>() takes 0 positional arguments but 1 was given",
        ),
        (SAMPLES, lambda prompt: ["4", "5"], "returned ['4', '5'] of length 2"),
        (SAMPLES, lambda prompt: None, "returned None"),
        (SAMPLES, lambda prompt: [52.5], "returned [52.5] of length 1"),
        (SAMPLES, lambda prompt: [-1], "returned [-1] of length 1"),
        (SAMPLES, lambda prompt: [2**40], "returned [1099511627776] of length 1"),
        (LOGPROBS, lambda tokens: {}[tokens[0]], "raised KeyError: 50"),
        (LOGPROBS, lambda tokens: None, "returned None"),
        (LOGPROBS, lambda tokens: [], "returned [] of length 0"),
        (LOGPROBS, lambda tokens: [0.0] * 7, f"returned {[0.0] * 7} of length 7"),
        (LOGPROBS, lambda tokens: [math.nan] * 6, f"returned {[math.nan] * 6} of length 6"),
        (LOGPROBS, lambda tokens: [None] * 6, f"returned {[None] * 6} of length 6"),
        (LOGPROBS, lambda tokens: "123456", "returned '123456'"),
        (LOSSES, lambda loss_fn, number: {}[loss_fn], "raised KeyError: 'cross_entropy'"),
        (LOSSES, lambda loss_fn, number: None, "returned None"),
        (LOSSES, lambda loss_fn, number: "1.5", "returned '1.5'"),
        (LOSSES, lambda loss_fn, number: [1.0], "returned [1.0] of length 1"),
    ],
)
def test_a_rule_that_fails(
    server: FaultyServer, sampler: tinker.SamplingClient, kind: str, rule: Any, said: str
) -> None:
    """The error names the rule, where it is written, what it returned and what it must."""
    getattr(server, kind)(rule)
    asks = {
        SAMPLES: lambda: say(sampler),
        LOGPROBS: lambda: sampler.compute_logprobs(PROMPT).result(30),
        LOSSES: lambda: lose(server),
    }
    assert _read_failure(asks[kind]) == f"{_name_rule(rule)} {said}; {WANTED[kind]}"


def test_a_loss_may_be_nan(server: FaultyServer) -> None:
    """A scripted loss that is NaN is reported, as a run's may be."""
    server.script_losses([math.nan])
    assert math.isnan(lose(server))


def test_rules_that_are_no_plain_functions() -> None:
    """A partial or decorated function is named by the one within, an object by its class."""

    def answer(prompt: str, said: str) -> str:
        return said

    @functools.wraps(answer)
    def decorated(*given: str) -> str:
        return answer(*given)

    class Answering:
        def __call__(self, prompt: str) -> str:
            return prompt

    inside = f"{answer.__qualname__} ({__file__}:{answer.__code__.co_firstlineno})"
    assert locate(functools.partial(answer, said="4")) == locate(decorated) == inside
    assert locate(Answering()).startswith(f"{Answering.__qualname__} ({__file__}:")
    assert locate(len) == "len"


def test_what_a_scripted_sample_cannot_have(
    server: FaultyServer, sampler: tinker.SamplingClient
) -> None:
    """A token that the model lacks is refused when it is scored."""
    server.script_samples([[10**6]])
    said = _read_failure(lambda: say(sampler))
    assert said.startswith("the scripted response contains token id 1000000")


def test_a_server_without_a_model_of_its_own(server: FaultyServer) -> None:
    """An application of the user's has no model to script."""
    with pytest.raises(ValueError, match="use toy_server"):
        FaultyServer(lambda *_: None).script_losses([1.0])  # type: ignore[arg-type,return-value]
