"""Tokenizers: which one is loaded from transformers for which model, and without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tinker

STUB = Path(__file__).with_name("stub_transformers")
PACKAGED = Path(tinker.__file__).parent / "local" / "base_model"
MIRROR = "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer"
NO_CODE = {"trust_remote_code": False}
CLIENTS = """
import json, sys, httpx, tinker
from tinker.local import Settings, State, create_app
from tinker.local.engines.toy import ToyEngine
profile = "official" if "told" in sys.argv else "minimal-json"
state = State(ToyEngine, Settings(data_dir=sys.argv[1], any_base_model=True, profile=profile))
service = tinker.ServiceClient(base_url="http://server", transport=httpx.ASGITransport(create_app(state)))
"""


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Run a script with the stub, after CLIENTS; return its JSON and its calls of transformers."""

    def run(script: str, *arguments: str, stub: bool = True) -> tuple[Any, list[Any]]:
        asked = tmp_path / "asked"
        path = [*([str(STUB)] if stub else []), *(entry for entry in sys.path if entry)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "ASKED": str(asked)}
        command = [sys.executable, "-c", CLIENTS + script, str(tmp_path / "server"), *arguments]
        how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 120}
        done = subprocess.run(command, env=environment, cwd=tmp_path, check=False, **how)
        assert done.returncode == 0, done.stderr
        lines = asked.read_text().splitlines() if asked.exists() else []
        return json.loads(done.stdout.splitlines()[-1]), [json.loads(line) for line in lines]

    return run


#: Of each model, the name and the revision of its tokenizer.
TOKENIZERS = {
    "Qwen/Qwen3-8B": ("Qwen/Qwen3-8B", None),
    "Qwen/Qwen3-8B:peft:1": ("Qwen/Qwen3-8B", None),
    "Qwen/Qwen3-8B/long-context": ("Qwen/Qwen3-8B", None),
    "gpt2": ("gpt2", None),
    "meta-llama/Llama-3.1-8B-Instruct": (MIRROR, None),
    "meta-llama/Llama-3.3-70B/variant": (MIRROR, None),
    "meta-llama/Llama-2-7b": ("meta-llama/Llama-2-7b", None),
    "moonshotai/Kimi-K2-Thinking": (
        "moonshotai/Kimi-K2-Thinking",
        "612681931a8c906ddb349f8ad0f582cb552189cd",
    ),
    "moonshotai/Kimi-K2.5": ("moonshotai/Kimi-K2.5", "4d01dfe0332d63057c186e0b262165819efb6611"),
    "moonshotai/Kimi-K2.5-Text-Only": (
        "moonshotai/Kimi-K2.5",
        "4d01dfe0332d63057c186e0b262165819efb6611",
    ),
    "moonshotai/Kimi-K2.6": ("moonshotai/Kimi-K2.6", "b5aabbfb20227ed42becbf5541dbffd213942c58"),
    "moonshotai/Kimi-K3/variant": (
        "moonshotai/Kimi-K3",
        "f831ab66814297da540d832a5235f8e904f29d06",
    ),
    "tinker/toy": (str(PACKAGED), None),
}


def test_tokenizer_of_each_model(run: Any) -> None:
    """Each model has its tokenizer; code from the hub runs only at the pinned commit."""
    script = """
from tinker import _tokenizers
for model in sys.argv[2:]:
    _tokenizers._loaded.clear()
    service.create_sampling_client(base_model=model).get_tokenizer()
print(1)
"""
    _, asked = run(script, *TOKENIZERS)
    assert asked == [
        [name, {"revision": revision, "trust_remote_code": True} if revision else NO_CODE]
        for name, revision in TOKENIZERS.values()
    ]


def test_tokenizer_named_by_the_server(run: Any) -> None:
    """Clients of every kind load the tokenizer that the server names, a directory too."""
    script = """
training = service.create_lora_training_client("Qwen/Qwen3-8B", rank=4)
samplers = [
    training.save_weights_and_get_sampling_client(),
    service.create_sampling_client(base_model="Qwen/Qwen3-8B"),
    training.create_sampling_client(training.save_weights_for_sampler("a").result().path),
]
samplers.append(tinker.SamplingClient.from_sampler_handle(samplers[0].get_sampler_handle()))
print(json.dumps(len({id(client.get_tokenizer()) for client in [training, *samplers]})))
"""
    distinct, asked = run(script, "told")
    assert distinct == 1
    assert asked == [[str(PACKAGED), NO_CODE]]


def test_a_tokenizer_out_of_reach(run: Any) -> None:
    """A tokenizer that is a folder on another machine is an error; the hub is not asked."""
    script = """
from tinker import _tokenizers
def fault(name):
    try:
        _tokenizers.resolve("qwen", name)
    except tinker.TinkerError as error:
        return str(error)
names = "qwen (a folder of the server)", "/models/qwen", "/qwen", "../qwen", "a/b/c", "a b"
print(json.dumps([[name, fault(name)] for name in names]))
"""
    faults, asked = run(script)
    assert asked == []
    for name, fault in faults:
        assert repr(name) in fault
        assert "AutoTokenizer.from_pretrained" in fault


def test_directory(run: Any, tmp_path: Path) -> None:
    """A model that is a local directory has its tokenizer in it."""
    (tmp_path / "my" / "own" / "model").mkdir(parents=True)
    script = """
import os
for name in ("my/own/model", os.path.abspath("my/own/model")):
    service.create_sampling_client(base_model=name).get_tokenizer()
print(1)
"""
    _, asked = run(script)
    assert asked == [[str(tmp_path / "my" / "own" / "model"), NO_CODE]]


def test_loaded_once(run: Any) -> None:
    """Many threads and both kinds of clients share one load, and get the same object."""
    script = """
import concurrent.futures, threading
name = "meta-llama/Llama-3.1-8B"
clients = [service.create_sampling_client(base_model=name + f"/{i}") for i in range(4)]
together = threading.Barrier(8)
def ask(i):
    together.wait()
    return id(clients[i % 4].get_tokenizer())
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    print(json.dumps(len(set(pool.map(ask, range(8))))))
"""
    assert run(script) == (1, [[MIRROR, NO_CODE]])


def test_text(run: Any) -> None:
    """Clients encode and decode with their tokenizer, by default with special tokens."""
    script = """
def texts(client):
    tokens = client.encode("ab")
    prompt = tinker.ModelInput.from_text("ab", client.get_tokenizer()).to_ints()
    spelt, skipped = client.decode(tokens), client.decode(tokens, skip_special_tokens=True)
    return [tokens, client.encode("ab", add_special_tokens=False), spelt, skipped, prompt]
sampling = service.create_sampling_client(base_model="Qwen/Qwen3-8B")
print(json.dumps([texts(client) for client in (sampling, service.create_lora_training_client("Qwen/Qwen3-8B", rank=4))]))
"""
    assert run(script, "told")[0] == [[[1, 97, 98], [97, 98], "\x01ab", "ab", [1, 97, 98]]] * 2


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("Qwen/Qwen3-8B", "pip install 'transformers>=4.45'"),
        ("thinkingmachines/Inkling", "tml_tokenizers"),
        ("TML/anything/variant", "tml_tokenizers"),
    ],
)
def test_without_their_package(run: Any, model: str, words: str) -> None:
    """Without transformers, or the package of models that are on no hub, the error names it."""
    script = """
if sys.argv[2].startswith("Qwen"):
    sys.modules["transformers"] = None
try:
    service.create_sampling_client(base_model=sys.argv[2]).get_tokenizer()
except (ImportError, RuntimeError) as error:
    print(json.dumps(str(error)))
"""
    message, asked = run(script, model, stub=not model.startswith("Qwen"))
    assert words in message
    assert asked == []


def test_packaged() -> None:
    """The packaged model's tokenizer, loaded by transformers, decodes what it encoded."""
    pytest.importorskip("transformers")
    service = tinker.ServiceClient(base_url="local://toy")
    training = service.create_lora_training_client("tinker/toy", rank=4)
    sampler = service.create_sampling_client(base_model="tinker/toy")
    assert training.get_tokenizer() is sampler.get_tokenizer()
    text = "hello world"
    assert training.decode(training.encode(text), skip_special_tokens=True) == text
    service.close().result(10)
