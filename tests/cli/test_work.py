"""``tinker doctor``, ``tinker sample`` and ``tinker train``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Ask, Call, served, write
from starlette.responses import HTMLResponse, PlainTextResponse
from support.proxies import tunnel_proxy
from support.tls import server_context, write_authority
from support.tolerances import near
from tinker_wire.operations import OPERATIONS

import tinker
from tinker.cli import training
from tinker.cli.output import CommandFailed
from tinker.testing import toy_server

# Doctor


def checks(value: Any) -> dict[str, tuple[str, str]]:
    return {check["name"]: (check["status"], check["detail"]) for check in value["checks"]}


@pytest.fixture
def examine(call: Call) -> Callable[..., tuple[int, dict[str, tuple[str, str]]]]:
    """Run the doctor: how it ends, and its checks."""

    def examine(**how: Any) -> tuple[int, dict[str, tuple[str, str]]]:
        result = call("-f json doctor", **how)
        return result.exit_code, checks(json.loads(result.stdout))

    return examine


def test_doctor_of_a_whole_server(ask: Ask, call: Call, server: str) -> None:
    """On a whole server each check is in order, every operation there, and nothing was made."""
    rest = tinker.RestClient(base_url=server)
    before = rest.list_sessions(limit=1000).result(10).sessions
    value = ask("doctor")
    assert (value["base_url"], value["ok"]) == (server, True)
    found = checks(value)
    names = "versions installation credential connection transport clock settings models wire operations"
    assert list(found) == names.split()
    assert {status for status, _ in found.values()} == {"ok", "note"}
    took = r"responds in [\d.]+ ms \(first request, with connection: [\d.]+ ms\)"
    assert re.fullmatch(took, found["connection"][1])
    assert found["settings"][1] == "received; all at their defaults"
    assert found["wire"][1] == "training requests are sent as protobuf"
    assert value["operations"] == dict.fromkeys(OPERATIONS, "yes")
    assert rest.list_sessions(limit=1000).result(10).sessions == before
    table = call("doctor --operations")
    assert (table.exit_code, "asample" in table.stdout) == (0, True)


@pytest.mark.parametrize(
    ("protocol", "through_proxy", "said"),
    [
        (
            "h2",
            False,
            r"HTTP/2, TLSv1\.3, certificate issued by trustme v\S+ \(by httpunk [\d.]+\)",
        ),
        (
            "http/1.1",
            True,
            (
                r"HTTP/1\.1, TLSv1\.3, certificate issued by trustme v\S+, through the proxy "
                r"http://\S+ \(by httpunk [\d.]+\)"
            ),
        ),
    ],
)
def test_doctor_says_how_it_is_connected(
    ask: Ask,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    protocol: str,
    through_proxy: bool,
    said: str,
) -> None:
    """It names versions, the certificate's issuer, and the proxy without its password."""
    monkeypatch.setenv("TINKER_CA_FILE", str(write_authority(tmp_path)))
    with (
        toy_server(tmp_path / "server") as secured,
        secured.on_port(ssl_context=server_context(protocol)) as url,
        tunnel_proxy(url.replace("localhost", "127.0.0.1")) as proxy,
    ):
        if through_proxy:
            monkeypatch.setenv("TINKER_PROXY", f"http://me:hush@127.0.0.1:{proxy.port}")
        value = ask("doctor", base_url=url)
    assert re.fullmatch(said, checks(value)["transport"][1])
    assert "hush" not in json.dumps(value)
    (connection,) = value["connections"]
    assert connection["http_version"] == ("HTTP/2" if protocol == "h2" else "HTTP/1.1")
    assert connection["tls_version"] == "TLSv1.3"
    assert connection["certificate_issuer"].startswith("trustme")
    assert connection["proxy"] == (f"http://127.0.0.1:{proxy.port}" if through_proxy else None)
    assert connection["engine"].startswith("httpunk ")


def test_doctor_names_settings(examine: Any, serve: Callable[..., str]) -> None:
    """What the server sets otherwise than by default is named."""
    url = serve(client_config=tinker.types.ClientConfigResponse(fwdbwd_max_chunk_len=512))
    said = "received; not at their defaults: fwdbwd_max_chunk_len"
    assert examine(base_url=url)[1]["settings"][1] == said


def test_doctor_of_a_server_that_knows_less(ask: Ask, scripted: Callable[..., str]) -> None:
    """What a server lacks is named, and is no failure; so is the form of requests that it reads."""
    # where there is no such path, for any method
    url = scripted("/sessions/search", 404, method="PATCH", profile="minimal-json")
    value = ask("doctor", base_url=url)
    assert value["ok"]
    operations = value["operations"]
    assert (operations["search_sessions"], operations["create_session"]) == ("no", "yes")
    found = checks(value)
    assert "search_sessions" in found["operations"][1]
    assert found["wire"][1] == "training requests are sent as JSON"


def test_doctor_finds_the_form_as_clients_do(
    ask: Ask,
    call: Call,
    examine: Any,
    serve: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    server: str,
) -> None:
    """Doctor reports the format that clients use on this server, or that was chosen."""
    url = serve(profile="plain-json")
    value = ask(f"doctor --base-url {url}", base_url="http://127.0.0.1:9")
    assert value["base_url"] == url
    said = "training requests are sent as JSON, as the server answers 500 to protobuf"
    assert checks(value)["wire"] == ("ok", said)
    assert {
        "operation": "forward_backward",
        "finding": "as json, sparse tensors kept",
        "evidence": "500 to another form",
    } in value["facts"]
    assert "500 to another form" in call(f"doctor -v --base-url {url}").stdout
    monkeypatch.setenv("TINKER_WIRE", "proto")
    status, detail = examine(base_url=url)[1]["wire"]
    assert (status, "answers 500" in detail) == ("note", True)
    monkeypatch.setenv("TINKER_WIRE", "json")
    said = "training requests are sent as JSON, as TINKER_WIRE says"
    assert examine()[1]["wire"] == ("ok", said)


PAGE = "<!DOCTYPE html>\n<html><body>" + "<p>Welcome</p>" * 100


@pytest.mark.parametrize(
    ("status", "text"), [(200, PAGE), (404, PAGE), (501, PAGE), (404, "404 page not found")]
)
def test_doctor_of_a_web_server(call: Call, status: int, text: str) -> None:
    """For another web server, one line has the problem and the solution, and the code is 1."""
    kind = "text/plain" if text.startswith("404") else "text/html"
    with served(PlainTextResponse(text, status, media_type=kind)) as url:
        result = call("-f json doctor", base_url=url)
    assert (result.exit_code, "Welcome" in result.output) == (1, False)
    found = checks(json.loads(result.stdout))
    assert list(found) == ["versions", "installation", "credential", "connection"]
    assert found["connection"][0] == "FAIL"
    assert "no Tinker API; check base_url" in found["connection"][1]
    assert "\n" not in found["connection"][1]


def test_a_wrong_path_is_one_line(server: str) -> None:
    """A client with a wrong base URL gets an error of one line instead of an HTML page."""

    def ask_of(url: str, kind: type[tinker.TinkerError]) -> str:
        with pytest.raises(kind) as caught:
            tinker.ServiceClient(base_url=url, patience_seconds=0).get_server_capabilities()
        return str(caught.value)

    with served(HTMLResponse(PAGE, 404)) as page:
        for url in (f"{server}/wrong", page):
            told = ask_of(url, tinker.NotFoundError)
            assert ("no Tinker API; check base_url" in told, "\n" in told) == (True, False)
            assert f"GET {url}/api/v1/get_server_capabilities" in told
    with served(HTMLResponse(PAGE)) as page:
        assert "check base_url" in ask_of(page, tinker.APIResponseValidationError)
    with served(HTMLResponse(PAGE, 502)) as page:
        told = ask_of(page, tinker.InternalServerError)
        assert ("from a gateway" in told, "base_url" in told) == (True, False)


def test_doctor_without_a_server(call: Call) -> None:
    """Without a server, doctor shows the local checks and exits with 1."""
    result = call("-f json doctor", base_url="http://127.0.0.1:9")
    found = checks(json.loads(result.stdout))
    statuses = (found["connection"][0], found["versions"][0])
    assert (result.exit_code, *statuses) == (1, "FAIL", "ok")
    assert "Fix these first: connection" in result.stderr


def test_doctor_with_a_wrong_key(
    call: Call, examine: Any, serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused credential is the failure to fix; it is not shown, and nothing else fails."""
    url = serve(api_key="tml-right")
    monkeypatch.setenv("TINKER_API_KEY", "tml-wrong")
    result = call("-f json doctor", base_url=url)
    assert (result.exit_code, "tml-wrong" in result.output) == (1, False)
    found = checks(json.loads(result.stdout))
    for name in ("settings", "models", "wire"):
        assert found[name] == ("note", "not checked: needs the credential")
    advice = "set TINKER_API_KEY to one that this server accepts"
    said = f"found in TINKER_API_KEY, refused by the server (401); {advice}"
    assert found["credential"] == ("FAIL", said)
    assert json.loads(result.stderr)["error"] == "Fix these first: credential"
    monkeypatch.setenv("TINKER_API_KEY", "tml-right")
    assert examine(base_url=url)[1]["credential"] == ("ok", "found in TINKER_API_KEY")
    monkeypatch.delenv("TINKER_API_KEY")
    said = "none, and the server requires one (401); set TINKER_API_KEY"
    assert examine(base_url=url)[1]["credential"] == ("FAIL", said)


# Sampling


def test_sample(ask: Ask, call: Call, run: Any) -> None:
    """Prompts are continued in their order; one alone is printed as it is."""
    pytest.importorskip("transformers")
    value = ask("sample a x -n 2 --max-tokens 3 --temperature 0")
    assert value["model"] == "tinker/toy"
    assert [one["prompt"] for one in value["samples"]] == ["a", "a", "x", "x"]
    fields = ["prompt", "text", "tokens", "stop_reason"]
    assert all(list(one) == fields for one in value["samples"])
    lines = call("sample a -n 2 --max-tokens 3").stdout.splitlines()
    labels = [line for line in lines if line[:4] == "--- "]
    assert labels == ["--- 'a' (1 of 2)", "--- 'a' (2 of 2)"]
    options = f"--model {run.sampler} --max-tokens 3 --temperature 0"
    text = call(f"sample {options}", input="a\n").stdout
    assert ask(f"sample a {options}")["samples"][0]["text"] == text.removesuffix("\n")


def test_sample_reads_and_writes_files(ask: Ask, call: Call, tmp_path: Path) -> None:
    """A text file is one prompt, JSON one or several, and samples are saved as printed."""
    pytest.importorskip("transformers")
    sample = "sample --max-tokens 2 --temperature 0"
    for name, text in {
        "prompt.txt": "a\n",
        "prompts.json": '["a", [5, 6, 7]]',
        "ids.json": "[5, 6, 7]",
    }.items():
        (tmp_path / name).write_text(text)
    assert ask(f"{sample} --prompt-file prompt.txt") == ask(f"{sample} a")
    saved = ask(f"{sample} --prompt-file prompts.json -o samples.json")
    assert saved == {"output": "samples.json", "samples": 2}
    first, second = json.loads((tmp_path / "samples.json").read_text())["samples"]
    found = (first["prompt"], second["prompt"], len(second["tokens"]))
    assert found == ("a", [5, 6, 7], 2)
    assert ask(f"{sample} --prompt-file ids.json")["samples"] == [second]
    assert call(f"{sample} -o samples.txt a").stdout == "Saved 1 sample to samples.txt\n"


def test_answers_are_no_prompts(ask: Ask, call: Call, tmp_path: Path) -> None:
    """Where chats are prompts, the answers at their ends are left out, which is said."""
    asked, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    write(tmp_path / "chats.jsonl", {"messages": [asked, answer]}, {"prompt": [asked]})
    sample = "sample --file chats.jsonl -o answers.jsonl --max-tokens 2 --temperature 0"
    said = "The last answers of 1 chat are left out: a prompt ends where its answer begins\n"
    assert said in call(sample, code=0).stderr
    first, second = map(json.loads, (tmp_path / "answers.jsonl").read_text().splitlines())
    assert (first["prompt"], first["samples"]) == ([asked], second["samples"])
    (tmp_path / "reward.py").write_text("def reward(answer, example):\n    return len(answer)")
    grpo = "--grpo reward.py --max-tokens 2 --max-steps 1"
    assert said in call(f"train chats.jsonl {grpo}", code=0).stderr
    write(tmp_path / "answers.jsonl", {"messages": [answer]})
    assert (
        'line 1: "messages" has only answers'
        in call("sample --file answers.jsonl -o x.jsonl").stderr
    )


def test_a_checkpoint_is_created(ask: Ask, call: Call, refuse: Any, server: str) -> None:
    """A new adapter is saved untrained, to train on and to sample; so is a checkpoint's copy."""
    new = "checkpoint create --model tinker/toy"
    made = ask(f"{new} --rank 2 --name start --sampler --ttl 7200")
    assert list(made) == ["training_run_id", "checkpoint_path", "sampler_path"]
    path = made["checkpoint_path"]
    assert path == f"tinker://{made['training_run_id']}/weights/start"
    info = ask(f"checkpoint info {path}")
    assert (info["lora_rank"], info["expires_at"] is not None) == (2, True)
    assert ask(f"checkpoint info {made['sampler_path']}")["checkpoint_type"] == "sampler"
    metadata = "--metadata loss=1.5 --metadata who=me"
    partial = ask(f"{new} --no-train-attn --no-train-unembed {metadata}")["checkpoint_path"]
    assert ask(f"checkpoint info {partial}")["user_metadata"] == {"loss": "1.5", "who": "me"}
    rest = tinker.RestClient(base_url=server)
    adapter = rest.get_weights_info_by_tinker_path(partial).result(10)
    trained = (adapter.train_mlp, adapter.train_attn, adapter.train_unembed)
    assert trained == (True, False, False)
    refuse(2, "cannot be used with --from", f"checkpoint create --from {path} --no-train-mlp")
    copy = ask(f"checkpoint create --from {path}")
    assert copy["training_run_id"] != made["training_run_id"]
    name = copy["checkpoint_path"].rpartition("/")[2]
    assert (name, copy["sampler_path"]) == ("initial", None)
    assert "To train on" in call(new).stdout


# Training


def test_train(ask: Ask, call: Call, tmp_path: Path) -> None:
    """Every form of example is learned, the loss falls, and both checkpoints can be used."""
    pytest.importorskip("transformers")
    data = write(
        tmp_path / "data.jsonl",
        *({"prompt": "ab", key: "cd"} for key in ("completion", "answer", "response")),
        {"text": "abcd"},
        {"tokens": [97, 98, 99, 100], "weights": [0, 0, 1, 1]},
    )
    value = ask(f"train {data} --epochs 4 --batch-size 5 --learning-rate 0.05 --rank 4 --name x")
    names = (
        "type training_run_id base_model examples steps losses checkpoint_path sampler_path "
        "tokens cost"
    )
    assert list(value) == names.split()
    assert (value["base_model"], value["examples"], value["steps"]) == ("tinker/toy", 5, 4)
    assert value["losses"][-1] < value["losses"][0]
    listed = ask(f"checkpoint list --run-id {value['training_run_id']}")["checkpoints"]
    paths = {one["tinker_path"] for one in listed}
    assert paths == {value["checkpoint_path"], value["sampler_path"]}
    assert ask(f"sample ab --model {value['sampler_path']} --max-tokens 2")["samples"]
    options = "--max-steps 2 --batch-size 2 --learning-rate 0"
    on = call(f"train {data} --from {value['checkpoint_path']} {options}", code=0)
    assert ("step 2/2 loss " in on.stderr, "weights/final" in on.stdout) == (True, True)


class Letters:
    """A tokenizer of letters: 0 ends a text, and a chat is ``<role>content;`` for each message."""

    eos_token_id = 0
    chat_template: str | None = "there is one"
    forgets = False

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [*([1] if add_special_tokens else []), *map(ord, text)]

    def apply_chat_template(
        self,
        messages: list[dict[str, str]],
        *,
        tokenize: bool,
        add_generation_prompt: bool,
        tools: Sequence[str] = (),
    ) -> str:
        shown = messages[-1:] if self.forgets else messages
        text = "".join(
            [f"<{tool}>" for tool in tools]
            + [f"<{one['role'][0]}>{one['content']};" for one in shown]
        )
        return text + ("<a>" if add_generation_prompt else "")


def learned(example: training.ExampleRow) -> str:
    return "".join(chr(token) for token, weight in zip(example.tokens, example.weights) if weight)


def read(
    tmp_path: Path, line: object, tokenizer: Letters | None = None, max_length: int | None = None
) -> training.ExampleRow:
    (example,) = training.read_examples(
        Path(write(tmp_path / "d.jsonl", line)), tokenizer or Letters(), max_length
    )
    return example


def test_weights_of_examples(tmp_path: Path) -> None:
    """The answer with its end has weight, as have a chat's messages of the assistant."""
    answered = read(tmp_path, {"prompt": "ab", "completion": "cd"})
    assert (answered.tokens, answered.weights) == ([1, 97, 98, 99, 100, 0], [0, 0, 0, 1, 1, 1])
    chat = [("user", "q"), ("assistant", "one"), ("user", "r"), ("assistant", "two")]
    example = read(
        tmp_path, {"messages": [{"role": role, "content": content} for role, content in chat]}
    )
    assert "".join(map(chr, example.tokens)) == "<u>q;<a>one;<u>r;<a>two;"
    assert learned(example) == "one;two;"
    assert read(tmp_path, {"tokens": [5, 6, 7]}).weights == [1, 1, 1]
    padded = {
        "input_ids": [5, 6, 7, 0],
        "labels": [-100, 6, 7, -100],
        "attention_mask": [1, 1, 1, 0],
    }
    assert read(tmp_path, padded) == ([5, 6, 7], [0, 1, 1])
    assert read(tmp_path, {"tokens": [5, 6, 0], "attention_mask": [1, 1, 0]}) == ([5, 6], [1, 1])
    datum = answered.datum()
    assert datum.model_input.to_ints() == [1, 97, 98, 99, 100]
    assert datum.loss_fn_inputs["weights"].tolist() == [0, 0, 1, 1, 1]
    assert read(tmp_path, {"text": "abcdef"}, max_length=3).tokens == [1, 97, 98]


BEFORE = [
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "one"},
    {"role": "user", "content": "r"},
]


def test_a_chat_of_prompt_and_completion(tmp_path: Path) -> None:
    """Of a prompt and completion of messages only the assistant's of the completion count."""
    example = read(
        tmp_path, {"prompt": BEFORE, "completion": [{"role": "assistant", "content": "two"}]}
    )
    assert "".join(map(chr, example.tokens)) == "<u>q;<a>one;<u>r;<a>two;"
    assert learned(example) == "two;"
    after = [{"role": role, "content": role} for role in ("assistant", "tool", "assistant")]
    assert (
        learned(read(tmp_path, {"prompt": BEFORE, "completion": after})) == "assistant;assistant;"
    )


def test_tools_parts_and_masks_of_data_sets(tmp_path: Path) -> None:
    """Tools go to the chat template, parts of texts are joined, and masks say what is learned."""
    parts = [{"type": "text", "text": "on"}, {"type": "text", "text": "e"}]
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": parts}]
    example = read(tmp_path, {"messages": chat, "tools": ["clock"]})
    assert "".join(map(chr, example.tokens)) == "<clock><u>q;<a>one;"
    assert learned(example) == "one;"
    for mask in ("completion_mask", "assistant_masks"):
        assert read(tmp_path, {"input_ids": [5, 6, 7], mask: [0, 0, 1]}).weights == [0, 0, 1]
        both = {"input_ids": [5, 6, 7], "labels": [-100, 6, 7], mask: [0, 0, 1]}
        assert read(tmp_path, both).weights == [0, 1, 1]  # labels say it more exactly


def test_pairs_with_a_chat_template(tmp_path: Path) -> None:
    """Both answers of a pair follow the same prompt with its tools, and they alone have weight."""
    chosen, rejected = ([{"role": "assistant", "content": text}] for text in ("two", "three"))
    for line in (
        {"prompt": BEFORE, "chosen": chosen, "rejected": rejected},
        {"chosen": BEFORE + chosen, "rejected": BEFORE + rejected},
    ):
        file = Path(write(tmp_path / "d.jsonl", {**line, "tools": ["clock"]}))
        rows = training.read_examples(file, Letters(), None, is_pairs=True)
        assert ["".join(map(chr, row.tokens)) for row in rows] == [
            f"<clock><u>q;<a>one;<u>r;<a>{a};" for a in ("two", "three")
        ]
        assert list(map(learned, rows)) == ["two;", "three;"]


def test_tools_need_a_chat_template(tmp_path: Path) -> None:
    """Without a chat template, what it would have to write is refused, not left out."""
    without = Letters()
    without.chat_template = None
    called = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [{"name": "clock"}]},
    ]
    for line in (
        {"messages": called},
        {"messages": [{"role": "assistant", "content": "a"}], "tools": ["clock"]},
    ):
        with pytest.raises(CommandFailed, match="need a tokenizer with a chat template"):
            read(tmp_path, line, without)


def test_a_cut_that_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An example without learned tokens after the cut is left out; none left is an error."""
    long, short = ({"prompt": prompt, "completion": "g"} for prompt in ("abcdef", "a"))
    file = Path(write(tmp_path / "d.jsonl", long, short, long))
    assert len(training.read_examples(file, Letters(), 3)) == 1
    assert (
        capsys.readouterr().err
        == f"2 examples of {file} left out: nothing to learn within --max-length 3\n"
    )
    with pytest.raises(CommandFailed, match="has nothing to learn within --max-length 3"):
        read(tmp_path, long, max_length=3)


def test_answers_with_a_weight(tmp_path: Path) -> None:
    """An answer counts as much as its own weight says, or not at all."""
    asked = {"role": "user", "content": "a"}
    for mark, weight in (
        ({"weight": 0}, 0.0),
        ({"weight": 0.5}, 0.5),
        ({"train": False}, 0.0),
        ({"trainable": True}, 1.0),
    ):
        first, last = (
            {"role": "assistant", "content": "b", **mark},
            {"role": "assistant", "content": "c"},
        )
        row = read(tmp_path, {"messages": [asked, first, asked, last]})
        alone = read(tmp_path, {"messages": [asked, last]})
        counted = row.weight - alone.weight
        assert (counted > 0, counted) == (weight > 0, near(weight * len("b;"), 9, row.weight))
    with pytest.raises(CommandFailed, match="message 1 has the weight 'x'; it is a finite number"):
        read(tmp_path, {"messages": [asked, {"role": "assistant", "content": "b", "weight": "x"}]})


def test_unusable_chat_templates(tmp_path: Path) -> None:
    """A template that changes earlier messages cannot learn several answers."""
    chat = [{"role": role, "content": "c"} for role in ("user", "assistant", "user", "assistant")]
    forgetful = Letters()
    forgetful.forgets = True
    with pytest.raises(CommandFailed, match="changes earlier messages"):
        read(tmp_path, {"messages": chat}, forgetful)
