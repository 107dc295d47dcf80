"""The server as users start it: on a port, from the command line, and inside the process."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from support.api import Api, MakeApi, loss_body, model_body, sampler_body, step_body
from support.served import Served, served
from tinker_wire.operations import OPERATIONS

import tinker
import tinker.local
from tinker.cli import main
from tinker.local import (
    Settings,
    State,
    close_in_process,
    in_process_app,
    running_server,
    serve,
    serving,
)
from tinker.local.engines import PACKAGED_MODEL, choose_engine, open_engine
from tinker.local.engines.toy import ToyEngine
from tinker.local.storage import FOLDER

SESSION = {"tags": [], "sdk_version": "1"}


def path(operation: str) -> str:
    return OPERATIONS[operation].path


# On a port


def test_a_server_runs_on_a_free_port_and_ends(tmp_path: Path) -> None:
    """Inside the block the server answers; after it the port is closed and no thread is left."""
    before = set(threading.enumerate())
    with running_server(Settings(data_dir=tmp_path)) as url, httpx.Client(base_url=url) as client:
        session = client.post(path("create_session"), json=SESSION).json()["session_id"]
        body = model_body(session)
        future = client.post(path("create_model"), json=body).json()
        result = client.post(path("retrieve_future"), json={"request_id": future["request_id"]})
        assert result.json()["model_id"] == f"{session}:train:0"
    with pytest.raises(httpx.ConnectError):
        httpx.get(url + path("healthz"))
    assert set(threading.enumerate()) <= before


SLOW_SERVER = """
import os
import sys
from pathlib import Path
from tinker.local import Settings, app, serve, serving
from tinker.local.engines.toy import ToyEngine

class Slow(ToyEngine):
    def forward_backward(self, *arguments, **options):
        os.write(1, b"running\\n")
        sys.stdin.readline()
        return super().forward_backward(*arguments, **options)

retrieve = app.HANDLERS["retrieve_future"]

def tell(state, call):
    os.write(1, b"polled\\n")
    return retrieve(state, call)

app.HANDLERS["retrieve_future"] = tell
serving.open_engine = lambda *_: Slow()
serve(engine="toy", port=0, settings=Settings(data_dir=Path(sys.argv[1])))
print("ended", flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="needs signals of POSIX")
def test_a_terminated_server_finishes_what_runs(tmp_path: Path) -> None:
    """At SIGTERM what runs gets its result, the next request a failure; the exit code is 0."""
    command = [sys.executable, "-c", SLOW_SERVER, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        with httpx.Client(base_url=found[0], timeout=60) as client, ThreadPoolExecutor(2) as pool:

            def post(operation: str, body: object) -> Any:
                return client.post(path(operation), json=body).json()

            session = post("create_session", SESSION)["session_id"]
            model = post("create_model", model_body(session))["model_id"]
            # the end of the three lines about the key and the page
            while process.stdout.readline() != "\n":
                pass
            for _ in range(3):
                process.stdout.readline()
            futures = [post("forward_backward", loss_body(model, number)) for number in (1, 2)]
            bodies = [{"request_id": future["request_id"]} for future in futures]
            polls = [pool.submit(post, "retrieve_future", body) for body in bodies]
            lines = {process.stdout.readline() for _ in range(3)}
            process.send_signal(signal.SIGTERM)
            waiting = polls[1].result()
            process.stdin.write("go on\n")
            process.stdin.flush()
            running = polls[0].result()
        assert process.stdout.readline() == "ended\n"
    assert lines == {"running\n", "polled\n"}
    assert running["loss_fn_outputs"]
    assert waiting == {"error": "the server is shutting down", "category": "server"}
    assert process.returncode == 0


def save(url: str, *names: str) -> None:
    """Save a new run under these names."""
    service = tinker.ServiceClient(base_url=url)
    training = service.create_lora_training_client("tinker/toy", rank=1)
    for name in names:
        training.save_state(name).result(30)


def test_a_server_says_what_it_restored(tmp_path: Path) -> None:
    """The announcement ends with the number of runs and checkpoints in the folder, if any."""
    said: list[str] = []
    for _ in range(2):
        with served("--durability", "step", "--data", tmp_path) as server:
            lines = server.lines(7)
            save(server.url, "one", "two")
            server.process.kill()
            said.append("".join([*lines, *(server.process.stdout or ())]))
    assert "Restored" not in said[0]
    assert said[1].endswith(f"\n\nRestored 1 run and 2 checkpoints from {tmp_path}.\n")


def test_answers_do_not_wait_for_acknowledgements() -> None:
    """Small packets are sent at once, not some 40 ms late as with Nagle's algorithm."""
    with (
        serving._listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
    ):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# In the process


@pytest.fixture
def in_process(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    close_in_process()


async def post(app: Any, operation: str, body: object) -> Any:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://local"
    ) as client:
        return (await client.post(path(operation), json=body)).json()


def test_clients_of_one_process_share_a_server(in_process: Path) -> None:
    """One URL and folder is one server, whatever loop calls it, until it is closed."""
    before = set(threading.enumerate())
    app = in_process_app("local://toy", in_process)
    assert in_process_app("local://toy", in_process) is app
    assert in_process_app("local://toy", in_process / "other") is not app
    session = asyncio.run(post(app, "create_session", SESSION))["session_id"]
    future = asyncio.run(post(app, "create_model", model_body(session)))
    asked = {"request_id": future["request_id"]}
    result = asyncio.run(post(app, "retrieve_future", asked))
    assert result["model_id"] == f"{session}:train:0"
    close_in_process()
    assert set(threading.enumerate()) <= before  # those of earlier tests may end meanwhile
    fresh = in_process_app("local://toy", in_process)
    assert fresh is not app
    body = {"session_id": session}
    assert "not found" in asyncio.run(post(fresh, "session_heartbeat", body))["detail"]


def test_other_schemes_are_refused() -> None:
    """Only ``local://`` is served in the process."""
    with pytest.raises(ValueError, match="local://"):
        in_process_app("http://localhost")


FORKED = """
import os, sys, tinker
os.environ["TINKER_LOCAL_DIR"] = sys.argv[1]
def sample():
    sampler = tinker.ServiceClient(base_url="local://toy").create_sampling_client(base_model="tinker/toy")
    params = tinker.SamplingParams(max_tokens=2, stop=[])
    return len(sampler.sample(tinker.ModelInput.from_ints([1]), 1, params).result(30).sequences[0].tokens)
assert sample() == 2
child = os.fork()
if child == 0:
    os._exit(0 if sample() == 2 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_server_of_its_own(tmp_path: Path) -> None:
    """A forked child does not hang on threads that only its parent has."""
    done = run_python("-c", FORKED, str(tmp_path))
    assert done.returncode == 0, done.stderr


# Engines


def test_the_engine_is_chosen_by_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for wins; the packaged model takes numpy, another one torch, if it is there."""
    assert choose_engine("toy", "some/model") == "toy"
    assert choose_engine("torch", PACKAGED_MODEL) == "torch"
    assert choose_engine(None, "some/model") == "torch"
    assert choose_engine(None, None) == choose_engine(None, PACKAGED_MODEL) == "numpy"
    for module in ("tinker.local.engines", "tinker._basics.installation"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None)
    assert choose_engine(None, None) == "toy"
    needed = "torch, transformers, peft, safetensors: pip install .*'safetensors>=0.4'"
    with pytest.raises(ImportError, match=needed):
        open_engine("torch")
    needed = "the numpy engine needs safetensors, tokenizers: pip install "
    for engine in (None, "numpy"):
        with pytest.raises(ImportError, match=needed):
            open_engine(engine, PACKAGED_MODEL)
    assert open_engine("toy", "org/name").base_model == "org/name"


@pytest.mark.parametrize(
    "model", ["/nowhere/model", "./model", "../model", "a/b/model", "~nobody/model"]
)
def test_a_directory_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str
) -> None:
    """A missing directory is named, in the process and by the command, and not sought on the hub."""
    monkeypatch.setattr("tinker.local.engines.find_spec", lambda name: True)
    monkeypatch.chdir(tmp_path)
    said = f"there is no directory {model!r} to load a model from"
    with pytest.raises(FileNotFoundError, match=re.escape(said)):
        open_engine("torch", model)
    result = CliRunner().invoke(main, ["serve", "--port", "0", "--model", model])
    output = f"Loading torch and {model} ...\nError: {said}\n"
    assert (result.exit_code, result.output) == (1, output)
    with pytest.raises(FileNotFoundError, match=re.escape(repr(model))):
        tinker.ServiceClient(base_url=f"local://{model}").get_server_capabilities()


def test_a_model_that_cannot_be_loaded_is_one_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients get the reason and do not retry; the log has it in one line, without a traceback."""

    def fail() -> ToyEngine:
        raise OSError("config.json is damaged")

    api, said = (
        Api(State(fail, Settings(data_dir=tmp_path))),
        "the model could not be loaded: config.json is damaged",
    )
    answer = api.call("get_server_capabilities")
    assert (answer.status_code, answer.headers["x-should-retry"]) == (500, "false")
    assert answer.json()["detail"] == said
    records = [record for record in caplog.records if record.name == "tinker.local"]
    assert [(record.getMessage(), record.exc_info) for record in records] == [(said, None)]
    api.close()


HELP = """
import sys
from tinker.cli import main
from tinker.cli.commands.serve import serve as serve_command
for arguments in (["--help"], ["serve", "--help"], ["version"], ["--version"]):
    main(arguments, standalone_mode=False)
assert not {"numpy", "starlette", "torch", "httpx"} & set(sys.modules), sorted(sys.modules)
"""


def run_python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python process to its end."""
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )


def test_the_package_names_what_it_has() -> None:
    """Every public name can be imported, and another one is an AttributeError."""
    for name in tinker.local.__all__:
        assert getattr(tinker.local, name) is not None
    with pytest.raises(AttributeError):
        _ = tinker.local.nothing


# The command line


def test_help_and_version_load_nothing_heavy() -> None:
    """``tinker --help`` and ``tinker version`` import neither numpy nor the server."""
    done = run_python("-c", HELP)
    assert done.returncode == 0, done.stderr
    assert "serve" in done.stdout


def test_a_server_that_cannot_start_says_why() -> None:
    """A port in use is one line of text, not a traceback, before anything is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(main, ["serve", "--model", "org/m", "--port", str(port)])
    said = f"Error: port {port} is in use; choose another with --port, or --port 0\n"
    assert (result.exit_code, result.stderr) == (1, said)


def test_a_model_that_the_hub_would_have_is_one_line(tmp_path: Path) -> None:
    """Without a connection the error names the model and the remedy, without the hub's warnings."""
    for name in ("transformers", "torch", "peft"):
        pytest.importorskip(name)
    words = ("--model", "some/model", "--port", "0", "--data", str(tmp_path))
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = run_python("-m", "tinker.cli", "serve", *words, **offline)
    absence = "no connection to huggingface.co, and it is not in the cache"
    error = f"Error: cannot load 'some/model': {absence}; give a directory\n"
    said = (done.returncode, done.stderr)
    assert said == (1, f"Loading torch and some/model ...\n{error}")


def test_serve_holds_polls_as_long_as_configured(tmp_path: Path) -> None:
    """With ``--hold 0`` a poll of a pending request returns at once."""
    with (
        served("--hold", "0", "--data", tmp_path) as server,
        httpx.Client(base_url=server.url, timeout=10) as client,
    ):
        session = client.post(path("create_session"), json=SESSION).json()["session_id"]
        body = sampler_body(session)
        sampler = client.post(path("create_sampling_session"), json=body).json()[
            "sampling_session_id"
        ]
        target = {"type": "sampling_session", "sampling_session_id": sampler}
        answer = client.post(path("retrieve_futures"), json={"target": target, "prev_cursor": 0})
    assert answer.json()["completions"] == []


def test_serve_logs_requests_with_their_time(tmp_path: Path) -> None:
    """A line of the log begins with the date and the time."""
    with served("--log-level", "info", "--data", tmp_path) as server:
        httpx.get(server.url + path("healthz"))
        log = server.end()
    line = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO tinker\.\S+: \S+ GET /"
    assert re.search(line, log, re.MULTILINE), log


def test_a_removed_data_folder_is_noticed(
    make_api: MakeApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a journal, what a removed data folder cannot keep is refused, and the log says so."""
    data = tmp_path / "data"
    api = make_api(durability="step", data_dir=data)
    model = api.model()
    shutil.rmtree(data)
    removed = "was removed while the server ran; start the server again"
    detail = api.refuses(500, removed, "optim_step", step_body(model, 1))
    assert str(data / ".journal") in detail
    assert "was removed while the server ran" in caplog.text
    assert api.refused("create_session", SESSION)[0] == 500


def test_serve_announces_its_url_and_ends_on_ctrl_c(tmp_path: Path) -> None:
    """The first line of ``tinker serve`` has its URL, which answers; an interrupt exits cleanly."""
    options = ("--data", tmp_path, "--api-key", "tml-k", "--profile", "skyrl")
    with served(*options) as server, httpx.Client(base_url=server.url) as client:
        assert f"TINKER_BASE_URL={server.url})" in server.first
        assert client.get(path("healthz")).json() == {"status": "ok"}
        capabilities = path("get_server_capabilities")
        assert client.get(capabilities).status_code == 401
        answer = client.get(capabilities, headers={"x-api-key": "tml-k"})
        assert "supported_loss_fns" in answer.json()
        assert server.end(signal.SIGINT) == "Stopped.\n"
    assert server.process.returncode == 0


ENDED_AT_ONCE = """
import os, signal, sys
from tinker.local import Settings, serve

interrupt = lambda url, engines: os.kill(os.getpid(), getattr(signal, sys.argv[1]))
serve(engine="toy", port=0, settings=Settings(data_dir=sys.argv[2]), started=interrupt)
print("ended", os.listdir(sys.argv[3]))
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_at_the_first_line_ends_the_server_like_a_later_one(
    name: str, tmp_path: Path
) -> None:
    """A signal before the loop runs is not lost: the claim on the folder is given up."""
    ended = run_python("-c", ENDED_AT_ONCE, name, str(tmp_path), str(tmp_path / FOLDER))
    assert (ended.returncode, ended.stdout) == (0, "ended []\n"), ended


def test_serve_warns_of_another_server_with_its_data_folder(tmp_path: Path) -> None:
    """The log of the second server says that they share the folder, until both have ended."""

    def warns(server: Served) -> bool:
        return f"another server uses {tmp_path} too" in server.end(signal.SIGINT)

    options = ("--data", tmp_path)
    with served(*options) as first, served(*options) as second:
        assert (warns(first), warns(second)) == (False, True)
    with served(*options) as third:
        assert not warns(third)


def test_a_data_folder_that_became_unwritable_is_named_at_the_end(tmp_path: Path) -> None:
    """A server that cannot clean up its folder ends with one sentence and an exit code for it."""
    with served("--data", tmp_path) as server:
        save(server.url, "a")
        (claim,) = (tmp_path / FOLDER).iterdir()
        claim.unlink()
        claim.mkdir()  # which cannot be removed like a file, nor by root
        log = server.end(signal.SIGINT)
    assert server.process.returncode == 1, log
    said = r"Error: the server has ended, and nothing can be written to .+ now: .+\n"
    assert re.fullmatch(said, log), log


def put_file(folder: Path) -> str:
    """Put a file where the server has a folder."""
    folder.touch()
    return f"the folder {folder}: it is a file; move it away"


def put_link(folder: Path) -> str:
    """Put a link that leads nowhere where the server has a folder."""
    folder.symlink_to(folder.parent / "nowhere" / "else")
    return f"the folder {folder}: {os.strerror(errno.EEXIST)}"


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        *((put_file, name) for name in (".servers", ".unnamed", ".uploads", ".archives")),
        (put_link, ".servers"),
    ],
)
def test_a_folder_that_cannot_be_made(
    tmp_path: Path, spoil: Callable[[Path], str], name: str
) -> None:
    """What is in the place of one of the server's folders is named at the start."""
    said = f"nothing can be written to {spoil(tmp_path / name)}"
    with pytest.raises(OSError, match=f"^{re.escape(said)}$"):
        serve(engine="toy", port=0, settings=Settings(data_dir=tmp_path))


def test_a_data_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named at the start, and by a server in the process with the setting for another one."""
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "data"
    said = f"nothing can be written to the data folder {folder}: {os.strerror(errno.ENOTDIR)}"
    with pytest.raises(OSError, match=re.escape(said)):
        serve(engine="toy", port=0, settings=Settings(data_dir=folder))
    monkeypatch.setenv("TINKER_LOCAL_DIR", str(folder))
    with pytest.raises(OSError, match=re.escape(f"{said}; set TINKER_LOCAL_DIR to another")):
        tinker.RestClient(base_url="local://toy").get_server_capabilities().result()


@pytest.mark.parametrize(
    ("words", "said"),
    [(["dance"], "dance"), (["serve", "--profile", "nothing"], "'minimal-json'")],
)
def test_an_unknown_word_is_an_error(words: list[str], said: str) -> None:
    """An unknown command is an error that names it, an unknown profile one that has the choices."""
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, said in result.output) == (2, True)
