"""Follow one real operation from the user's call until its value is there, and say through which
files it went.

As a script (``python tools/call_trace.py ROOT``) it imports the ``tinker`` of ROOT, starts a toy
server in a process of its own, makes each operation of OPERATIONS twice to warm up and then a few
times with a profile function in every thread, and prints what it saw as JSON: every call of a
Python function in ``tinker/``, ``tinker_records/`` and ``generated/``, in order, and one thread
after the other, since they run at once. Of these times the one with the fewest calls is taken,
because a heartbeat or a poll may come in between.

As a module it counts. All of these count *entries*; a coroutine that goes on after a wait is not
entered again. A *move* is an entry into another file than that of the entry before it; a *return*
is a move to a file that was left before.

*Control only* leaves out what a reader of the path would not open:

- the value types (``tinker/types/``), the codec (``tinker/_wire/``), generated code, and everything
  outside ``tinker/``, as the methods that attrs and msgspec write;
- comprehensions, generator expressions and lambdas;
- properties, and functions that only return a name, an attribute or a constant;
- special methods but for ``__init__``, ``__call__`` and those of ``with``.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

#: The method, and the end of the path that its request is posted to.
OPERATIONS = {"forward_backward": "/forward_backward", "sample": "/asample"}
TIMES = 10
WAIT_SECONDS = 60.0
SERVER = """
import sys
from tinker.testing import toy_server
with toy_server() as server, server.on_port() as url:
    print(url, flush=True)
    sys.stdin.read()
"""
NOT_CONTROL = ("types", "_wire", "local", "testing", "cli")
SPECIAL_CONTROL = frozenset(
    {"__init__", "__call__", "__enter__", "__exit__", "__aenter__", "__aexit__"}
)
_COROUTINE_FLAGS = 0x80 | 0x200  # coroutines and asynchronous generators


class Entry(NamedTuple):
    """One call: the file relative to the root, the function's name and first line, whether a
    coroutine went on.
    """

    path: str
    name: str
    line: int
    resumed: bool


class Trace(NamedTuple):
    """The calls, how many of them come before the socket, and how many coroutines of ``tinker``
    waited above it.
    """

    entries: list[Entry]
    sent: int
    awaits: int


@dataclass(frozen=True)
class Route:
    """The files of some entries, in order, without repetition of the same file."""

    calls: int
    chain: list[str]

    @property
    def files(self) -> int:
        return len(set(self.chain))

    @property
    def moves(self) -> int:
        return max(0, len(self.chain) - 1)

    @property
    def returns(self) -> int:
        return len(self.chain) - self.files


def trace(root: Path) -> dict[str, Trace]:
    """Return the trace of each operation, made in a process of its own."""
    script = [sys.executable, str(Path(__file__).resolve()), str(root)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=10 * WAIT_SECONDS)
    if done.returncode:
        raise RuntimeError(f"the operations could not be traced in {root}:\n{done.stderr}")
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {
        name: Trace([Entry(*one) for one in entries], sent, awaits)
        for name, (entries, sent, awaits) in seen.items()
    }


def follow(entries: list[Entry]) -> Route:
    """Return the path of these entries."""
    chain: list[str] = []
    for entry in entries:
        if not chain or chain[-1] != entry.path:
            chain.append(entry.path)
    return Route(len(entries), chain)


def follow_all(found: Trace) -> Route:
    """Return the path of everything that was called until the value was there."""
    return follow([entry for entry in found.entries if not entry.resumed])


def follow_out(found: Trace) -> Route:
    """Return the path of everything that was called before the request was sent."""
    return follow([entry for entry in found.entries[: found.sent] if not entry.resumed])


def follow_control(found: Trace, root: Path) -> Route:
    """Return the path of what a reader opens until the request is sent."""
    return follow(
        [
            entry
            for entry in found.entries[: found.sent]
            if not entry.resumed and is_control(entry, root)
        ]
    )


def is_control(entry: Entry, root: Path) -> bool:
    """Whether a reader of the path opens this function."""
    words = Path(entry.path).parts
    if words[0] != "tinker" or words[1] in NOT_CONTROL or entry.name.startswith("<"):
        return False
    if entry.name.startswith("__") and entry.name not in SPECIAL_CONTROL:
        return False
    return (entry.name, entry.line) not in trivial_functions(root / entry.path)


@cache
def trivial_functions(path: Path) -> frozenset[tuple[str, int]]:
    """Properties and accessors of a file, by name and first line."""
    found = (
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    )
    return frozenset((node.name, _first_line(node)) for node in found if _is_trivial(node))


def _is_trivial(node: ast.FunctionDef) -> bool:
    if any(ast.unparse(decorator).endswith("property") for decorator in node.decorator_list):
        return True
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    returned = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None
    return isinstance(returned, (ast.Name, ast.Attribute, ast.Constant))


def _first_line(node: ast.FunctionDef) -> int:
    """Where the code object says that it begins: at the first decorator."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


class _Recorder:
    """The profile function. It records between :meth:`start` and :meth:`take`."""

    def __init__(self, root: Path) -> None:
        self._root = f"{root}{os.sep}"
        self._ours = tuple(
            f"{self._root}{name}{os.sep}" for name in ("tinker", "tinker_records", "generated")
        )
        self._suffix: str | None = None
        self._seen: set[FrameType] = set()
        self._out: dict[int, list[Entry]] = {}  # by thread
        self._back: dict[int, list[Entry]] = {}
        self._awaits = 0
        self.reached = threading.Event()

    def start(self, suffix: str) -> None:
        self._out, self._back, self._seen = {}, {}, set()
        self.reached.clear()
        self._suffix = suffix

    def see(self, frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if self._suffix is None or event != "call" or not self._is_ours(path):
            return
        code = frame.f_code
        resumed = frame in self._seen
        self._seen.add(frame)
        entry = Entry(path.removeprefix(self._root), code.co_name, code.co_firstlineno, resumed)
        (self._back if self.reached.is_set() else self._out).setdefault(
            threading.get_ident(), []
        ).append(entry)

    def reach(self, path: str, frame: FrameType | None) -> None:
        """A connection is asked to send to a path; ``frame`` asks it."""
        if (
            self._suffix is None
            or self.reached.is_set()
            or not path.partition("?")[0].endswith(self._suffix)
        ):
            return
        self._awaits = sum(
            1 for path, flags in _stack(frame) if self._is_ours(path) and flags & _COROUTINE_FLAGS
        )
        self.reached.set()

    def take(self) -> Trace:
        """Return the calls, thread after thread, on the way out and then on the way back."""
        self._suffix = None
        out, back = (sum(found.values(), list[Entry]()) for found in (self._out, self._back))
        return Trace(out + back, len(out), self._awaits)

    def _is_ours(self, path: str) -> bool:
        return path.startswith(self._ours)


def _stack(frame: FrameType | None) -> Iterator[tuple[str, int]]:
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_code.co_flags
        frame = frame.f_back


def _listen_to_connections(recorder: _Recorder) -> None:
    from tinker._http.connections import Http1Connection

    connection: Any = Http1Connection
    start: Callable[..., Any] = connection.start

    def listening_start(self: object, exchange: object, path: str) -> object:
        recorder.reach(path, inspect.currentframe())
        return start(self, exchange, path)

    connection.start = listening_start


def _operations(url: str) -> dict[str, Callable[[], Any]]:
    """Each operation as one call; the creation of its client is over."""
    import numpy as np

    import tinker

    client: Any = tinker.ServiceClient(base_url=url, api_key="tml-trace")
    trainer = client.create_lora_training_client("tinker/toy")
    sampler = client.create_sampling_client(base_model="tinker/toy")
    prompt = tinker.types.ModelInput.from_ints([1, 2, 3])
    inputs: Any = {"target_tokens": np.array([2, 3, 4]), "weights": np.ones(3, np.float32)}
    data = [tinker.types.Datum(model_input=prompt, loss_fn_inputs=inputs)]
    params = tinker.types.SamplingParams(max_tokens=4)
    return {
        "forward_backward": lambda: trainer.forward_backward(data, "cross_entropy"),
        "sample": lambda: sampler.sample(prompt, 1, params),
    }


def _record(recorder: _Recorder, suffix: str, operation: Callable[[], Any]) -> Trace:
    recorder.start(suffix)
    future = operation()
    if not recorder.reached.wait(
        WAIT_SECONDS
    ):  # a result that is asked for before would stand among the calls until then
        raise RuntimeError(
            f"no request to …{suffix} came to a connection within {WAIT_SECONDS:g} s"
        )
    future.result(timeout=WAIT_SECONDS)
    return recorder.take()


@contextmanager
def _serve(root: Path) -> Generator[str]:
    """Serve a toy model in another process, and yield its address."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:2])}
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(
        command, cwd=root, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.stdin.close()


def _record_all(root: Path) -> dict[str, Trace]:
    sys.path[:0] = [str(root), str(root / "generated")]
    recorder = _Recorder(root)
    threading.setprofile(recorder.see)  # before the client makes its thread
    sys.setprofile(recorder.see)
    import tinker

    if not Path(tinker.__file__).is_relative_to(root):
        raise RuntimeError(f"tinker was imported from {tinker.__file__}, not from {root}")
    _listen_to_connections(recorder)
    found: dict[str, Trace] = {}
    with _serve(root) as url:
        for name, operation in _operations(url).items():
            for _ in range(2):
                operation().result(timeout=WAIT_SECONDS)
            runs = [_record(recorder, OPERATIONS[name], operation) for _ in range(TIMES)]
            found[name] = min(runs, key=lambda run: len(run.entries))
    return found


if __name__ == "__main__":
    print(json.dumps(_record_all(Path(sys.argv[1]).resolve())), flush=True)
    os._exit(0)  # nothing here needs a tidy end
