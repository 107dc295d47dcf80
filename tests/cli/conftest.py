"""The command line against our own server, and servers that a test scripts or disturbs."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import uvicorn
from click.testing import CliRunner, Result
from starlette.responses import JSONResponse

import tinker
from tinker.cli import main
from tinker.local import Settings, State, create_app, running_server
from tinker.local.engines.toy import ToyEngine
from tinker.testing import toy_server

Call = Callable[..., Result]
Ask = Callable[..., Any]
Answer = Callable[[str, str], "tuple[int, object] | None"]
UNREACHABLE = "http://127.0.0.1:1"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield a server that several tests use."""
    with running_server(Settings(data_dir=tmp_path_factory.mktemp("server")), ToyEngine()) as url:
        yield url


@attrs.frozen
class Run:
    """A training run with a checkpoint of each kind."""

    run_id: str
    session_id: str
    training: str
    sampler: str
    external: str


@pytest.fixture
def run(server: str) -> Run:
    """Return a new run of the test's own, whose session has ended."""
    with tinker.ServiceClient({"k": "v"}, base_url=server) as service:
        training = service.create_lora_training_client(
            "tinker/toy", rank=4, user_metadata={"k": "v"}
        )
        return Run(
            training.result(10).model_id,
            training.model_id.partition(":")[0],
            training.save_state("0001", user_metadata={"step": "1"}).result(10).path,
            training.save_weights_for_sampler("0001", ttl_seconds=7200).result(10).path,
            training.save_weights_external("e1").result(10).path,
        )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the test's folder the current one and the user's, without a credential."""
    for name in ("TINKER_API_KEY", "TINKER_CREDENTIAL_CMD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(server: str, home: None) -> Call:
    """Run ``tinker`` with what is typed, and more arguments, against the server unless ``base_url``
    says another; a request is made once. The command must end with ``code``, if one is given.
    """

    def call(
        *arguments: str, base_url: str = server, input: str | None = None, code: int | None = None
    ) -> Result:
        words = [*shlex.split(arguments[0]), *arguments[1:]]
        result = CliRunner().invoke(
            main, ["--base-url", base_url, "--patience", "0", *words], input=input
        )
        assert code in (None, result.exit_code), result.output
        return result

    return call


@pytest.fixture
def ask(call: Call) -> Callable[..., Any]:
    """Run ``tinker -f json``, which must succeed; what it prints, of ``train`` the last line."""

    def ask(*arguments: str, **how: Any) -> Any:
        result = call(f"-f json {arguments[0]}", *arguments[1:], **how)
        assert result.exit_code == 0, result.stderr
        typed = " ".join(arguments)
        streams = typed.startswith("train") and "--estimate" not in typed
        return json.loads(result.stdout.splitlines()[-1] if streams else result.stdout)

    return ask


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Yield an application on a port; its URL. Connections wait until it is up."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Start a server of the test's own; its URL. A function may answer a request in its place, by
    its method and path.
    """
    with ExitStack() as stack:

        def start(engine: Any = None, answer: Answer | None = None, **settings: Any) -> str:
            folder = tmp_path / "servers" / str(uuid.uuid4())
            state = State(lambda: engine or ToyEngine(), Settings(data_dir=folder, **settings))
            stack.callback(state.close)
            app = create_app(state)

            async def ask_first(scope: Any, receive: Any, send: Any) -> None:
                asked = answer is not None and scope["type"] == "http"
                found = answer(scope["method"], scope["path"]) if answer and asked else None
                chosen = app if found is None else JSONResponse(found[1], found[0])
                await chosen(scope, receive, send)

            return stack.enter_context(served(ask_first))

        yield start


@pytest.fixture
def scripted(serve: Callable[..., str]) -> Callable[..., str]:
    """Start a server that answers one path, by its end, with a status and a body."""

    def start(
        end: str, status: int, body: object = None, method: str = "GET", **settings: Any
    ) -> str:
        said = (status, body or {"detail": f"scripted {status}"})

        def answer(asked: str, path: str) -> tuple[int, object] | None:
            return said if path.endswith(end) and asked == method else None

        return serve(answer=answer, **settings)

    return start


@pytest.fixture
def disturbed(serve: Callable[..., str]) -> Callable[..., str]:
    """Start a server that calls a function before the n-th request of a path; its result is the
    status of the answer.
    """

    def start(end: str, number: int, disturb: Callable[[], int | None]) -> str:
        seen = itertools.count(1)

        def answer(_: str, path: str) -> tuple[int, object] | None:
            status = disturb() if path.endswith(end) and next(seen) == number else None
            return None if status is None else (status, {"detail": "disturbed"})

        return serve(answer=answer, gap_seconds=0.2)

    return start


def interrupt() -> None:
    """Interrupt the command, which runs in this process."""
    os.kill(os.getpid(), signal.SIGINT)


def write(file: str | Path, *lines: object) -> str:
    """Write JSON Lines; the name of the file."""
    Path(file).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(file)


def lines_of(text: str, kind: str) -> list[dict[str, Any]]:
    """Return the lines of this kind that ``train`` printed or logged."""
    return [line for line in map(json.loads, text.splitlines()) if line["type"] == kind]


@pytest.fixture
def refuse(call: Call) -> Callable[..., str]:
    """Run a command that must fail, without a server unless one is named; its error stream.

    It ends with the code, and one error has the words: no traceback, and nothing called a bug.
    """

    def refuse(code: int, words: str, *arguments: str, **how: Any) -> str:
        result = call(*arguments, **{"base_url": UNREACHABLE, **how})
        assert (result.exit_code, words in result.stderr) == (code, True), result.output
        errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
        assert len(errors) == 1, result.stderr
        for never in ("Traceback", "This is a bug", "Unexpected error"):
            assert never not in result.output
        return result.stderr

    return refuse


def find_imported(heavy: tuple[str, ...], command: str, input: str = "") -> list[str]:
    """Return which of these modules a command imports, in a process of its own."""
    program = (
        f"import sys\nfrom tinker.cli import main\nmain({shlex.split(command)!r}, "
        f"standalone_mode=False)\nprint(*[n for n in {heavy!r} if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, input=input
    )
    return done.stdout.splitlines()[-1].split()


@pytest.fixture
def answering() -> Iterator[Callable[[Any], tuple[str, Any]]]:
    """Start a server whose model always says the same; its URL, and the server."""
    pytest.importorskip("transformers")
    with ExitStack() as stack:

        def start(said: Any) -> tuple[str, Any]:
            server = stack.enter_context(toy_server())
            server.script_samples(lambda prompt: said)
            return stack.enter_context(server.on_port()), server

        yield start
