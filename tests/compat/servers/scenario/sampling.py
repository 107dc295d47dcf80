"""Sampling in every option."""

import inspect

from steps import NotOffered, step
from world import TEXT, World, near, params, prompt, tokens_of, types, wait

AREA = "Sampling"


def sample(
    world: World,
    count: int = 1,
    tokens: list[int] | None = None,
    *,
    options: dict | None = None,
    **limits,
):
    """Samples with these parameters; ``options`` are the other arguments, which a client may not
    have.
    """
    sampler = world.sampler
    options = options or {}
    lacking = sorted(set(options) - set(inspect.signature(sampler.sample).parameters))
    if lacking:
        raise NotOffered(f"sample has no {lacking}")
    return wait(sampler.sample(prompt(tokens), count, params(**limits), **options))


@step(AREA, "as many tokens as asked for")
def length(world: World) -> None:
    (sequence,) = sample(world, max_tokens=7).sequences
    assert len(sequence.tokens) == 7 or sequence.stop_reason == "stop", sequence


@step(AREA, "the reason why it ended")
def reason(world: World) -> None:
    reasons = {one.stop_reason for one in sample(world, 3, max_tokens=2).sequences}
    assert "length" in reasons and reasons <= {"length", "stop"}, reasons


@step(AREA, "several samples of one prompt")
def several(world: World) -> None:
    assert len(tokens_of(sample(world, 3))) == 3


@step(AREA, "temperature 0 is the likeliest token")
def greedy(world: World) -> None:
    assert tokens_of(sample(world, temperature=0.0)) == tokens_of(sample(world, temperature=0.0))


@step(AREA, "the same seed gives the same tokens")
def seed(world: World) -> None:
    one, other = (tokens_of(sample(world, max_tokens=12, seed=11)) for _ in range(2))
    assert one == other, f"{one}, then {other}"


@step(AREA, "other seeds give other tokens")
def seeds(world: World) -> None:
    assert tokens_of(sample(world, max_tokens=12, seed=11)) != tokens_of(
        sample(world, max_tokens=12, seed=12)
    )


@step(AREA, "logprobs of the sampled tokens")
def logprobs(world: World) -> None:
    (sequence,) = sample(world).sequences
    values = list(sequence.logprobs or [])
    assert len(values) == len(sequence.tokens) and all(value <= 1e-6 for value in values), values


@step(AREA, "they are those of scoring the tokens", seconds=120)
def rescored(world: World) -> None:
    (sequence,) = sample(world).sequences
    scored = wait(world.sampler.compute_logprobs(prompt([*TEXT[:16], *sequence.tokens])))[16:]
    assert near(list(sequence.logprobs or []), list(scored), 0.05), (
        f"{sequence.logprobs}, scored {scored}"
    )


@step(AREA, "top_k of 1 is the likeliest token")
def top_k(world: World) -> None:
    assert tokens_of(sample(world, top_k=1)) == tokens_of(sample(world, temperature=0.0))


@step(AREA, "a small top_p is the likeliest token")
def top_p(world: World) -> None:
    assert tokens_of(sample(world, top_p=1e-6)) == tokens_of(sample(world, temperature=0.0))


@step(AREA, "a stop token ends a sample")
def stop_token(world: World) -> None:
    (whole,) = tokens_of(sample(world, max_tokens=8, temperature=0.0))
    (sequence,) = sample(world, max_tokens=8, temperature=0.0, stop=[whole[3]]).sequences
    first = whole.index(whole[3])
    assert list(sequence.tokens) in (whole[: first + 1], whole[:first]), (
        f"{list(sequence.tokens)} of {whole}"
    )
    assert sequence.stop_reason == "stop", sequence.stop_reason


@step(AREA, "a stop string ends a sample")
def stop_string(world: World) -> None:
    letters = [chr(code) for code in range(32, 127)]
    (sequence,) = sample(world, max_tokens=100, temperature=2.0, seed=3, stop=letters).sequences
    assert len(sequence.tokens) < 100 and sequence.stop_reason == "stop", (
        f"{len(sequence.tokens)} tokens, {sequence.stop_reason}"
    )


@step(AREA, "a prompt in several chunks")
def chunks(world: World) -> None:
    text = types.ModelInput(
        chunks=[types.EncodedTextChunk(tokens=TEXT[:9]), types.EncodedTextChunk(tokens=TEXT[9:16])]
    )
    parted = tokens_of(wait(world.sampler.sample(text, 1, params(temperature=0.0))))
    assert parted == tokens_of(sample(world, temperature=0.0))


@step(AREA, "a prompt of 500 tokens", seconds=120)
def long(world: World) -> None:
    assert tokens_of(sample(world, tokens=(TEXT * 12)[:500]))


@step(AREA, "logprobs of the prompt")
def prompt_logprobs(world: World) -> None:
    values = list(sample(world, options={"include_prompt_logprobs": True}).prompt_logprobs or [])
    assert len(values) == 16 and values[0] is None and all(value <= 1e-6 for value in values[1:]), (
        values
    )


@step(AREA, "compute_logprobs gives the same")
def compute_logprobs(world: World) -> None:
    values = list(sample(world, options={"include_prompt_logprobs": True}).prompt_logprobs or [])
    scored = wait(world.sampler.compute_logprobs(prompt()))
    assert len(scored) == 16 and near(values[1:], list(scored)[1:], 0.05), (
        f"{values}, scored {scored}"
    )


@step(AREA, "the likeliest tokens at each position of the prompt")
def topk_prompt(world: World) -> None:
    answer = sample(world, options={"include_prompt_logprobs": True, "topk_prompt_logprobs": 3})
    rows = answer.topk_prompt_logprobs
    assert rows is not None and len(rows) == 16 and len(rows[5]) == 3, rows


@step(AREA, "the likeliest tokens at each sampled position")
def topk_sample(world: World) -> None:
    (sequence,) = sample(world, options={"topk_sample_logprobs": 2}).sequences
    rows = sequence.topk_logprobs
    assert rows is not None and len(rows) == len(sequence.tokens) and len(rows[0]) == 2, rows


@step(AREA, "logprobs of the last tokens of the prompt only")
def last_n(world: World) -> None:
    answer = sample(world, options={"include_prompt_logprobs": True, "prompt_logprobs_last_n": 4})
    values = list(answer.prompt_logprobs or [])
    assert sum(value is not None for value in values) == 4, values


@step(AREA, "given tokens scored at each position of the prompt")
def targets(world: World) -> None:
    tokens = types.TensorData(data=[65, 66] * 15, dtype="int64", shape=[15, 2])
    assert (
        sample(world, options={"target_prompt_logprobs": tokens}).target_prompt_logprobs is not None
    )


@step(AREA, "sixteen requests at once", seconds=120)
def concurrent(world: World) -> None:
    sampler = world.sampler
    pending = [sampler.sample(prompt([65 + index, *TEXT[:15]]), 1, params()) for index in range(16)]
    assert all(len(tokens_of(wait(one, 110))) == 1 for one in pending)
