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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from click.testing import CliRunner
from support.api import Api, MakeApi, loss_body, model_body, sampler_body, step_body
from tinker_wire.operations import OPERATIONS

import tinker
import tinker.local
from tinker.cli import main
from tinker.cli.commands.serve import serve as serve_command
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
from tinker.testing.servers import PROFILES

SESSION = {"tags": [], "sdk_version": "1"}


def path(operation: str) -> str:
    return OPERATIONS[operation].path


# On a port


def test_a_server_runs_on_a_free_port_and_ends(tmp_path: Path) -> None:
    """Inside the block the server answers over HTTP; after it the port is closed and no thread is
    left.
    """
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


def poll_body(future: Any) -> dict[str, Any]:
    return {"request_id": future["request_id"]}


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
    """At SIGTERM the running request gets its result, the next one a failure; the
    exit code is 0.
    """
    command = [sys.executable, "-c", SLOW_SERVER, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        with httpx.Client(base_url=found[0], timeout=60) as client:
            session = client.post(path("create_session"), json=SESSION).json()["session_id"]
            body = model_body(session)
            model = client.post(path("create_model"), json=body).json()["model_id"]
            # the end of the three lines about the key and the page
            while process.stdout.readline() != "\n":
                pass
            for _ in range(3):
                process.stdout.readline()
            futures = [
                client.post(path("forward_backward"), json=loss_body(model, number)).json()
                for number in (1, 2)
            ]
            with ThreadPoolExecutor(2) as pool:
                polls = [
                    pool.submit(client.post, path("retrieve_future"), json=poll_body(one))
                    for one in futures
                ]
                lines = {process.stdout.readline() for _ in range(3)}
                process.send_signal(signal.SIGTERM)
                waiting = polls[1].result().json()
                process.stdin.write("go on\n")
                process.stdin.flush()
                running = polls[0].result().json()
        assert process.stdout.readline() == "ended\n"
    assert lines == {"running\n", "polled\n"}
    assert running["loss_fn_outputs"]
    assert waiting == {"error": "the server is shutting down", "category": "server"}
    assert process.returncode == 0


def test_a_server_says_what_it_restored(tmp_path: Path) -> None:
    """The end of the announcement counts the runs and checkpoints that the data folder has; without
    any it says nothing.
    """
    command = [
        sys.executable,
        "-m",
        "tinker",
        "serve",
        "--engine",
        "toy",
        "--port",
        "0",
        "--durability",
        "step",
        "--data",
    ]
    said: list[str] = []
    for _ in range(2):
        with subprocess.Popen([*command, tmp_path], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(8)]
            found = re.search(r"http://\S+", lines[0])
            assert found is not None
            training = tinker.ServiceClient(base_url=found[0]).create_lora_training_client(
                "tinker/toy", rank=2
            )
            training.save_state("one").result()
            training.save_state("two").result()
            process.kill()
            said.append("".join([*lines, *process.stdout]))
    assert "Restored" not in said[0]
    assert said[1].endswith(f"\n\nRestored 1 run and 2 checkpoints from {tmp_path}.\n")


def test_answers_do_not_wait_for_acknowledgements() -> None:
    """Small packets are sent at once: with Nagle's algorithm each response would be some 40 ms
    late.
    """
    with (
        serving._listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
    ):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_taken_port_is_reported() -> None:
    """Serving on a port in use fails at once, before any model is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        serve(engine="torch", model="no/such/model", port=taken.getsockname()[1])


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


def test_links_lead_back_into_the_process(in_process: Path) -> None:
    """Files of a server in the process are fetched through its transport."""
    app = in_process_app("local://toy", in_process)
    session = asyncio.run(post(app, "create_session", SESSION))["session_id"]
    model = model_body(session)
    asyncio.run(post(app, "create_model", model))
    save = {"model_id": f"{session}:train:0", "seq_id": 1, "path": "e"}
    future = asyncio.run(post(app, "save_weights_external", save))
    saved = asyncio.run(post(app, "retrieve_future", {"request_id": future["request_id"]}))
    where = path("get_external_weights_urls").format(
        training_run_id=save["model_id"], checkpoint_id="external_weights/e"
    )

    async def download() -> list[httpx.Response]:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://local"
        ) as client:
            urls = (await client.get(where)).json()["urls"]
            return [await client.get(url) for url in urls.values()]

    files = asyncio.run(download())
    assert sum(len(file.content) for file in files) == saved["size_bytes"]


def test_clients_of_one_process_share_a_server(in_process: Path) -> None:
    """One URL and folder is one server, whatever loop calls it; another folder is
    another server.
    """
    app = in_process_app("local://toy", in_process)
    assert in_process_app("local://toy", in_process) is app
    assert in_process_app("local://toy", in_process / "other") is not app
    session = asyncio.run(post(app, "create_session", SESSION))["session_id"]
    body = model_body(session)
    future = asyncio.run(post(app, "create_model", body))
    result = asyncio.run(post(app, "retrieve_future", {"request_id": future["request_id"]}))
    assert result["model_id"] == f"{session}:train:0"


def test_the_servers_of_a_process_can_be_closed(in_process: Path) -> None:
    """After closing no thread is left, and the URL opens a fresh server."""
    before = set(threading.enumerate())
    app = in_process_app("local://toy", in_process)
    session = asyncio.run(post(app, "create_session", SESSION))["session_id"]
    asyncio.run(
        post(
            app,
            "create_model",
            model_body(session),
        )
    )
    close_in_process()
    assert set(threading.enumerate()) <= before  # those of earlier tests may end meanwhile
    fresh = in_process_app("local://toy", in_process)
    assert fresh is not app
    assert (
        "not found"
        in asyncio.run(post(fresh, "session_heartbeat", {"session_id": session}))["detail"]
    )


def test_other_schemes_are_refused() -> None:
    """Only ``local://`` is served in the process."""
    with pytest.raises(ValueError, match="local://"):
        in_process_app("http://localhost")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_server_of_its_own(in_process: Path) -> None:
    """A forked child does not hang on threads that only its parent has."""
    script = """
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
    done = subprocess.run(
        [sys.executable, "-c", script, str(in_process)],
        timeout=60,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# Engines


def test_the_engine_is_chosen_by_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The requested engine wins; the packaged model takes numpy, another one torch; each engine
    names what it lacks.
    """
    assert choose_engine("toy", "some/model") == "toy"
    assert choose_engine("torch", PACKAGED_MODEL) == "torch"
    assert choose_engine(None, "some/model") == "torch"
    assert choose_engine(None, None) == choose_engine(None, PACKAGED_MODEL) == "numpy"
    for module in ("tinker.local.engines", "tinker._basics.installation"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None)
    assert choose_engine(None, None) == "toy"
    with pytest.raises(
        ImportError,
        match=r"torch, transformers, peft, safetensors: pip install .*'safetensors>=0.4'",
    ):
        open_engine("torch")
    for engine in (None, "numpy"):
        with pytest.raises(
            ImportError, match=r"the numpy engine needs safetensors, tokenizers: pip install "
        ):
            open_engine(engine, PACKAGED_MODEL)
    assert open_engine("toy", "org/name").base_model == "org/name"


@pytest.mark.parametrize(
    "model", ["/nowhere/model", "./model", "../model", "a/b/model", "~nobody/model"]
)
def test_a_directory_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str
) -> None:
    """A missing directory is not looked for on the hub; the error names it, in the process and from
    the command.
    """
    monkeypatch.setattr("tinker.local.engines.find_spec", lambda name: True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=re.escape(repr(model))):
        open_engine("torch", model)
    result = CliRunner().invoke(main, ["serve", "--port", "0", "--model", model])
    loading = f"Loading torch and {model} ...\n"
    assert (result.exit_code, result.output) == (
        1,
        f"{loading}Error: there is no directory {model!r} to load a model from\n",
    )
    with pytest.raises(FileNotFoundError, match=re.escape(repr(model))):
        tinker.ServiceClient(base_url=f"local://{model}").get_server_capabilities()


def test_a_model_that_cannot_be_loaded_is_one_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients get the reason at once and do not retry; the log has it in one line, without a
    traceback.
    """

    def fail() -> ToyEngine:
        raise OSError("config.json is damaged")

    api = Api(State(fail, Settings(data_dir=tmp_path)))
    answer = api.call("get_server_capabilities")
    assert (answer.status_code, answer.headers["x-should-retry"]) == (500, "false")
    assert answer.json()["detail"] == "the model could not be loaded: config.json is damaged"
    assert [
        (record.getMessage(), record.exc_info)
        for record in caplog.records
        if record.name == "tinker.local"
    ] == [("the model could not be loaded: config.json is damaged", None)]
    api.close()


def test_the_package_names_what_it_has() -> None:
    """Every public name can be imported, and another one is an AttributeError."""
    for name in tinker.local.__all__:
        assert getattr(tinker.local, name) is not None
    with pytest.raises(AttributeError):
        _ = tinker.local.nothing


# The command line


def test_help_and_version_load_nothing_heavy() -> None:
    """``tinker --help`` and ``tinker version`` import neither numpy nor the server."""
    script = """
import sys
from tinker.cli import main
from tinker.cli.commands.serve import serve as serve_command
for arguments in (["--help"], ["serve", "--help"], ["version"], ["--version"]):
    main(arguments, standalone_mode=False)
assert not {"numpy", "starlette", "torch", "httpx"} & set(sys.modules), sorted(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "serve" in done.stdout


def test_an_unknown_command_is_an_error() -> None:
    """An unknown command is an error that names it."""
    result = CliRunner().invoke(main, ["dance"])
    assert result.exit_code == 2
    assert "dance" in result.output


def test_serve_offers_every_profile() -> None:
    """Each profile is a choice of the command; another name is refused with the choices."""
    (option,) = [option for option in serve_command.params if option.name == "profile"]
    assert isinstance(option.type, click.Choice)
    assert list(option.type.choices) == list(PROFILES)
    result = CliRunner().invoke(main, ["serve", "--profile", "nothing"])
    assert result.exit_code == 2
    assert "minimal-json" in result.output


def test_a_server_that_cannot_start_says_why() -> None:
    """A port in use is one line of text, not a traceback, and is found before
    anything is loaded.
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = CliRunner().invoke(
            main, ["serve", "--model", "org/m", "--port", str(taken.getsockname()[1])]
        )
        port = taken.getsockname()[1]
    assert result.exit_code == 1
    assert (
        result.stderr == f"Error: port {port} is in use; choose another with --port, or --port 0\n"
    )


def test_a_model_that_the_hub_would_have_is_one_line(tmp_path: Path) -> None:
    """Without a connection the error names the model and the remedy, without the hub's warnings."""
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    pytest.importorskip("peft")
    command = [
        sys.executable,
        "-m",
        "tinker.cli",
        "serve",
        "--model",
        "some/model",
        "--port",
        "0",
        "--data",
        str(tmp_path),
    ]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=offline, check=False
    )
    absence = "no connection to huggingface.co, and it is not in the cache"
    loading = "Loading torch and some/model ...\n"
    assert (done.returncode, done.stderr) == (
        1,
        f"{loading}Error: cannot load 'some/model': {absence}; give a directory\n",
    )


def test_serve_holds_polls_as_long_as_configured(tmp_path: Path) -> None:
    """With ``--hold 0`` a poll of a pending request returns at once."""
    command = [
        sys.executable,
        "-m",
        "tinker.cli",
        "serve",
        "--engine",
        "toy",
        "--port",
        "0",
        "--hold",
        "0",
    ]
    with subprocess.Popen(
        [*command, "--data", str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        with httpx.Client(base_url=found[0], timeout=10) as client:
            session = client.post(path("create_session"), json=SESSION).json()["session_id"]
            body = sampler_body(session)
            sampler = client.post(path("create_sampling_session"), json=body).json()[
                "sampling_session_id"
            ]
            target = {
                "type": "sampling_session",
                "sampling_session_id": sampler,
                "cloned_sampler_id": 0,
            }
            answer = client.post(
                path("retrieve_futures"), json={"target": target, "prev_cursor": 0}
            )
        process.terminate()
    assert answer.json()["completions"] == []


def test_serve_logs_requests_with_their_time(tmp_path: Path) -> None:
    """A line of the log begins with the date and the time."""
    command = [
        sys.executable,
        "-m",
        "tinker.cli",
        "serve",
        "--engine",
        "toy",
        "--port",
        "0",
        "--log-level",
        "info",
    ]
    with subprocess.Popen(
        [*command, "--data", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        found = re.search(r"http://[^ )]+", process.stdout.readline())
        assert found is not None
        httpx.get(found[0] + path("healthz"))
        process.terminate()
        _, log = process.communicate(timeout=30)
    assert re.search(
        r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO tinker\.\S+: \S+ GET /", log, re.MULTILINE
    ), log


def test_a_data_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A data folder that cannot be written is named at the start; a server in the process also
    names the setting.
    """
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "data"
    said = f"nothing can be written to the data folder {folder}: {os.strerror(errno.ENOTDIR)}"
    with pytest.raises(OSError, match=re.escape(said)):
        serve(engine="toy", port=0, settings=Settings(data_dir=folder))
    monkeypatch.setenv("TINKER_LOCAL_DIR", str(folder))
    with pytest.raises(OSError, match=re.escape(f"{said}; set TINKER_LOCAL_DIR to another")):
        tinker.RestClient(base_url="local://toy").get_server_capabilities().result()


@pytest.mark.parametrize("name", [".servers", ".unnamed", ".uploads", ".archives"])
def test_a_file_where_the_server_has_a_folder(tmp_path: Path, name: str) -> None:
    """A file in the place of one of the server's folders is named at the start, in a sentence
    without an error number.
    """
    (tmp_path / name).touch()
    said = f"nothing can be written to the folder {tmp_path / name}: it is a file; move it away"
    with pytest.raises(OSError, match=f"^{re.escape(said)}$"):
        serve(engine="toy", port=0, settings=Settings(data_dir=tmp_path))


def test_what_belongs_to_somebody_else_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder in which nothing can be made is named at the start, with the reason."""
    (tmp_path / ".servers").symlink_to(tmp_path / "nowhere" / "else")
    said = (
        r"^nothing can be written to "
        rf"the folder {re.escape(str(tmp_path / '.servers'))}: [A-Z][a-z ]+$"
    )
    with pytest.raises(OSError, match=said):
        serve(engine="toy", port=0, settings=Settings(data_dir=tmp_path))


def test_a_removed_data_folder_is_noticed(
    make_api: MakeApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a journal, what a removed data folder cannot keep is refused, in the answer and in the
    log; nothing is lost silently.
    """
    data = tmp_path / "data"
    api = make_api(durability="step", data_dir=data)
    model = api.model()
    shutil.rmtree(data)
    status, detail = api.refused("optim_step", step_body(model, 1))
    said = f"{data / '.journal'}"
    assert (
        status,
        said in detail,
        "was removed while the server ran; start the server again" in detail,
    ) == (500, True, True)
    assert "was removed while the server ran" in caplog.text
    assert api.refused("create_session", {"tags": [], "sdk_version": "0"})[0] == 500


def test_serve_announces_its_url_and_ends_on_ctrl_c(tmp_path: Path) -> None:
    """The first line of ``tinker serve`` has its URL, which answers, and an interrupt exits
    cleanly.
    """
    command = [
        sys.executable,
        "-c",
        "from tinker.cli import main; main()",
        "serve",
        "--engine",
        "toy",
    ]
    options = ["--port", "0", "--data", str(tmp_path), "--api-key", "tml-k", "--profile", "skyrl"]
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        found = re.search(r"TINKER_BASE_URL=(http://[^)]+)", process.stdout.readline())
        assert found is not None
        assert httpx.get(found[1] + path("healthz")).json() == {"status": "ok"}
        assert httpx.get(found[1] + path("get_server_capabilities")).status_code == 401
        answer = httpx.get(
            found[1] + path("get_server_capabilities"), headers={"x-api-key": "tml-k"}
        )
        assert "supported_loss_fns" in answer.json()
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=30)
    assert process.returncode == 0, rest
    assert rest == ("", "Stopped.\n")


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
    """A signal that comes before the loop runs is not lost: the state is closed, and its claim on
    the folder is given up.
    """
    command = [sys.executable, "-c", ENDED_AT_ONCE, name, str(tmp_path), str(tmp_path / FOLDER)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "ended []\n"), ended


def test_serve_warns_of_another_server_with_its_data_folder(tmp_path: Path) -> None:
    """The log of the second server says that they share the folder, that of one after both have
    ended does not.
    """
    command = [
        sys.executable,
        "-m",
        "tinker",
        "serve",
        "--engine",
        "toy",
        "--port",
        "0",
        "--data",
        str(tmp_path),
    ]

    def start() -> subprocess.Popen[str]:
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        found = re.search(r"TINKER_BASE_URL=(http://[^)]+)", server.stdout.readline())
        assert found is not None
        assert httpx.get(found[1] + path("healthz")).json() == {"status": "ok"}
        return server

    def stop(server: subprocess.Popen[str]) -> bool:
        server.send_signal(signal.SIGINT)
        return f"another server uses {tmp_path} too" in server.communicate(timeout=30)[1]

    first, second = start(), start()
    assert (stop(first), stop(second), stop(start())) == (False, True, False)


def test_a_data_folder_that_became_unwritable_is_named_at_the_end(tmp_path: Path) -> None:
    """A server that cannot clean up its folder ends with one sentence and an exit code for it."""
    command = [
        sys.executable,
        "-c",
        "from tinker.cli import main; main()",
        "serve",
        "--engine",
        "toy",
    ]
    with subprocess.Popen(
        [*command, "--port", "0", "--data", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        found = re.search(r"TINKER_BASE_URL=(http://[^)]+)", process.stdout.readline())
        assert found is not None
        with tinker.ServiceClient(base_url=found[1]) as service:
            service.create_lora_training_client("tinker/toy", rank=1).save_state("a").result(
                timeout=30
            )
        (claim,) = (tmp_path / FOLDER).iterdir()
        claim.unlink()
        claim.mkdir()  # which cannot be removed like a file, nor by root
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=30)[1]
    assert process.returncode == 1, rest
    assert re.fullmatch(
        r"Error: the server has ended, and nothing can be written to .+ now: .+\n", rest
    ), rest
