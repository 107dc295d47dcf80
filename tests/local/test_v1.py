"""The OpenAI-compatible endpoints, called by the official openai client."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from support.api import GatedEngine, MakeApi

import tinker
from tinker.local import Settings, State, create_app, running_server, serve_in_thread, v1
from tinker.local.call import HEADER
from tinker.local.engines import PACKAGED_FOLDER
from tinker.local.engines.toy import ToyEngine
from tinker.local.v1 import ChatForm, ModelTexts, SampleText, Texts, load_texts

openai = pytest.importorskip("openai")
MODEL = "tinker/toy"
KEY = "a key"
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Yield a server with a key."""
    with running_server(Settings(data_dir=tmp_path, api_key=KEY)) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    """Yield the openai client, without retries."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
def checkpoint(url: str) -> str:
    """Weights trained to produce only ``e``."""
    service = tinker.ServiceClient(base_url=url, api_key=KEY)
    training = service.create_lora_training_client(base_model=MODEL, rank=8)
    text = [101] * 32
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(text[:-1]),
        loss_fn_inputs={"target_tokens": text[1:], "weights": [1.0] * 31},
    )
    for _ in range(3):
        training.forward_backward([datum], "cross_entropy").result()
        training.optim_step(tinker.AdamParams(learning_rate=1.0)).result()
    return training.save_weights_for_sampler("e").result().path


def test_a_completion_is_the_sample_of_the_same_seed(client: Any, url: str) -> None:
    """A completion has the tokens of the contract's sample operation with the same seed."""
    answer = client.completions.create(
        model=MODEL, prompt="The", max_tokens=12, seed=3, temperature=0.7, top_p=0.9, n=2
    )
    params = tinker.SamplingParams(max_tokens=12, seed=3, temperature=0.7, top_p=0.9)
    sampler = tinker.ServiceClient(base_url=url, api_key=KEY).create_sampling_client(
        base_model=MODEL
    )
    sampled = sampler.sample(tinker.ModelInput.from_ints(list(b"The")), 2, params).result()
    assert [choice.text for choice in answer.choices] == [
        bytes(s.tokens).decode() for s in sampled.sequences
    ]
    assert [choice.finish_reason for choice in answer.choices] == ["length", "length"]
    assert (
        answer.usage.prompt_tokens,
        answer.usage.completion_tokens,
        answer.usage.total_tokens,
    ) == (3, 24, 27)


def test_a_checkpoint_is_a_model(client: Any, checkpoint: str) -> None:
    """A checkpoint is listed and described as a model, and completes with what it
    was trained on.
    """
    assert [model.id for model in client.models.list()] == [MODEL, checkpoint]
    assert client.models.retrieve(checkpoint).id == checkpoint
    assert client.models.retrieve(MODEL).created == 0
    answer = client.completions.create(model=checkpoint, prompt="e", max_tokens=8, temperature=0)
    assert answer.choices[0].text == "eeeeeeee"
    chat = client.chat.completions.create(
        model=checkpoint, messages=[{"role": "user", "content": "e"}], max_tokens=4, temperature=0
    )
    assert chat.model == checkpoint


def test_a_run_is_a_model_by_its_name(client: Any, url: str) -> None:
    """The name or the ID of a run is its newest checkpoint to sample from; a name of a run without
    one is refused.
    """
    service = tinker.ServiceClient(base_url=url, api_key=KEY)
    training = service.create_lora_training_client(MODEL, rank=2, user_metadata={"name": "pig"})
    with pytest.raises(openai.NotFoundError, match="'pig' is not offered"):
        client.completions.create(model="pig", prompt="e", max_tokens=1)
    paths = [training.save_weights_for_sampler(name).result().path for name in ("one", "two")]
    for name in ("pig", training.result().model_id):
        assert client.models.retrieve(name).id == paths[1]
        assert client.completions.create(model=name, prompt="e", max_tokens=1).model == paths[1]


def test_checkpoints_of_models_that_are_not_served_are_not_listed(tmp_path: Path) -> None:
    """After a restart with another model, only checkpoints that can be sampled are listed."""
    for name in (MODEL, "tinker/other"):
        engine = ToyEngine(base_model=name)
        with serve_in_thread(
            State(lambda engine=engine: engine, Settings(data_dir=tmp_path))
        ) as url:  # type: ignore[misc]
            training = tinker.ServiceClient(base_url=url).create_lora_training_client(
                base_model=name, rank=4
            )
            path = training.save_weights_for_sampler("x").result().path
            listed = [model["id"] for model in httpx.get(f"{url}/v1/models").json()["data"]]
            assert listed == [name, path]


def test_a_chat_ends_at_max_tokens_and_has_a_role(client: Any) -> None:
    """A chat that ends at max_tokens has a role and the reason, in the form that chat front ends
    read.
    """
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    answers = [
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": content}],
            seed=1,
            max_completion_tokens=6,
        )
        for content in ("Hello", parts)
    ]
    assert len({answer.choices[0].message.content for answer in answers}) == 1
    assert answers[0].choices[0].message.role == "assistant"
    assert answers[0].choices[0].finish_reason == "length"
    assert answers[0].usage.prompt_tokens == len("User: Hello\nAssistant:")


@pytest.mark.parametrize("top", [None, 3])
def test_a_stream_says_what_the_whole_answer_says(client: Any, top: int | None) -> None:
    """A stream has the text, log-probabilities, reasons and usage of the full response, for each
    sample.
    """
    wanted: dict[str, Any] = {
        "model": MODEL,
        "messages": HELLO,
        "n": 2,
        "seed": 5,
        "max_tokens": 20,
        "logprobs": True,
    }
    wanted |= {} if top is None else {"top_logprobs": top}
    whole = client.chat.completions.create(**wanted)
    texts, logprobs, ends, usage = ["", ""], [[], []], ["", ""], None
    for chunk in client.chat.completions.create(
        **wanted, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            logprobs[choice.index] += choice.logprobs.content if choice.logprobs else []  # type: ignore[operator]
            ends[choice.index] = choice.finish_reason or ends[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert logprobs == [choice.logprobs.content for choice in whole.choices]
    assert ends == [choice.finish_reason for choice in whole.choices]
    assert usage == whole.usage
    assert all(len(token.top_logprobs) == (top or 0) for token in logprobs[0])  # type: ignore[attr-defined]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_ends_the_text_before_it(client: Any, stream: bool) -> None:
    """A stop of several tokens that arrives in parts is not part of the text."""
    whole = (
        client.completions.create(model=MODEL, prompt="The", max_tokens=200, seed=3).choices[0].text
    )
    stop = whole[40:43]
    found = client.completions.create(
        model=MODEL, prompt="The", max_tokens=200, seed=3, stop=[stop, "never"], stream=stream
    )
    chunks = list(found) if stream else [found]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole[: whole.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_the_end_of_text_ends_a_text_that_has_stops() -> None:
    """A request's stop does not turn off the model's end of text, and what follows the end is
    dropped.
    """
    text = SampleText(Texts(), ["never"], Texts.ends)
    parts = [text.add(token, -1.0) for token in (104, 105, 256, 106)]
    assert ("".join(parts), text.finish_reason, text.token_count) == ("hi", "stop", 3)


def test_characters_and_stops_are_given_out_whole() -> None:
    """A character of several tokens arrives with its last token; a partial stop at
    the end is text.
    """
    text = SampleText(Texts(), ["ab!"], Texts.ends)
    tokens = ["é".encode()[0], "é".encode()[1], *b"xab"]
    assert [text.add(token, -1.0) for token in tokens] == ["", "é", "x", "", ""]
    assert text.finish("length") == "ab"
    assert text.finish_reason == "length"


def test_a_harness_can_score_a_prompt(client: Any, url: str) -> None:
    """Echo with log-probabilities gives the likelihood of a text, as evaluation harnesses request
    it.
    """
    answer = client.completions.create(
        model=MODEL, prompt=list(b"There"), max_tokens=0, echo=True, logprobs=1
    )
    scores = answer.choices[0].logprobs
    sampler = tinker.ServiceClient(base_url=url, api_key=KEY).create_sampling_client(
        base_model=MODEL
    )
    expected = sampler.compute_logprobs(tinker.ModelInput.from_ints(list(b"There"))).result()
    assert answer.choices[0].text == "There"
    assert scores.tokens == ["T", "h", "e", "r", "e"]
    assert scores.text_offset == [0, 1, 2, 3, 4]
    assert scores.token_logprobs == expected
    assert scores.top_logprobs[0] is None
    assert all(
        word in top and max(top.values()) >= top[word]
        for word, top in zip(scores.tokens[1:], scores.top_logprobs[1:])
    )
    short = client.completions.create(
        model=MODEL, prompt=list(b"Th"), max_tokens=0, echo=True, logprobs=3
    )
    assert len(short.choices[0].logprobs.top_logprobs[1]) >= 3


def test_log_probabilities_without_alternatives(client: Any) -> None:
    """A chat may ask for those of its own tokens only."""
    asked: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Hello"}],
        "max_completion_tokens": 2,
    }
    answer = client.chat.completions.create(model=MODEL, logprobs=True, top_logprobs=0, **asked)
    assert [one.top_logprobs for one in answer.choices[0].logprobs.content] == [[], []]


def test_no_tokens_are_generated_only_to_echo_the_prompt(client: Any) -> None:
    """``max_tokens=0`` returns an echoed prompt, however short; without echo it is refused."""
    for prompt in ("x", "There"):
        answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=0, echo=True)
        assert answer.choices[0].text == prompt
    with pytest.raises(openai.BadRequestError, match="max_tokens is 0; it must be at least 1"):
        client.completions.create(model=MODEL, prompt="x", max_tokens=0)


def test_several_prompts_are_answered_in_order(client: Any) -> None:
    """The choices of the first prompt come first."""
    texts = [
        client.completions.create(model=MODEL, prompt=one, seed=1, n=2).choices
        for one in ("A", "Go")
    ]
    both = client.completions.create(model=MODEL, prompt=["A", "Go"], seed=1, n=2)
    assert [choice.text for choice in both.choices] == [
        choice.text for choices in texts for choice in choices
    ]
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert both.usage.prompt_tokens == 3


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"presence_penalty": 3}, "presence_penalty is 3"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", "b"], "stream": True}, "stream"),
        ({"logprobs": 1000}, "logprobs"),
        ({"stop": [""]}, "stop"),
        ({"temperature": -1}, "temperature"),
        ({"n": 100_000}, "n is 100000; it must be from 1 to 1024"),
        ({"max_tokens": 10**6}, "context length"),
        ({"prompt": [10**6]}, "the prompt"),
        ({"max_tokens": "many"}, "max_tokens"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    client: Any, fields: dict[str, Any], named: str
) -> None:
    """An unsupported parameter that would change the text is refused by name, never ignored."""
    with pytest.raises((openai.BadRequestError, openai.UnprocessableEntityError), match=named):
        list(client.completions.create(**{"model": MODEL, "prompt": "x", **fields}))


TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"properties": {"x": {"type": "integer"}}}},
    }
]
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 7}'}}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "data:,"}}],
                    }
                ]
            },
            "image_url",
        ),
        ({"messages": []}, "messages is empty"),
        (
            {"tools": TOOLS},
            "tools: transformers does not know how this model writes calls of tools",
        ),
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice must be auto or none"),
        (
            {"messages": [*HELLO, {"role": "assistant", "tool_calls": [CALL]}]},
            r"messages: message 1 has tool_calls, which need",
        ),
        ({"response_format": {"type": "json_object"}}, "response_format needs vLLM"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {}},
                }
            },
            "response_format needs vLLM",
        ),
        (
            {"response_format": {"type": "xml"}},
            "response_format.type is 'xml'; it must be text, json_object, or json_schema",
        ),
    ],
)
def test_chats_refuse_what_the_model_cannot_do(
    client: Any, fields: dict[str, Any], named: str
) -> None:
    """Tools, images and other formats are refused where the prompt or the sampler has no place for
    them.
    """
    with pytest.raises(openai.BadRequestError, match=named):
        client.chat.completions.create(**{"model": MODEL, "messages": HELLO, **fields})


@pytest.mark.parametrize("field", ["function_call", "reasoning_content", "audio"])
def test_what_of_a_message_would_be_lost_is_refused(url: str, field: str) -> None:
    """A message with such a field is refused, because no prompt can hold it; a repeated message
    without one is accepted.
    """
    for value, status in (([{"id": "x"}], 400), (None, 200)):
        messages = [*HELLO, {"role": "assistant", "content": "x", field: value}]
        body = {"model": MODEL, "messages": messages, "max_tokens": 1}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers={"x-api-key": KEY})
        assert answer.status_code == status, answer.text
        if status == 400:
            assert answer.json()["error"]["param"] == f"messages[1].{field}"
            assert (
                answer.json()["error"]["message"]
                == f"messages[1].{field} is not supported by this server"
            )


def test_wrong_keys_and_models_are_the_errors_that_clients_know(client: Any, url: str) -> None:
    """A wrong key is an AuthenticationError, an unknown model or checkpoint a NotFoundError."""
    stranger = openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0)
    for ask in (stranger.models.list, lambda: stranger.completions.create(model=MODEL, prompt="x")):
        with pytest.raises(openai.AuthenticationError, match="not the API key of the server"):
            ask()
    assert httpx.get(f"{url}/v1/models").status_code == 401
    assert httpx.get(f"{url}/v1/models", headers={"X-API-Key": KEY}).status_code == 200
    for name in (
        "other/model",
        "tinker://run/sampler_weights/none",
        "tinker://",
        "tinker://run/weights/x",
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            client.completions.create(model=name, prompt="x")
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_a_page_elsewhere_gets_nothing_from_a_server_without_a_key(tmp_path: Path) -> None:
    """The browser guard also covers these endpoints."""
    with running_server(Settings(data_dir=tmp_path)) as url:
        assert (
            httpx.get(f"{url}/v1/models", headers={"origin": "https://evil.example"}).status_code
            == 403
        )


def test_a_client_that_goes_ends_its_work(tmp_path: Path) -> None:
    """A stream whose client has left ends at the engine's next token."""

    class CountingEngine(ToyEngine):
        """An engine that records the length of each continuation."""

        def __init__(self) -> None:
            super().__init__(vocabulary=512, max_context_length=10**6)
            self.lengths: list[int] = []

        def sample(self, jobs: Any) -> Any:
            results = super().sample(jobs)
            self.lengths += [len(result.sequences[0].tokens) for result in results]
            return results

    engine = CountingEngine()
    state = State(lambda: engine, Settings(data_dir=tmp_path))
    with (
        serve_in_thread(state) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="any") as client,
    ):
        # No stop that the toy can reach, so that only its reader ends the stream.
        with client.completions.create(
            model=MODEL, prompt="x", max_tokens=900_000, stream=True, seed=1, stop="\x00" * 9
        ) as chunks:
            next(iter(chunks))
        client.completions.create(model=MODEL, prompt="x", max_tokens=1)
    assert engine.lengths[0] < 900_000
    assert engine.lengths[1:] == [1]


def test_a_client_that_goes_takes_its_waiting_request_along(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response whose client has left is not computed."""
    monkeypatch.setattr(v1, "LOOK_SECONDS", 0.001)
    engine = GatedEngine()
    api = make_api(engine)
    api.loss(api.model(), 1)  # holds the engine up
    assert engine.entered.wait(30)
    body = msgspec.json.encode({"model": MODEL, "prompt": "x"})
    messages = iter([{"type": "http.request", "body": body}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(messages, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "query_string": b"",
        "headers": [],
        "scheme": "http",
    }
    api.runner.run(create_app(api.state)(scope, receive, send))
    pending = api.state.futures.count_pending()
    engine.gate.set()
    assert pending == {"sampling": 0, "training": 1}
    assert sent[0]["status"] == 499


def test_a_server_that_closes_says_so_in_a_stream(tmp_path: Path) -> None:
    """A stream that fails after it began ends with an error, which the client raises."""
    engine = GatedEngine()
    state = State(lambda: engine, Settings(data_dir=tmp_path))
    with (
        serve_in_thread(state) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
    ):
        service = tinker.ServiceClient(base_url=url)
        training = service.create_lora_training_client(base_model=MODEL, rank=4)
        datum = tinker.Datum(
            model_input=tinker.ModelInput.from_ints([1, 2]),
            loss_fn_inputs={"target_tokens": [2, 3], "weights": [1.0, 1.0]},
        )
        training.forward_backward([datum], "cross_entropy")  # holds the engine up
        assert engine.entered.wait(30)
        chunks = client.completions.create(model=MODEL, prompt="x", stream=True)
        state.begin_close()
        engine.gate.set()
        with pytest.raises(openai.APIError, match="shutting down"):
            list(chunks)


def test_the_packaged_tokenizer_is_the_one_of_transformers() -> None:
    """The packaged tokenizer encodes and decodes bytes as transformers does with its files."""
    transformers = pytest.importorskip("transformers")
    engine = ToyEngine()
    ours, theirs = (
        load_texts(engine),
        ModelTexts(transformers.AutoTokenizer.from_pretrained(engine.tokenizer_id)),
    )
    assert type(ours) is Texts
    for text in ("plain", "é 漢 \U0001f600", "two\nlines"):
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text)) == text
    assert ours.ends == theirs.ends
    assert ours.decode([104, 256]) == theirs.decode([104, 256]) == "h<|endoftext|>"
    assert ours.encode_chat(HELLO, []) == theirs.encode_chat(HELLO, [])


def test_a_path_that_is_not_there_is_an_error_of_the_same_form(url: str) -> None:
    """Unknown paths and methods are errors in the form that clients of OpenAI's API read, and say
    what there is.
    """
    for answer in (httpx.post(f"{url}/v1/embeddings"), httpx.get(f"{url}/v1/completions")):
        told = (
            f": {answer.request.method} {answer.request.url.path} is not supported; this server "
            "has POST chat/completions, "
        )
        assert told in answer.json()["error"]["message"]


def test_a_chat_template_of_the_model_is_used() -> None:
    """A model with a chat template gets chats in that form; what the template refuses is the
    client's fault.
    """
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(ToyEngine().tokenizer_id)
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    )
    texts = ModelTexts(tokenizer)
    assert texts.decode(texts.encode_chat(HELLO, [])) == "<user>Hello<assistant>"
    tokenizer.chat_template = "{{ raise_exception('no system messages') }}"
    with pytest.raises(tinker.local.call.APIProblem, match="no system messages"):
        texts.encode_chat(HELLO, [])


def test_chats_are_written_as_in_training() -> None:
    """Options and calls reach the template as they do in `tinker.data`; what it ignores is the
    client's fault.
    """
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(ToyEngine().tokenizer_id)
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}{{ "
        "c.function.name }}"
        "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}<assistant>{% "
        "if short %}!{% endif %}"
    )
    texts, chat = (
        ModelTexts(tokenizer, "qwen3"),
        [*HELLO, {"role": "assistant", "content": "", "tool_calls": [CALL]}, *HELLO],
    )
    form = ChatForm(options={"short": True})
    tokens = texts.encode_chat(chat, [], form)
    assert texts.decode(tokens) == '<user>Hello<assistant>f{"x": 7}<user>Hello<assistant>!'
    assert (
        tokens
        == tinker.data.prompt_from_messages(
            tokenizer, chat, chat_template_kwargs=form.options
        ).to_ints()
    )
    ignored = (
        ({"tools": TOOLS}, "tools: "),
        ({"form": ChatForm(options={"long": True})}, "chat_template_kwargs: "),
    )
    for asked, named in ignored:
        with pytest.raises(tinker.local.call.APIProblem, match=named):
            texts.encode_chat(HELLO, **{"tools": [], **asked})
    broken = {**CALL, "function": {"name": "f", "arguments": "{x"}}
    with pytest.raises(
        tinker.local.call.APIProblem,
        match="messages: message 1: \"tool_calls\": the arguments of 'f' must be JSON",
    ):
        texts.encode_chat(
            [*HELLO, {"role": "assistant", "content": "", "tool_calls": [broken]}], []
        )


def test_a_real_model_chats(tmp_path: Path) -> None:
    """The packaged model chats, with torch."""
    pytest.importorskip("torch")
    pytest.importorskip("peft")
    with running_server(Settings(data_dir=tmp_path), "torch") as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
        name = client.models.list().data[0].id
        answer = client.completions.create(
            model=name, prompt="the ", max_tokens=8, stop="zzz", logprobs=2, seed=1
        )
        assert len(answer.choices[0].logprobs.tokens) == answer.usage.completion_tokens
        assert all(len(top) >= 2 for top in answer.choices[0].logprobs.top_logprobs)


CHAT_TEMPLATE = (
    "{% if tools %}{{ tools | map(attribute='function.name') | join ~ ' ' }}{% endif %}"
    "{% for m in messages %}{{ m.role[0] ~ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments.x + 1 }}{% endfor %} {% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)


def test_a_model_calls_a_tool(tmp_path: Path) -> None:
    """The template gets tools, calls and results; a call that the model writes is one in the
    answer, also of a stream.
    """
    pytest.importorskip("torch")
    pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    from safetensors.numpy import load_file, save_file

    model = tmp_path / "model"
    shutil.copytree(PACKAGED_FOLDER, model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(
        json.dumps({**config, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]})
    )
    weights = load_file(model / "model.safetensors")
    rows = {
        name.replace(".weight", ".bias"): len(weights[name])
        for name in weights
        if re.search(r"\.[qkv]_proj\.", name)
    }
    # which that kind has
    biases = {name: np.zeros(count, np.float32) for name, count in rows.items()}
    save_file({**weights, **biases}, model / "model.safetensors", {"format": "pt"})
    messages = [
        *HELLO,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "8"},
    ]
    prompt = "f uHello a8 t8 <|im_start|>assistant\n"
    written = '<tool_call>{"name": "f", "arguments": {"x": 9}}</tool_call>'
    with running_server(Settings(data_dir=tmp_path / "data"), "torch", model=str(model)) as url:
        path = teach(url, prompt, written)
        chat = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0).chat.completions
        asked: dict[str, Any] = {
            "model": path,
            "messages": messages,
            "tools": TOOLS,
            "temperature": 0,
            "max_tokens": 80,
        }
        whole = chat.create(**asked).choices[0]
        called = whole.message.tool_calls[0].function
        assert (whole.finish_reason, whole.message.content, called.name, called.arguments) == (
            "tool_calls",
            None,
            "f",
            '{"x":9}',
        )
        parts = [chunk.choices[0] for chunk in chat.create(**asked, stream=True)]
        streamed = [call.function for part in parts for call in part.delta.tool_calls or []]
        assert [(one.name, one.arguments) for one in streamed] == [("f", '{"x":9}')]
        assert parts[-1].finish_reason == "tool_calls"
        assert chat.create(**asked, tool_choice="none").choices[0].message.tool_calls is None


@pytest.mark.parametrize("body", ["{'name': f}", "7", '{"name": "f"}', "[1]"])
def test_a_call_that_cannot_be_read_is_text(body: str) -> None:
    """What begins like a call but is none stays text, as does an answer without a call."""
    transformers = pytest.importorskip("transformers")
    texts = ModelTexts(
        transformers.AutoTokenizer.from_pretrained(ToyEngine().tokenizer_id), "qwen3"
    )
    prompt, written = texts.encode("<|im_start|>assistant\n"), f"<tool_call>{body}</tool_call>"
    assert texts.read_calls(prompt, texts.encode(written), TOOLS) is None
    assert texts.read_calls(prompt, texts.encode(body), TOOLS) is None


def teach(url: str, prompt: str, written: str) -> str:
    """Train the model until it writes this text after the prompt; return the path
    of its weights.
    """
    training = tinker.ServiceClient(base_url=url).create_lora_training_client(
        base_model="model", rank=16
    )
    tokens, begin = [*f"{prompt}{written}".encode(), 256], len(prompt)
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tokens[1:],
            "weights": [float(at >= begin) for at in range(1, len(tokens))],
        },
    )
    while training.forward_backward([datum], "cross_entropy").result().metrics["loss:sum"] > 0.1:
        training.optim_step(tinker.AdamParams(learning_rate=3e-3)).result()
    return training.save_weights_for_sampler("taught").result().path


@pytest.mark.parametrize(
    ("path", "body", "message", "param"),
    [
        (
            "chat/completions",
            {},
            "model: the field is missing; messages: the field is missing",
            "model",
        ),
        ("chat/completions", {"model": MODEL}, "messages: the field is missing", "messages"),
        (
            "chat/completions",
            {"model": MODEL, "messages": "hi"},
            "messages: must be a list, not a string",
            "messages",
        ),
        (
            "chat/completions",
            {"model": MODEL, "messages": [{"role": "user", "content": 5}]},
            "messages[0].content: must be a string or a list or null, not an integer",
            "messages[0].content",
        ),
        (
            "completions",
            {"model": MODEL, "prompt": "a", "n": "2"},
            "n: must be an integer, not a string",
            "n",
        ),
        ("completions", [], "the body: must be an object, not a list", None),
        ("completions", {"model": MODEL, "prompt": ""}, "prompt is empty", "prompt"),
        (
            "completions",
            {"model": MODEL, "prompt": "a", "n": 0},
            "n is 0; it must be from 1 to 1024",
            "n",
        ),
        (
            "chat/completions",
            {"model": MODEL, "messages": [{"role": "usr", "content": "a"}]},
            "messages[0].role is 'usr'; it must be one of system, developer, user, assistant, tool",
            "messages[0].role",
        ),
        (
            "chat/completions",
            {"model": MODEL, "messages": [{"role": "user"}]},
            "messages[0].content is missing",
            "messages[0].content",
        ),
    ],
)
def test_a_body_that_does_not_fit_is_refused_in_words(
    url: str, path: str, body: object, message: str, param: str | None
) -> None:
    """A refused body gets a plain sentence with the name of its field."""
    answer = httpx.post(f"{url}/v1/{path}", json=body, headers={"x-api-key": KEY})
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": None}
    assert (answer.status_code, answer.json()) == (400, {"error": error})


OUT_OF_RANGE: list[tuple[str, float]] = [
    ("n", 100_000),
    ("n", -1),
    ("max_tokens", -1),
    ("max_tokens", 10**6),
    ("temperature", -0.5),
    ("top_p", 1.5),
    ("top_k", -2),
    ("min_p", 2.0),
    ("presence_penalty", -3.0),
    ("frequency_penalty", 3.0),
    ("repetition_penalty", 0.0),
]


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        *(
            ("completions", field, value)
            for field, value in [*OUT_OF_RANGE, ("logprobs", 1000), ("logprobs", -1)]
        ),
        *(
            ("chat/completions", field, value)
            for field, value in [
                *OUT_OF_RANGE,
                ("top_logprobs", 1000),
                ("max_completion_tokens", -1),
            ]
        ),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_parameter(
    url: str, path: str, field: str, value: float
) -> None:
    """``param`` is the parameter as the request names it, also where the engine
    refuses its value.
    """
    content = {"messages": HELLO, "logprobs": True} if path.startswith("chat") else {"prompt": "x"}
    answer = httpx.post(
        f"{url}/v1/{path}",
        json={"model": MODEL, **content, field: value},
        headers={"x-api-key": KEY},
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, field)
    assert error["message"].startswith(f"{field} is {value}")


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"temprature": 0.5},
            "temprature",
            'unknown parameter "temprature"; did you mean "temperature"?',
        ),
        ({"topp": 0.5}, "topp", 'unknown parameter "topp"; did you mean "top_p"?'),
        (
            {"max_new_tokens": 5},
            "max_new_tokens",
            'unknown parameter "max_new_tokens"; did you mean "max_tokens"?',
        ),
        ({"metadta": {}}, "metadta", 'unknown parameter "metadta"; did you mean "metadata"?'),
        ({"typical_p": 0.1}, "typical_p", "typical_p is not supported by this server"),
        (
            {"repeat_penalty": 1.2},
            "repeat_penalty",
            "repeat_penalty is not supported by this server",
        ),
        ({"repeat_penalty": 0}, "repeat_penalty", "repeat_penalty is not supported by this server"),
        *(
            ({name: value}, name, f"{name} is not supported by this server")
            for name, value in {
                "truncate_prompt_tokens": 5,
                "skip_special_tokens": False,
                "include_stop_str_in_output": True,
                "prompt_logprobs": 0,
                "regex": "a+",
                "ebnf": "root ::= a",
                "json_schema": "{}",
                "reasoning_effort": "low",
            }.items()
        ),
    ],
)
def test_a_parameter_that_would_change_the_text_is_not_ignored(
    url: str, path: str, fields: dict[str, object], param: str, message: str
) -> None:
    """Misspelled parameters, and those of other servers that change the text, are
    refused by name.
    """
    content = {"messages": HELLO} if path.startswith("chat") else {"prompt": "x"}
    answer = httpx.post(
        f"{url}/v1/{path}", json={"model": MODEL, **content, **fields}, headers={"x-api-key": KEY}
    )
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": None}
    assert (answer.status_code, answer.json()) == (400, {"error": error})


NEUTRAL: dict[str, object] = {
    "min_p": 0,
    "priority": 0,
    "response_format": {"type": "text"},
    "repetition_penalty": 1.0,
    "length_penalty": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0,
    "logit_bias": {},
    "stop_token_ids": [],
    "ignore_eos": False,
    "min_tokens": None,
    "return_token_ids": None,
    "n": None,
    "stream": None,
    "add_generation_prompt": True,
    "chat_template_kwargs": None,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "include_stop_str_in_output": False,
    "tfs_z": 1,
    "typical_p": 1,
}
HARMLESS: dict[str, object] = {
    "metadata": {"a": "b"},
    "user_id": "x",
    "store": True,
    "top_words": 3,
}


def test_neutral_values_and_harmless_parameters_are_accepted(tmp_path: Path) -> None:
    """A neutral value has no effect, even on a strict server; other unknown parameters are named in
    a header.
    """
    for strict, fields in ((True, NEUTRAL), (False, {**NEUTRAL, **HARMLESS})):
        with running_server(Settings(data_dir=tmp_path / str(strict), strict=strict)) as url:
            answer = httpx.post(
                f"{url}/v1/completions",
                json={"model": MODEL, "prompt": "x", "user": "me", **fields},
            )
            assert answer.status_code == 200, answer.text
            assert answer.headers.get(HEADER) == (None if strict else ", ".join(HARMLESS))
