"""What a newcomer writes, and the whole text of the error: `first_mistakes.txt`."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases import for_each
from support.mistakes import name_ids, read_mistakes

import tinker

MISTAKES = read_mistakes(Path(__file__).with_name("first_mistakes.txt"), ">>> ")
PROMPT = tinker.ModelInput.from_ints([1, 2, 3])
VALUES = {
    "tinker": tinker,
    "np": np,
    "asyncio": asyncio,
    "PROMPT": PROMPT,
    "PARAMS": tinker.SamplingParams(max_tokens=2),
    "DATUM": tinker.Datum(PROMPT, {"target_tokens": [2, 3, 4]}),
}
MAKE: dict[str, Callable[[tinker.ServiceClient], object]] = {
    "training": lambda service: service.create_lora_training_client("tinker/toy", rank=4).result(
        10
    ),
    "sampler": lambda service: service.create_sampling_client(base_model="tinker/toy").result(10),
}
ANSWERED = re.compile(r"# (\w+) is answered with (\d+) (.*)")
REFUSALS = ("TypeError: ", "ValueError: ")
WORK = {
    *("create_model", "create_sampling_session", "forward_backward", "optim_step", "asample"),
    *("save_weights", "save_weights_for_sampler", "load_weights"),
}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings of the machine that runs the tests."""
    for name in ("TINKER_API_KEY", "TINKER_BASE_URL", "TINKER_CREDENTIAL_CMD"):
        monkeypatch.delenv(name, raising=False)


def test_the_table_is_long() -> None:
    """The table has more than a hundred mistakes, none of them twice."""
    assert len(MISTAKES) > 100
    assert len({written for written, _ in MISTAKES}) == len(MISTAKES)


@pytest.mark.httpunk("httpx does not say why it could not connect")
@for_each("written, text", [one for one in MISTAKES if "torch" not in one[0]])
def test_first_mistakes(
    connect: Callable[..., tinker.ServiceClient], wire: Any, written: str, text: str
) -> None:
    """The error or warning that a mistake ends in has exactly the text of the table."""
    with connect() as service:
        check(service, wire, written, text, {})


def test_first_mistakes_with_torch(connect: Callable[..., tinker.ServiceClient], wire: Any) -> None:
    """So it is for mistakes with tensors of torch."""
    torch = pytest.importorskip("torch")
    for written, text in MISTAKES:
        if "torch" in written:
            with connect() as service:
                check(service, wire, written, text, {"torch": torch})


def test_a_call_that_is_refused_sends_nothing(service: tinker.ServiceClient, wire: Any) -> None:
    """A call that raises TypeError or ValueError on its line sends nothing, and takes no number."""
    made = {"service": service, **{name: make(service) for name, make in MAKE.items()}}
    refused = [one for one, text in MISTAKES if is_one_call(one) and text.startswith(REFUSALS)]
    for written in refused:
        run(written, {**VALUES, **made, "torch": None})
    made["training"].optim_step(tinker.AdamParams()).result(10)
    asked = [one.operation for one in wire.exchanges if one.operation in WORK]
    assert asked == ["create_model", "create_sampling_session", "optim_step"]
    assert wire.requests("optim_step")[0].seq_id == 1
    assert len(refused) > 50


def is_one_call(written: str) -> bool:
    """Return whether something written is one call of a client's method, and nothing else."""
    match ast.parse(written).body:
        case [ast.Expr(ast.Call(ast.Attribute(ast.Name("service" | "training" | "sampler"))))]:
            return len(re.findall(r"\b(service|training|sampler)\.", written)) == 1
    return False


def check(
    service: tinker.ServiceClient, wire: Any, written: str, text: str, more: dict[str, Any]
) -> None:
    """Run what is written, with the clients that it names; compare."""
    for operation, status, body in ANSWERED.findall(written):
        wire.fail(operation, int(status), body=json.loads(body))
    made = {
        name: make(service) for name, make in MAKE.items() if re.search(rf"\b{name}\b", written)
    }
    assert name_ids(run(written, {**VALUES, **more, "service": service, **made})) == text


def run(written: str, values: dict[str, Any]) -> str:
    """Return the exception of code, with its notes, and the warnings."""
    # other tests in this process make the same mistakes
    tinker.types.params._warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        told = _run(written, values)
    return "\n".join([*told, *(f"{one.category.__name__}: {one.message}" for one in heard)])


def _run(written: str, values: dict[str, Any]) -> list[str]:
    *before, last = ast.parse(written).body
    try:
        exec(compile(ast.Module(before, []), "<stdin>", "exec"), values)
        if isinstance(last, ast.Expr):
            eval(compile(ast.Expression(last.value), "<stdin>", "eval"), values)
        else:
            exec(compile(ast.Module([last], []), "<stdin>", "exec"), values)
    except Exception as error:  # noqa: BLE001
        return [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
    return []
