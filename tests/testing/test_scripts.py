"""What the model of a test server says, by script."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tinker
from tinker.testing import FaultyServer, ScriptedSample, toy_server

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


def say(sampler: tinker.SamplingClient, count: int = 1, prompt: tinker.ModelInput = PROMPT) -> list[str]:
    sequences = sampler.sample(prompt, count, PARAMS).result(30).sequences
    return [bytes(one.tokens).decode() for one in sequences]


def test_samples_come_in_order(server: FaultyServer, sampler: tinker.SamplingClient) -> None:
    """Answers are said once each, in their order over requests; what is longer than max_tokens is cut, with reason length."""
    server.script_samples(["a", [98, 99]])
    server.script_samples(["0123456789"])
    assert say(sampler, 2) == ["a", "bc"]
    cut = sampler.sample(PROMPT, 1, PARAMS).result(30).sequences[0]
    assert (bytes(cut.tokens), cut.stop_reason) == (b"01234567", "length")
    server.verify()


def test_samples_by_prompt_and_by_rule(server: FaultyServer, sampler: tinker.SamplingClient) -> None:
    """Each prompt has its own answers, whatever the order of requests; a rule answers all others."""
    server.script_samples({"one": ["1"], "two": ["2", "zwei"]})
    server.script_samples(lambda prompt: prompt[:2] or "empty")
    one, two = (tinker.ModelInput.from_ints(list(text)) for text in (b"one", b"two"))
    futures = [sampler.sample(prompt, 1, PARAMS) for prompt in (two, one, two, PROMPT)]
    said = [bytes(future.result(30).sequences[0].tokens) for future in futures]
    assert sorted((said[0], said[2])) == [b"2", b"zwei"]
    assert (said[1], said[3]) == (b"1", b"2 ")


def test_logprobs_are_real_unless_scripted(server: FaultyServer, sampler: tinker.SamplingClient) -> None:
    """An answer has the log-probabilities that the weights give it, or those of the script; compute_logprobs follows a rule."""
    server.script_samples([" 4", ScriptedSample(" 4", logprobs=[-0.5, -0.25], stop_reason="length")])
    real, scripted = sampler.sample(PROMPT, 2, PARAMS).result(30).sequences
    whole = tinker.ModelInput.from_ints([*PROMPT.to_ints(), *real.tokens])
    assert list(real.logprobs or []) == pytest.approx(sampler.compute_logprobs(whole).result(30)[-2:], abs=1e-5)
    assert (scripted.logprobs, scripted.stop_reason) == ([-0.5, -0.25], "length")
    server.script_logprobs(lambda tokens: [-token / 1024 for token in tokens[1:]])
    assert sampler.compute_logprobs(tinker.ModelInput.from_ints([1, 512, 256])).result(30) == [None, -0.5, -0.25]
    server.script_logprobs(lambda tokens: [])
    with pytest.raises(tinker.RequestFailedError, match="the rule returned 0 logprobs for 6 tokens"):
        sampler.compute_logprobs(PROMPT).result(30)


def test_what_is_scripted_is_streamed(server: FaultyServer, sampler: tinker.SamplingClient) -> None:
    """A stream says the same as a sample; an empty answer is the token that ends a text."""
    server.script_samples(["abc", ""])
    chunks = list(sampler.sample_stream(PROMPT, 1, PARAMS))
    assert b"".join(bytes(list(chunk.tokens)) for chunk in chunks) == b"abc"
    assert sampler.sample(PROMPT, 1, PARAMS).result(30).sequences[0].tokens == [256]


def test_losses_are_reported_as_scripted(server: FaultyServer) -> None:
    """Requests report the losses of the list, then those of the rule; training goes on underneath."""
    server.script_losses([3.0, 2.0])
    server.script_losses(lambda loss_fn, number: {"cross_entropy": 100.0}[loss_fn] + number)
    training = server.service().create_lora_training_client("tinker/toy", rank=4)
    outputs = [training.forward_backward([DATUM], "cross_entropy").result(30) for _ in range(2)]
    assert [one.loss for one in outputs] == [3.0, 2.0]
    assert training.forward([DATUM], "cross_entropy").result(30).loss == 102.0
    assert outputs[0].loss_fn_outputs[0]["logprobs"].tolist()[0] < 0


def test_what_the_script_lacks_fails(server: FaultyServer, sampler: tinker.SamplingClient) -> None:
    """A sample too many, a loss too many and a rule that fails are refused with a sentence; what nobody asked for fails verify."""
    server.script_samples(["a"])
    with pytest.raises(tinker.RequestFailedError, match="no response left for the prompt"):
        say(sampler, 2)
    server.script_samples(lambda prompt: 1 / 0)  # type: ignore[arg-type,return-value]
    with pytest.raises(tinker.RequestFailedError, match="a rule of the script failed: ZeroDivisionError"):
        say(sampler)
    server.script_losses([1.0])
    server.script_samples({"x": ["1", "2"]})
    with pytest.raises(AssertionError, match=r"never used: 2 samples for 'x'; 1 loss\b"):
        server.verify()
    server.forget()
    server.verify()
    assert sampler.sample(PROMPT, 1, PARAMS).result(30).sequences[0].tokens


@pytest.mark.parametrize("wrong", ["text", ScriptedSample("a")])
def test_one_answer_is_no_list(server: FaultyServer, wrong: Any) -> None:
    """A single answer, which would be read letter by letter, is refused on the line of the test."""
    with pytest.raises(TypeError, match="takes a list of responses"):
        server.script_samples(wrong)
    with pytest.raises(ValueError, match="1 logprobs for 2 tokens"):
        ScriptedSample("ab", logprobs=[0.0])


@pytest.mark.parametrize("wrong", [5, None, [1.5], ["a"]])
def test_what_is_no_answer(server: FaultyServer, wrong: Any) -> None:
    """An answer that is neither text nor token ids is refused on the line of the test."""
    with pytest.raises(TypeError, match="a response must be a string, token ids or a ScriptedSample, got"):
        server.script_samples([wrong])


def test_a_server_without_a_model_of_its_own(server: FaultyServer) -> None:
    """An application of the user's has no model to script."""
    with pytest.raises(ValueError, match="use toy_server"):
        FaultyServer(lambda *_: None).script_losses([1.0])  # type: ignore[arg-type,return-value]
