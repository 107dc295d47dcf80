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
from support.api import GatedEngine, MakeApi, occupied

import tinker
from tinker.local import Settings, State, create_app, running_server, serve_in_thread, v1
from tinker.local.call import HEADER
from tinker.local.engines import PACKAGED_FOLDER
from tinker.local.engines.toy import ToyEngine
from tinker.local.v1 import ChatForm, ModelTexts, SampleText, Texts

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
def service(url: str) -> Iterator[tinker.ServiceClient]:
    """Yield a client of the contract's operations, with the key."""
    with tinker.ServiceClient(base_url=url, api_key=KEY) as service:
        yield service


DATUM = tinker.Datum(
    model_input=tinker.ModelInput.from_ints([101] * 31),
    loss_fn_inputs={"target_tokens": [101] * 31, "weights": [1.0] * 31},
)


@pytest.fixture
def checkpoint(service: tinker.ServiceClient) -> str:
    """Weights trained to produce only ``e``."""
    training = service.create_lora_training_client(base_model=MODEL, rank=8)
    for _ in range(3):
        training.forward_backward([DATUM], "cross_entropy").result()
        training.optim_step(tinker.AdamParams(learning_rate=1.0)).result()
    return training.save_weights_for_sampler("e").result().path


def open_client(url: str, key: str = "any") -> Any:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def bodies(path: str) -> dict[str, Any]:
    """Return what a body needs for this path."""
    return {"model": MODEL, **({"messages": HELLO} if "chat" in path else {"prompt": "x"})}


def refusal(url: str, path: str, body: object, code: str | None = None) -> dict[str, Any]:
    """Return the error of a body that must be refused with 400."""
    answer = httpx.post(f"{url}/v1/{path}", json=body, headers={"x-api-key": KEY})
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    return error


def test_a_completion_is_the_sample_of_the_same_seed(
    client: Any, service: tinker.ServiceClient
) -> None:
    """A completion has the tokens of the contract's sample operation with the same seed."""
    chosen: dict[str, Any] = {"max_tokens": 12, "seed": 3, "temperature": 0.7, "top_p": 0.9}
    answer = client.completions.create(model=MODEL, prompt="The", n=2, **chosen)
    prompt = tinker.ModelInput.from_ints(list(b"The"))
    sampler = service.create_sampling_client(base_model=MODEL)
    sampled = sampler.sample(prompt, 2, tinker.SamplingParams(**chosen)).result().sequences
    assert [choice.text for choice in answer.choices] == [
        bytes(one.tokens).decode() for one in sampled
    ]
    assert [choice.finish_reason for choice in answer.choices] == ["length", "length"]
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 24, 27)


def test_a_checkpoint_is_a_model(client: Any, checkpoint: str) -> None:
    """A checkpoint is listed as a model, and completes with what it was trained on."""
    assert [model.id for model in client.models.list()] == [MODEL, checkpoint]
    assert client.models.retrieve(checkpoint).id == checkpoint
    assert client.models.retrieve(MODEL).created == 0
    asked: dict[str, Any] = {"model": checkpoint, "max_tokens": 8, "temperature": 0}
    assert client.completions.create(prompt="e", **asked).choices[0].text == "eeeeeeee"
    assert client.chat.completions.create(messages=HELLO, **asked).model == checkpoint


def test_a_run_is_a_model_by_its_name(client: Any, service: tinker.ServiceClient) -> None:
    """The name or ID of a run is its newest checkpoint to sample from, and unknown without one."""
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
        with running_server(Settings(data_dir=tmp_path), ToyEngine(base_model=name)) as url:
            service = tinker.ServiceClient(base_url=url)
            training = service.create_lora_training_client(name, rank=4)
            path = training.save_weights_for_sampler("x").result().path
            listed = httpx.get(f"{url}/v1/models").json()["data"]
            assert [model["id"] for model in listed] == [name, path]


def test_a_chat_ends_at_max_tokens_and_has_a_role(client: Any) -> None:
    """A chat that ends at max_tokens has a role and the reason, whatever form its message has."""
    contents = ("Hello", [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}])
    asked: dict[str, Any] = {"model": MODEL, "seed": 1, "max_completion_tokens": 6}
    chats = [[{"role": "user", "content": content}] for content in contents]
    answers = [client.chat.completions.create(messages=chat, **asked) for chat in chats]
    one, other = (answer.choices[0] for answer in answers)
    assert one.message.content == other.message.content
    assert (one.message.role, one.finish_reason) == ("assistant", "length")
    assert answers[0].usage.prompt_tokens == len("User: Hello\nAssistant:")


@pytest.mark.parametrize("top", [None, 3])
def test_a_stream_says_what_the_whole_answer_says(client: Any, top: int | None) -> None:
    """A stream has text, log-probabilities, reasons and usage of the full response, per sample."""
    wanted: dict[str, Any] = {"model": MODEL, "messages": HELLO, "n": 2, "seed": 5}
    wanted |= {"max_tokens": 20, "logprobs": True} | ({} if top is None else {"top_logprobs": top})
    whole = client.chat.completions.create(**wanted)
    texts, logprobs, ends, usage = ["", ""], ([], []), ["", ""], None
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    for chunk in client.chat.completions.create(**wanted, **streamed):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            logprobs[choice.index].extend(choice.logprobs.content if choice.logprobs else [])
            ends[choice.index] = choice.finish_reason or ends[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert [*logprobs] == [choice.logprobs.content for choice in whole.choices]
    assert ends == [choice.finish_reason for choice in whole.choices]
    assert usage == whole.usage
    assert all(len(token.top_logprobs) == (top or 0) for token in logprobs[0])


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_ends_the_text_before_it(client: Any, stream: bool) -> None:
    """A stop of several tokens that arrives in parts is not part of the text."""
    asked: dict[str, Any] = {"model": MODEL, "prompt": "The", "max_tokens": 200, "seed": 3}
    whole = client.completions.create(**asked).choices[0].text
    stop = whole[40:43]
    found = client.completions.create(**asked, stop=[stop, "never"], stream=stream)
    chunks = list(found) if stream else [found]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole[: whole.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_the_end_of_text_ends_a_text_that_has_stops() -> None:
    """A stop does not turn off the model's end of text, and what follows the end is dropped."""
    text = SampleText(Texts(), ["never"], Texts.ends)
    parts = [text.add(token, -1.0) for token in (104, 105, 256, 106)]
    assert ("".join(parts), text.finish_reason, text.token_count) == ("hi", "stop", 3)


def test_characters_and_stops_are_given_out_whole() -> None:
    """A character of several tokens comes with its last one; half a stop at the end is text."""
    text = SampleText(Texts(), ["ab!"], Texts.ends)
    tokens = ["é".encode()[0], "é".encode()[1], *b"xab"]
    assert [text.add(token, -1.0) for token in tokens] == ["", "é", "x", "", ""]
    assert text.finish("length") == "ab"
    assert text.finish_reason == "length"


def test_a_harness_can_score_a_prompt(client: Any, service: tinker.ServiceClient) -> None:
    """Echo with log-probabilities gives the likelihood of a text, as harnesses request it."""
    there, echo = list(b"There"), {"model": MODEL, "max_tokens": 0, "echo": True}
    answer = client.completions.create(prompt=there, logprobs=1, **echo)
    scores = answer.choices[0].logprobs
    sampler = service.create_sampling_client(base_model=MODEL)
    assert answer.choices[0].text == "There"
    assert scores.tokens == ["T", "h", "e", "r", "e"]
    assert scores.text_offset == [0, 1, 2, 3, 4]
    assert (
        scores.token_logprobs
        == sampler.compute_logprobs(tinker.ModelInput.from_ints(there)).result()
    )
    assert scores.top_logprobs[0] is None
    for word, top in zip(scores.tokens[1:], scores.top_logprobs[1:], strict=True):
        assert max(top.values()) >= top[word]
    short = client.completions.create(prompt=there[:2], logprobs=3, **echo)
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
    one, other, both = (
        client.completions.create(model=MODEL, prompt=prompt, seed=1, n=2)
        for prompt in ("A", "Go", ["A", "Go"])
    )
    texts = [choice.text for choice in (*one.choices, *other.choices)]
    assert [choice.text for choice in both.choices] == texts
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert both.usage.prompt_tokens == 3


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", "b"], "stream": True}, "stream"),
        ({"stop": [""]}, "stop"),
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


PARAMETERS = {"properties": {"x": {"type": "integer"}}}


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 7}'}}


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}


UNKNOWN_CALLS = "tools: transformers does not know how this model writes calls of tools"


FORMATS = "response_format.type is 'xml'; it must be text, json_object, or json_schema"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "image_url"),
        ({"messages": []}, "messages is empty"),
        ({"tools": TOOLS}, UNKNOWN_CALLS),
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice must be auto or none"),
        (
            {"messages": [*HELLO, {"role": "assistant", "tool_calls": [CALL]}]},
            "messages: message 1 has tool_calls, which need",
        ),
        ({"response_format": {"type": "json_object"}}, "response_format needs vLLM"),
        ({"response_format": SCHEMA}, "response_format needs vLLM"),
        ({"response_format": {"type": "xml"}}, FORMATS),
    ],
)
def test_chats_refuse_what_the_model_cannot_do(
    client: Any, fields: dict[str, Any], named: str
) -> None:
    """Tools, images and formats are refused where the prompt or sampler has no place for them."""
    with pytest.raises(openai.BadRequestError, match=named):
        client.chat.completions.create(**{"model": MODEL, "messages": HELLO, **fields})


@pytest.mark.parametrize("field", ["function_call", "reasoning_content", "audio"])
def test_what_of_a_message_would_be_lost_is_refused(client: Any, url: str, field: str) -> None:
    """A message with such a field is refused, as no prompt can hold it; one with null is taken."""

    def chat(value: object) -> list[Any]:
        return [*HELLO, {"role": "assistant", "content": "x", field: value}]

    error = refusal(url, "chat/completions", {"model": MODEL, "messages": chat([{"id": "x"}])})
    assert error["param"] == f"messages[1].{field}"
    assert error["message"] == f"messages[1].{field} is not supported by this server"
    assert client.chat.completions.create(model=MODEL, messages=chat(None), max_tokens=1)


def test_wrong_keys_and_models_are_the_errors_that_clients_know(client: Any, url: str) -> None:
    """A wrong key is an AuthenticationError, an unknown model or checkpoint a NotFoundError."""
    stranger = open_client(url, "wrong")
    for ask in (stranger.models.list, lambda: stranger.completions.create(model=MODEL, prompt="x")):
        with pytest.raises(openai.AuthenticationError, match="not the API key of the server"):
            ask()
    assert httpx.get(f"{url}/v1/models").status_code == 401
    assert httpx.get(f"{url}/v1/models", headers={"X-API-Key": KEY}).status_code == 200
    paths = ("tinker://run/sampler_weights/none", "tinker://", "tinker://run/weights/x")
    for name in ("other/model", *paths):
        with pytest.raises(openai.NotFoundError) as caught:
            client.completions.create(model=name, prompt="x")
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_a_page_elsewhere_gets_nothing_from_a_server_without_a_key(tmp_path: Path) -> None:
    """The browser guard also covers these endpoints."""
    with running_server(Settings(data_dir=tmp_path)) as url:
        headers = {"origin": "https://evil.example"}
        assert httpx.get(f"{url}/v1/models", headers=headers).status_code == 403


def test_a_client_that_goes_ends_its_work(tmp_path: Path) -> None:
    """A stream whose client has left ends at the engine's next token."""
    lengths: list[int] = []

    class Noting(ToyEngine):
        def sample(self, jobs: Any) -> Any:
            results = super().sample(jobs)
            lengths.extend(len(result.sequences[0].tokens) for result in results)
            return results

    engine = Noting(vocabulary=512, max_context_length=10**6)
    with running_server(Settings(data_dir=tmp_path), engine) as url, open_client(url) as client:
        # No stop that the toy can reach, so that only its reader ends the stream.
        endless: dict[str, Any] = {"max_tokens": 900_000, "seed": 1, "stop": "\x00" * 9}
        with client.completions.create(model=MODEL, prompt="x", stream=True, **endless) as chunks:
            next(iter(chunks))
        client.completions.create(model=MODEL, prompt="x", max_tokens=1)
    assert lengths[0] < 900_000
    assert lengths[1:] == [1]


def test_a_client_that_goes_takes_its_waiting_request_along(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response whose client has left is not computed."""
    monkeypatch.setattr(v1, "LOOK_SECONDS", 0.001)
    api, engine, _ = occupied(make_api)
    body = msgspec.json.encode({"model": MODEL, "prompt": "x"})
    messages = iter([{"type": "http.request", "body": body}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(messages, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "scheme": "http"}
    app = create_app(api.state)
    api.runner.run(app({**scope, "query_string": b"", "headers": []}, receive, send))
    pending = api.state.futures.count_pending()
    engine.gate.set()
    assert pending == {"sampling": 0, "training": 1}
    assert sent[0]["status"] == 499


def test_a_server_that_closes_says_so_in_a_stream(tmp_path: Path) -> None:
    """A stream that fails after it began ends with an error, which the client raises."""
    engine = GatedEngine()
    state = State(lambda: engine, Settings(data_dir=tmp_path))
    with serve_in_thread(state) as url, open_client(url) as client:
        training = tinker.ServiceClient(base_url=url).create_lora_training_client(MODEL, rank=4)
        training.forward_backward([DATUM], "cross_entropy")  # holds the engine up
        assert engine.entered.wait(30)
        chunks = client.completions.create(model=MODEL, prompt="x", stream=True)
        state.begin_close()
        engine.gate.set()
        with pytest.raises(openai.APIError, match="shutting down"):
            list(chunks)


def packaged_tokenizer(template: str | None = None) -> Any:
    """Return the packaged tokenizer as transformers reads it, with a chat template."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(ToyEngine().tokenizer_id)
    tokenizer.chat_template = template
    return tokenizer


def test_a_path_that_is_not_there_is_an_error_of_the_same_form(url: str) -> None:
    """Unknown paths and methods are errors in the form of OpenAI's API, and say what there is."""
    for answer in (httpx.post(f"{url}/v1/embeddings"), httpx.get(f"{url}/v1/completions")):
        asked = f"{answer.request.method} {answer.request.url.path}"
        told = f": {asked} is not supported; this server has POST chat/completions, "
        assert told in answer.json()["error"]["message"]


WITH_CALLS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% endfor %}{% endfor %}<assistant>{% if short %}!{% endif %}"
)


def test_chats_are_written_as_in_training() -> None:
    """Options and calls reach the template as in `tinker.data`; it is an error if it ignores them."""
    tokenizer = packaged_tokenizer(WITH_CALLS)
    texts, answer = ModelTexts(tokenizer, "qwen3"), {"role": "assistant", "content": ""}
    chat, form = (
        [*HELLO, {**answer, "tool_calls": [CALL]}, *HELLO],
        ChatForm(options={"short": True}),
    )
    tokens = texts.encode_chat(chat, [], form)
    assert texts.decode(tokens) == '<user>Hello<assistant>f{"x": 7}<user>Hello<assistant>!'
    prompt = tinker.data.prompt_from_messages(tokenizer, chat, chat_template_kwargs=form.options)
    assert tokens == prompt.to_ints()
    refusing = ModelTexts(packaged_tokenizer("{{ raise_exception('no system messages') }}"))
    with pytest.raises(tinker.local.call.APIProblem, match="no system messages"):
        refusing.encode_chat(HELLO, [])
    broken = {**CALL, "function": {"name": "f", "arguments": "{x"}}
    for messages, tools, options, named in (
        (HELLO, TOOLS, {}, "tools: "),
        (HELLO, [], {"long": True}, "chat_template_kwargs: "),
        (
            [*HELLO, {**answer, "tool_calls": [broken]}],
            [],
            {},
            "messages: message 1: \"tool_calls\": the arguments of 'f' must be JSON",
        ),
    ):
        with pytest.raises(tinker.local.call.APIProblem, match=named):
            texts.encode_chat(messages, tools, ChatForm(options=options))


CHAT_TEMPLATE = (
    "{% if tools %}{{ tools | map(attribute='function.name') | join ~ ' ' }}{% endif %}"
    "{% for m in messages %}{{ m.role[0] ~ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments.x + 1 }}{% endfor %} {% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)


def write_qwen(model: Path) -> None:
    """Write the packaged model as one of Qwen2, whose kind has biases and calls of tools."""
    from safetensors.numpy import load_file, save_file

    shutil.copytree(PACKAGED_FOLDER, model)
    packaged_tokenizer(CHAT_TEMPLATE).save_pretrained(model)
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    (model / "config.json").write_text(json.dumps(config))
    weights = load_file(model / "model.safetensors")
    for name in [name for name in weights if re.search(r"\.[qkv]_proj\.", name)]:
        zeros = np.zeros(len(weights[name]), np.float32)
        weights[name.replace(".weight", ".bias")] = zeros
    save_file(weights, model / "model.safetensors", {"format": "pt"})


def test_a_model_calls_a_tool(tmp_path: Path) -> None:
    """The template gets tools, calls and results; a call in the text is one in the answer."""
    pytest.importorskip("torch")
    pytest.importorskip("peft")
    model = tmp_path / "model"
    write_qwen(model)
    called = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    messages = [*HELLO, called, {"role": "tool", "content": "8"}]
    prompt = "f uHello a8 t8 <|im_start|>assistant\n"
    written = '<tool_call>{"name": "f", "arguments": {"x": 9}}</tool_call>'
    with running_server(Settings(data_dir=tmp_path / "data"), "torch", model=str(model)) as url:
        asked: dict[str, Any] = {"model": teach(url, prompt, written), "messages": messages}
        asked |= {"tools": TOOLS, "temperature": 0, "max_tokens": 80}
        chat = open_client(url).chat.completions
        whole = chat.create(**asked).choices[0]
        call = whole.message.tool_calls[0].function
        assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
        assert (call.name, call.arguments) == ("f", '{"x":9}')
        parts = [chunk.choices[0] for chunk in chat.create(**asked, stream=True)]
        streamed = [call.function for part in parts for call in part.delta.tool_calls or []]
        assert [(one.name, one.arguments) for one in streamed] == [("f", '{"x":9}')]
        assert parts[-1].finish_reason == "tool_calls"
        assert chat.create(**asked, tool_choice="none").choices[0].message.tool_calls is None


@pytest.mark.parametrize("body", ["{'name': f}", "7", '{"name": "f"}', "[1]"])
def test_a_call_that_cannot_be_read_is_text(body: str) -> None:
    """What begins like a call but is none stays text, as does an answer without a call."""
    texts = ModelTexts(packaged_tokenizer(), "qwen3")
    prompt, written = texts.encode("<|im_start|>assistant\n"), f"<tool_call>{body}</tool_call>"
    assert texts.read_calls(prompt, texts.encode(written), TOOLS) is None
    assert texts.read_calls(prompt, texts.encode(body), TOOLS) is None


def teach(url: str, prompt: str, written: str) -> str:
    """Train the model until it writes a text after the prompt; return the path of its weights."""
    training = tinker.ServiceClient(base_url=url).create_lora_training_client("model", rank=16)
    tokens, begin = [*f"{prompt}{written}".encode(), 256], len(prompt)
    weights = [float(at >= begin) for at in range(1, len(tokens))]
    inputs: Any = {"target_tokens": tokens[1:], "weights": weights}
    datum = tinker.Datum(tinker.ModelInput.from_ints(tokens[:-1]), inputs)
    while training.forward_backward([datum], "cross_entropy").result().metrics["loss:sum"] > 0.1:
        training.optim_step(tinker.AdamParams(learning_rate=3e-3)).result()
    return training.save_weights_for_sampler("taught").result().path


def said(**message: object) -> dict[str, Any]:
    return {"model": MODEL, "messages": [message]}


CHATS, PLAIN = "chat/completions", "completions"


A = {"model": MODEL, "prompt": "a"}


ROLES = "it must be one of system, developer, user, assistant, tool"


CONTENT = "messages[0].content: must be a string or a list or null, not an integer"


@pytest.mark.parametrize(
    ("path", "body", "message", "param"),
    [
        (CHATS, {}, "model: the field is missing; messages: the field is missing", "model"),
        (CHATS, {"model": MODEL}, "messages: the field is missing", "messages"),
        (CHATS, {**A, "messages": "hi"}, "messages: must be a list, not a string", "messages"),
        (CHATS, said(role="user", content=5), CONTENT, "messages[0].content"),
        (PLAIN, {**A, "n": "2"}, "n: must be an integer, not a string", "n"),
        (PLAIN, [], "the body: must be an object, not a list", None),
        (PLAIN, {**A, "prompt": ""}, "prompt is empty", "prompt"),
        (PLAIN, {**A, "n": 0}, "n is 0; it must be from 1 to 1024", "n"),
        (
            CHATS,
            said(role="usr", content="a"),
            f"messages[0].role is 'usr'; {ROLES}",
            "messages[0].role",
        ),
        (CHATS, said(role="user"), "messages[0].content is missing", "messages[0].content"),
    ],
)
def test_a_body_that_does_not_fit_is_refused_in_words(
    url: str, path: str, body: object, message: str, param: str | None
) -> None:
    """A refused body gets a plain sentence with the name of its field."""
    error = refusal(url, path, body)
    assert (error["message"], error["param"]) == (message, param)


OUT_OF_RANGE: dict[str, list[float]] = {
    "n": [100_000, -1],
    "max_tokens": [-1, 10**6],
    "temperature": [-0.5],
    "top_p": [1.5],
    "top_k": [-2],
    "min_p": [2.0],
    "presence_penalty": [-3.0],
    "frequency_penalty": [3.0],
    "repetition_penalty": [0.0],
}


OWN = {
    PLAIN: {"logprobs": [1000, -1]},
    CHATS: {"top_logprobs": [1000], "max_completion_tokens": [-1]},
}


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        (path, field, value)
        for path, own in OWN.items()
        for field, values in {**OUT_OF_RANGE, **own}.items()
        for value in values
    ],
)
def test_a_value_out_of_range_is_refused_with_its_parameter(
    url: str, path: str, field: str, value: float
) -> None:
    """``param`` is the parameter as the request names it, also where the engine refuses it."""
    scored = {"logprobs": True} if path == CHATS else {}
    code = "context_length_exceeded" if value == 10**6 else None
    error = refusal(url, path, {**bodies(path), **scored, field: value}, code)
    assert error["param"] == field
    assert error["message"].startswith(f"{field} is {value}")


MEANT = {
    "temprature": "temperature",
    "topp": "top_p",
    "max_new_tokens": "max_tokens",
    "metadta": "metadata",
}


OF_OTHERS: dict[str, object] = {
    "typical_p": 0.1,
    "truncate_prompt_tokens": 5,
    "skip_special_tokens": False,
    "include_stop_str_in_output": True,
    "prompt_logprobs": 0,
    "reasoning_effort": "low",
    "regex": "a+",
    "ebnf": "root ::= a",
    "json_schema": "{}",
}


@pytest.mark.parametrize("path", [PLAIN, CHATS])
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        *(
            (name, 5, f'unknown parameter "{name}"; did you mean "{one}"?')
            for name, one in MEANT.items()
        ),
        *(
            (name, value, f"{name} is not supported by this server")
            for name, value in (*OF_OTHERS.items(), ("repeat_penalty", 1.2), ("repeat_penalty", 0))
        ),
    ],
)
def test_a_parameter_that_would_change_the_text_is_not_ignored(
    url: str, path: str, field: str, value: object, message: str
) -> None:
    """Misspelled parameters, and those of other servers, are refused by name."""
    error = refusal(url, path, {**bodies(path), field: value})
    assert (error["message"], error["param"]) == (message, field)


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
    "tfs_z": 1,
    "include_stop_str_in_output": False,
    "typical_p": 1,
}
HARMLESS = {"metadata": {"a": "b"}, "user_id": "x", "store": True, "top_words": 3}


def test_neutral_values_and_harmless_parameters_are_accepted(tmp_path: Path) -> None:
    """Neutral values have no effect; other unknown ones are named in a header, or are 400."""
    for strict, fields in ((True, NEUTRAL), (False, {**NEUTRAL, **HARMLESS})):
        with running_server(Settings(data_dir=tmp_path / str(strict), strict=strict)) as url:
            body = {**bodies(PLAIN), "user": "me", **fields}
            answer = httpx.post(f"{url}/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            refused = httpx.post(f"{url}/v1/completions", json={**body, "service_tier": "auto"})
            assert refused.status_code == (400 if strict else 200)
            assert answer.headers.get(HEADER) == (None if strict else ", ".join(HARMLESS))
