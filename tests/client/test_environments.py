"""Environments: notebooks, workers that receive functions by cloudpickle, and interpreters that
exit in the middle of work.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import pytest
from support.addresses import refusing_address
from support.programs import run_program

import tinker
from tinker.local import Settings, running_server

Connect = Callable[..., tinker.ServiceClient]
PROMPT, PARAMS = (
    tinker.ModelInput.from_ints([1, 2, 3]),
    tinker.SamplingParams(max_tokens=4, seed=7, stop=[]),
)
KEY = "tml-live"

CELLS = [
    "training = service.create_lora_training_client('tinker/toy', rank=2).result(30)",
    (
        "steps = [training.optim_step(tinker.AdamParams()) for _ in range(3)]; done = "
        "[step.result(30) for step in steps]"
    ),
    "sampler = await training.save_weights_and_get_sampling_client()",
    "one = (await sampler.sample(prompt, 1, params)).sequences[0].tokens",
    "many = await asyncio.gather(*(sampler.sample(prompt, 1, params) for _ in range(20)))",
    "same = sampler.sample(prompt, 1, params).result(30).sequences[0].tokens",
    "info, models = training.get_info(), service.get_server_capabilities()",
]


async def run_cell(code: str, names: dict[str, Any]) -> None:
    """Run a cell as a notebook does: in its running loop, on its thread, awaiting at the top."""
    compiled = compile(code, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    outcome = eval(compiled, names)
    if inspect.iscoroutine(outcome):
        await outcome


def test_a_notebook(service: tinker.ServiceClient) -> None:
    """In cells under a running loop, results can be blocked on and awaited in turn."""
    names: dict[str, Any] = {
        "tinker": tinker,
        "asyncio": asyncio,
        "service": service,
        "prompt": PROMPT,
        "params": PARAMS,
    }

    async def kernel() -> None:
        for code in CELLS:
            await run_cell(code, names)

    asyncio.run(kernel())
    assert len(names["done"]) == 3
    assert names["one"] == names["same"]
    assert {tuple(response.sequences[0].tokens) for response in names["many"]} == {
        tuple(names["one"])
    }


@pytest.fixture(scope="module")
def live_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield a server that other processes can reach; it requires a key."""
    with running_server(
        Settings(data_dir=tmp_path_factory.mktemp("server"), api_key=KEY), "toy"
    ) as url:
        yield url


@pytest.fixture
def live(live_server: str) -> Iterator[tinker.ServiceClient]:
    """Yield a client of that server."""
    with tinker.ServiceClient(base_url=live_server, api_key=KEY) as service:
        yield service


def in_python(
    code: str, url: str, *, data: bytes = b"", status: int = 0, key: str | None = KEY
) -> subprocess.CompletedProcess[str]:
    """Run the code as a user of the server."""
    return run_program(code, data=data, status=status, TINKER_API_KEY=key, TINKER_BASE_URL=url)


def test_workers_get_functions_with_samplers_in_them(
    live: tinker.ServiceClient, live_server: str
) -> None:
    """A function that closes over a sampler is sent to workers by cloudpickle, as Ray does, and
    samples there; no two requests of the workers have the same number, and the key is not sent.
    """
    sampler = live.create_sampling_client(base_model="tinker/toy").result(30)
    expected = sampler.sample(PROMPT, 1, PARAMS).result(30).sequences[0].tokens
    prompt, params = PROMPT, PARAMS

    def rollout(count: int) -> list[list[int]]:
        futures = [sampler.sample(prompt, 1, params) for _ in range(count)]
        return [list(future.result(30).sequences[0].tokens) for future in futures]

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        data = cloudpickle.dumps(rollout)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert KEY.encode() not in data
    worker = (
        "import cloudpickle, sys\n"
        "rollout = cloudpickle.loads(sys.stdin.buffer.read())\n"
        "print([rollout(5), next(rollout.__closure__[-1].cell_contents._sampler.numbers)])\n"
    )
    answers = []
    for _ in range(2):
        answers.append(ast.literal_eval(in_python(worker, live_server, data=data).stdout))
    assert [tokens for tokens, _ in answers] == [[list(expected)] * 5] * 2
    assert len({number for _, number in answers} | {next(sampler._sampler.numbers)}) == 3


def test_samplers_in_an_actor(live: tinker.ServiceClient, live_server: str) -> None:
    """An object that holds a sampler can be sent by cloudpickle, and from there by pickle; it works
    in a process that has a key, and raises an error in one without.
    """
    sampler = live.create_sampling_client(base_model="tinker/toy").result(30)
    data = cloudpickle.dumps({"sampler": sampler, "prompt": PROMPT, "params": PARAMS})
    worker = (
        "import cloudpickle, pickle, sys\n"
        "actor = cloudpickle.loads(sys.stdin.buffer.read())\n"
        "again = pickle.loads(pickle.dumps(actor))\n"
        "for one in (actor, again):\n"
        "    print(len(one['sampler'].sample(one['prompt'], 1, "
        "one['params']).result(30).sequences[0].tokens))\n"
    )
    assert in_python(worker, live_server, data=data).stdout.split() == ["4", "4"]
    refused = in_python(worker, live_server, data=data, key=None, status=1)
    assert "AuthenticationError" in refused.stderr


AFTER_FORK = """
import asyncio, os, sys, warnings, tinker
warnings.simplefilter("ignore")
service = tinker.ServiceClient()
training = service.create_lora_training_client("tinker/toy", rank=2).result(30)
rest = service.create_rest_client()
models = rest.get_server_capabilities().result(30).supported_models
sampler = training.save_weights_and_get_sampling_client().result(30)
params = tinker.SamplingParams(max_tokens=4, seed=7, stop=[])
def sample(client):
    return client.sample(tinker.ModelInput.from_ints([1, 2, 3]), 1, params).result(30).sequences[0].tokens
expected = sample(sampler)
pending = tinker.APIFuture()
child = os.fork()
if child == 0:
    code = 2
    try:
        assert sample(sampler) == expected
        assert rest.get_server_capabilities().result(30).supported_models == models
        assert sample(service.create_sampling_client(base_model="tinker/toy"))
        for call, reason in (
            (lambda: training.optim_step(tinker.AdamParams()), "belongs to the parent process"),
            (lambda: asyncio.run(asyncio.wait_for(pending.wait(), 30)), "called in the parent process"),
        ):
            try:
                call()
            except RuntimeError as error:
                assert reason in str(error)
                code -= 1
    finally:
        os._exit(code)
_, status = os.waitpid(child, 0)
assert sample(sampler) == expected
training.optim_step(tinker.AdamParams()).result(30)
service.close().result(30)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_after_fork(live_server: str) -> None:
    """A forked child can use samplers and REST calls anew; a run works only in the parent."""
    in_python(AFTER_FORK, live_server)


BEGIN = """
import atexit, sys, threading, tinker
service = tinker.ServiceClient()
training = service.create_lora_training_client("tinker/toy", rank=2)
step = training.optim_step(tinker.AdamParams())
"""
ENDINGS = {
    "right away": "",
    "with results": "step.result(30)",
    "in a with block": "with service: step.result(30); sys.exit(3)",
    "closing at exit": "atexit.register(lambda: service.close().result(30)); step.result(30)",
    "working at exit": (
        "atexit.register(lambda: print(bool(training.optim_step(tinker.AdamParams()).result(30))))"
    ),
    "with a thread that waits": (
        "threading.Thread(target=lambda: training.save_state('x').result(30), daemon=True).start()"
    ),
    "with a callback": (
        "step.add_done_callback(lambda _: training.optim_step(tinker.AdamParams())); "
        "step.result(30)"
    ),
    "silent server": "tinker.ServiceClient(base_url='http://127.0.0.1:9').create_sampling_client(base_model='x')",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_interpreters_end(live_server: str, ending: str) -> None:
    """However a program ends, and whatever is under way, the interpreter exits and prints at most
    what may be lost.

    A refused connection may be reported before the end, or not any more.
    """
    status = 3 if "sys.exit" in ENDINGS[ending] else 0
    done = in_python(BEGIN + ENDINGS[ending], live_server, status=status)
    expected = ["may be lost; call .result()"]
    if ending == "silent server":
        expected.append("attempt 1 failed, retrying")
    lines = done.stderr.splitlines()
    assert [line for line in lines if not any(words in line for words in expected)] == []


def test_logging_at_interpreter_exit(live_server: str) -> None:
    """Records that other code logs to this package's logger during interpreter exit are logged."""
    first = (
        "import atexit, logging\natexit.register(lambda: logging.getLogger('tinker').warning('a "
        "line of mine'))\n"
    )
    done = in_python(first + BEGIN + ENDINGS["with results"], live_server)
    assert done.stderr.splitlines() == ["a line of mine"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(None, "success"), (ValueError, "errored"), (asyncio.CancelledError, "interrupted")],
)
def test_an_async_with_block_finishes_the_session(
    connect: Connect, wire: Any, error: type[BaseException] | None, reason: str
) -> None:
    """An async with block finishes the session with the reason; later calls are refused."""
    service = connect()

    async def block() -> None:
        async with service as entered:
            await entered.create_lora_training_client("tinker/toy")
            if error is not None:
                raise error

    with pytest.raises(error) if error else contextlib.nullcontext():
        asyncio.run(block())
    (finish,) = [one for one in wire.exchanges if one.operation.endswith("/finish")]
    assert finish.json == {"reason": {"type": reason}, "detail": None}
    with pytest.raises(tinker.ClientClosedError):
        service.create_sampling_client(base_model="x")


BLOCKING: list[
    Callable[[tinker.ServiceClient, tinker.TrainingClient, tinker.SamplingClient], object]
] = [
    lambda service, _, __: service.get_server_capabilities(),
    lambda service, _, __: service.create_lora_training_client("tinker/toy").result(),
    lambda service, _, __: service.create_lora_training_client("tinker/toy").model_id,
    lambda service, _, __: service.create_lora_training_client("tinker/toy").get_info(),
    lambda service, _, __: service.create_sampling_client(
        base_model="tinker/toy"
    ).get_sampler_handle(),
    lambda _, training, __: training.optim_step(tinker.AdamParams()).result(),
    lambda _, training, __: training.optim_step(tinker.AdamParams()).exception(),
    lambda _, __, sampler: sampler.sample(PROMPT, 1, PARAMS).result(),
    lambda service, _, __: service.create_sampling_client(base_model="tinker/toy").get_base_model(),
    lambda service, _, __: service.create_rest_client().list_sessions().result(),
    lambda service, _, __: service.__exit__(None, None, None),
]


@pytest.mark.parametrize("block", BLOCKING)
def test_blocking_on_the_io_thread(connect: Connect, block: Callable[..., object]) -> None:
    """In a callback, on the I/O thread, every call that would block raises at once."""
    service = connect()
    training = service.create_lora_training_client("tinker/toy").result(10)
    sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
    refused: list[BaseException] = []
    over = threading.Event()

    def callback(_: object) -> None:
        try:
            block(service, training, sampler)
        except RuntimeError as error:
            refused.append(error)
        finally:
            over.set()

    done = training.save_state("a")
    done.add_done_callback(callback)
    assert over.wait(10)
    assert ["await it instead" in str(error) for error in refused] == [True]


REFUSED = """
import tinker
def ask(url):
    service = tinker.ServiceClient(base_url=url, api_key="k", patience_seconds=0)
    client = service.create_lora_training_client("tinker/toy")
    assert client.exception(30)
ask("http://ADDRESS")
"""


def test_a_program_that_exits_without_closing_warns_nothing() -> None:
    """Connections that are still open when the interpreter exits cause no warning."""
    with refusing_address() as where:
        for _ in range(3):
            assert run_program(REFUSED.replace("ADDRESS", where)).stderr == ""
