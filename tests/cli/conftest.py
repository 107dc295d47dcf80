"""The command line against our own server, on a port; and a server that answers what a test
scripts.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
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

Call = Callable[..., Result]


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
def call(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run ``tinker`` with these arguments, against the server unless ``base_url`` says another; a
    request is made once.
    """
    for name in ("TINKER_API_KEY", "TINKER_CREDENTIAL_CMD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, base_url: str = server, input: str | None = None) -> Result:
        return CliRunner().invoke(
            main, ["--base-url", base_url, "--patience", "0", *arguments], input=input
        )

    return call


@pytest.fixture
def ask(call: Call) -> Callable[..., Any]:
    """Run ``tinker -f json`` and reads what it prints, of ``train`` the last line;
    it must succeed.
    """

    def ask(*arguments: str, **how: Any) -> Any:
        result = call("-f", "json", *arguments, **how)
        assert result.exit_code == 0, result.stderr
        streams = arguments[0] == "train" and "--estimate" not in arguments
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
def serve_app() -> Callable[[Any], AbstractContextManager[str]]:
    """Put an application on a port for the length of a block."""
    return served


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Start a server that answers one path, by its end, with a status and a body, and everything
    else as usual; its URL.
    """
    with ExitStack() as stack:

        def start(
            path: str,
            status: int,
            body: object = None,
            *,
            method: str = "GET",
            settings: Settings | None = None,
        ) -> str:
            state = State(ToyEngine, settings or Settings(data_dir=tmp_path / "scripted"))
            stack.callback(state.close)
            app = create_app(state)

            async def answer(scope: Any, receive: Any, send: Any) -> None:
                if (
                    scope["type"] == "http"
                    and scope["path"].endswith(path)
                    and scope["method"] == method
                ):
                    await JSONResponse(body or {"detail": f"scripted {status}"}, status)(
                        scope, receive, send
                    )
                else:
                    await app(scope, receive, send)

            return stack.enter_context(served(answer))

        yield start
