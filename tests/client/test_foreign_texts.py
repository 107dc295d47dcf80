"""Texts of a hostile server in errors and in the log: nothing controls a terminal, and no line is
forged.
"""

from __future__ import annotations

import io
import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.calls import CALLS
from support.hostile import EVIL, EXPLANATIONS, ORDINARY, HostileApp, find_attacks
from tinker_wire.operations import OPERATIONS

import tinker
from tinker._basics.shown import clean
from tinker._validate import check_name
from tinker.local import Settings, State, create_app
from tinker.local.engines.protocol import EngineError
from tinker.local.engines.toy import ToyEngine
from tinker.local.storage import check_name as check_name_on_server
from tinker.observing import LogObserver, log_exchanges


@pytest.fixture
def app(tmp_path: Path) -> Iterator[HostileApp]:
    """Yield the server."""
    state = State(ToyEngine, Settings(data_dir=tmp_path, hold_seconds=0.05))
    yield HostileApp(create_app(state))
    state.close()


@pytest.fixture
def log() -> Iterator[Callable[[], str]]:
    """Log everything as a program that writes lines of text, and return what was written."""
    written, handler = io.StringIO(), logging.StreamHandler()
    handler.setStream(written)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger("tinker")
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield written.getvalue
    logger.removeHandler(handler)
    logger.setLevel(level)


def ask(app: HostileApp, call: Callable[[tinker.ServiceClient], Any]) -> list[BaseException]:
    """Make a call, and return its error with everything that led to it."""
    service = tinker.ServiceClient(
        transport=httpx.ASGITransport(app), base_url="http://server", api_key="tml-key", patience_seconds=0,
        observers=[LogObserver(level=logging.DEBUG)],
    )  # fmt: skip
    errors: list[BaseException] = []
    try:
        future = call(service)
        error = (
            (future.result(20) and None)
            if not hasattr(future, "exception")
            else future.exception(20)
        )
    except BaseException as raised:  # noqa: BLE001 - any is looked at
        error = raised
    finally:
        service.close().exception(20)
    while error is not None:
        errors.append(error)
        error = error.__cause__
    return errors


def shown(errors: list[BaseException]) -> list[str]:
    """Return an error as programs show it, one after the other."""
    texts = [f"{error}\n{error!r}" for error in errors]
    return [*texts, *(note for error in errors for note in getattr(error, "__notes__", ()))]


STATUSES = [200, 400, 401, 402, 403, 404, 405, 409, 410, 418, 422, 429, 500, 501, 503]


@pytest.mark.parametrize("name", EXPLANATIONS)
@pytest.mark.parametrize("status", STATUSES)
def test_refusals(app: HostileApp, log: Callable[[], str], status: int, name: str) -> None:
    """Whatever a server says with whatever status, error, notes, causes and the log at DEBUG have
    it in one line.

    Each operation meets each text and each status, though not each text with each status.
    """
    body = EXPLANATIONS[name]
    first = (STATUSES.index(status) + list(EXPLANATIONS).index(name)) % 3
    for operation, call in list(CALLS.items())[first::3]:
        asked = OPERATIONS[operation].path
        app.answer = lambda path, asked=asked: (status, body) if path == asked else None  # type: ignore[misc]
        errors = ask(app, call)
        for text in shown(errors):
            assert find_attacks(text) == [], (operation, text)
        if errors:
            assert find_attacks("".join(traceback.format_exception(errors[0]))) == [], operation
    assert find_attacks(log()) == []


RESULTS: dict[str, object] = {
    "failed": {"status": "failed", "detail": f"no{EVIL}", "category": f"user{EVIL}"},
    "an error": {"error": f"no{EVIL}", "category": "user"},
    "an error of other form": {"error": {f"what{EVIL}": EVIL}, "category": "server"},
    "stopped by another": {
        "error": f"no{EVIL}",
        "category": "user",
        "failed_operation": f"step{EVIL}",
    },
}


@pytest.mark.parametrize("result", RESULTS.values(), ids=list(RESULTS))
def test_failed_results(app: HostileApp, log: Callable[[], str], result: object) -> None:
    """The reason of a failed request is one line in the error and in the log."""
    app.answer = lambda path: (200, result) if path.endswith("retrieve_future") else None
    errors = ask(app, CALLS["retrieve_future"])
    assert isinstance(errors[0], tinker.TinkerError)
    assert [find_attacks(text) for text in shown(errors)] == [[]] * len(shown(errors))
    assert find_attacks(log()) == []


def test_messages_and_pauses(app: HostileApp, log: Callable[[], str]) -> None:
    """Messages to the user and reasons of pauses are one line each, letters as they are."""
    created: dict[str, Any] = {"session_id": "s", "type": "create_session"}
    created |= {
        f"{level}_message": f"{level} {ORDINARY}{EVIL}" for level in ("info", "warning", "error")
    }
    paused = {
        "type": "try_again",
        "queue_state": "paused_capacity",
        "queue_state_reason": f"busy {ORDINARY}{EVIL}",
    }
    results = iter([paused, {"error": "over", "category": "user"}])

    def answer(path: str) -> tuple[int, object] | None:
        if path.endswith("retrieve_future"):
            return 200, next(results)
        return (200, created) if path.endswith("create_session") else None

    app.answer = answer
    ask(app, CALLS["asample"])
    text = log()
    for level in ("info", "warning", "error"):
        assert f"{level} {ORDINARY}\\x1b]0;owned" in text
    assert find_attacks(text) == []


def test_a_hostile_server_that_works(app: HostileApp, log: Callable[[], str]) -> None:
    """With every text of every answer spoiled, no error and no log has what is not text."""
    exchanges: list[Any] = []
    with log_exchanges(exchanges.append):
        for operation, call in CALLS.items():
            for text in shown(ask(app, call)):
                assert find_attacks(text) == [], (operation, text)
    assert find_attacks(log()) == []
    assert exchanges
    assert all(len(record.to_json().splitlines()) == 1 for record in exchanges)


@pytest.mark.parametrize(
    ("text", "line", "lines"),
    [
        (ORDINARY, ORDINARY, ORDINARY),
        ("a\u00a0b\u3000c", "a\u00a0b\u3000c", "a\u00a0b\u3000c"),
        ("a\r\nb\tc\n", "a b c ", "a\nb\tc\n"),
        ("a\rb", "a b", "a\\rb"),
        ("a\u2028b\x85c", "a b c", "a\\u2028b\\x85c"),
        ("\x1b[2J\x9b\x7f", "\\x1b[2J\\x9b\\x7f", "\\x1b[2J\\x9b\\x7f"),
        ("\u202ea\u2069\ud800", "\\u202ea\\u2069\\ud800", "\\u202ea\\u2069\\ud800"),
    ],
)
def test_clean_texts(text: str, line: str, lines: str) -> None:
    """Letters and joined emoji stay, controls are escaped, and breaks stay or become spaces."""
    assert clean(text) == line
    assert clean(text, lines=True) == lines


def test_tracebacks_in_the_log(log: Callable[[], str]) -> None:
    """A traceback in the log keeps its lines, indented, so that none can be forged."""
    try:
        raise ValueError(f"no{EVIL}")
    except ValueError:
        logging.getLogger("tinker").exception("failed with %s", EVIL)
    assert "\n  Traceback (most recent call last):\n" in log()
    assert find_attacks(log()) == []
    assert log().startswith("ERROR tinker failed with \\x1b]0;owned")


@pytest.mark.parametrize(
    "letter", ["\x1b", "\x7f", "\x85", "\x9b", "\u202e", "\u2028", "\u2066", "\ud800"]
)
def test_names_of_checkpoints(letter: str) -> None:
    """Client and server make no checkpoint whose name cannot be printed, in any script."""
    for check in (check_name, check_name_on_server):
        with pytest.raises((ValueError, EngineError), match="control characters"):
            check(f"a{letter}b")
        check(ORDINARY)
