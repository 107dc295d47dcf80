"""Losses that would take far more memory than one may, run one after the other in a process whose
memory is limited.

``python -m support.evil_losses EVERY`` runs each EVERYth of them. It prints a line of JSON for
every one that ends otherwise than with a result or an EngineError of the server's own: by the limit
of the system, or by another exception. Then their number.
"""

from __future__ import annotations

import gc
import itertools
import json
import resource
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tinker_wire import models

from tinker.local.engines.protocol import AdapterSpec, EngineError, TrainingExample
from tinker.local.engines.toy import ToyEngine
from tinker.local.losses import check_graph
from tinker.local.losses.evaluation import FUNCTIONS, METHODS

#: Bytes that a loss may take beyond what the process has: twice the budget of one, as some kernels
#: copy their operands.
ROOM = 5 * 2**28
N = 10**9
A, B, C, INTEGERS, ROWS = ({"ref": name} for name in ("a", "b", "c", "i", "rows"))


def call(
    name: str,
    op: Literal["placeholder", "call_function", "call_method", "output"],
    target: str,
    *args: Any,
    **kwargs: Any,
) -> models.CustomLossNode:
    return models.CustomLossNode(name=name, op=op, target=target, args=list(args), kwargs=kwargs)


#: A vector of 60,000 numbers that depends on the log-probabilities, as a row and as a column,
#: integers, and a table.
GIVEN = (
    call("logprobs", "placeholder", "logprobs"),
    call("a", "call_method", "repeat", {"ref": "logprobs"}, 60_000),
    call("b", "call_method", "unsqueeze", A, 0),
    call("c", "call_method", "unsqueeze", A, 1),
    call("i", "call_function", "torch.full", {"tuple": [60_000]}, N),
    call("rows", "call_method", "repeat", B, 3, 1),
)
#: Arguments that any function may be tried with.
TRIED: tuple[tuple[Any, ...], ...] = (
    (A,),
    (INTEGERS,),
    (ROWS,),
    (A, A),
    (B, C),
    (C, B),
    (C, B, A),
    (A, B, C),
    (A, INTEGERS),
    (A, N),
    (A, N, N),
    (A, {"tuple": [N, 1]}),
    (A, {"tuple": [N, N]}),
    (A, 0, N),
    (A, 0, 1, N),
    (A, 1, 0),
    (ROWS, 0, INTEGERS),
    (N,),
    (N, N),
    (0, 1, N),
    ({"tuple": [N, N]},),
    ({"tuple": [N, N]}, 1.0),
    ([A] * 3_000,),
    ([B, C],),
    (B, C, 0.5),
    (A, 60_000),
)


def special_calls() -> Iterator[tuple[models.CustomLossNode, ...]]:
    """Yield losses whose last node, ``n``, works with the right arguments only."""
    yield (call("n", "call_function", "torch.einsum", "i,j->ij", A, A),)
    yield (call("n", "call_function", "torch.einsum", "i,j,k->", A, A, A),)
    yield (call("n", "call_function", "torch.tensordot", A, A, 0),)
    yield (call("n", "call_function", "torch.tensordot", A, A, dims=0),)
    yield (call("n", "call_function", "torch.nn.functional.pad", A, {"tuple": [0, N]}),)
    yield (call("n", "call_function", "torch.nn.functional.pad", B, {"tuple": [0, 0, 0, N]}),)
    yield (call("n", "call_function", "torch.bincount", INTEGERS),)
    yield (call("n", "call_function", "torch.bincount", INTEGERS, None, 4 * N),)
    yield (
        call("m", "call_function", "torch.zeros_like", INTEGERS),
        call("n", "call_method", "bincount", {"ref": "m"}, minlength=N),
    )
    yield (call("n", "call_function", "torch.histc", A, N),)
    yield (call("n", "call_method", "histc", A, bins=N),)
    yield (call("n", "call_method", "repeat_interleave", A, INTEGERS),)
    yield (call("n", "call_method", "repeat_interleave", A, INTEGERS, output_size=60_000),)
    yield (call("n", "call_method", "expand", C, -1, N),)
    yield (call("n", "call_method", "unfold", A, 0, 30_000, 1),)
    yield (call("n", "call_function", "torch.linspace", 0, 1, N),)
    yield (call("n", "call_function", "torch.arange", N),)
    yield (call("n", "call_method", "to", A, "meta"),)
    yield (call("n", "call_function", "torch.zeros", N, device="meta"),)
    mask = call("m", "call_function", "operator.lt", A, {"float": "inf"})
    yield (
        mask,
        call(
            "n",
            "call_function",
            "operator.getitem",
            ROWS,
            {"tuple": [{"slice": [None, None, None]}, {"ref": "m"}]},
        ),
    )
    wide = call("w", "call_method", "expand", {"ref": "logprobs"}, 2**24)
    wide_rows = call("w", "call_method", "expand", C, -1, 2_000)
    for method in ("tensor_split", "chunk"):
        yield wide, call("n", "call_method", method, {"ref": "w"}, 2**24)
    yield wide, call("n", "call_method", "unbind", {"ref": "w"})
    yield wide, call("n", "call_method", "split", {"ref": "w"}, 1)
    yield wide, call("n", "call_method", "unique", {"ref": "w"}, dim=0)
    for name in ("contiguous", "exp", "double", "argsort", "cumsum", "mode", "unique", "sort"):
        more = [0] if name == "cumsum" else []
        yield wide_rows, call("n", "call_method", name, {"ref": "w"}, *more)
    many = [{"ref": f"p{index}"} for index in range(60)]
    parts = [call(one["ref"], "call_method", "repeat", A, 400) for one in many]
    yield *parts, call("n", "call_function", "torch.stack", many)
    bound = [call(f"p{index}", "call_method", "unbind", A) for index in range(8)]
    yield *bound, call("n", "call_function", "torch.stack", [*many[:1], {"ref": "p7"}])
    yield bound[0], call("n", "call_function", "torch.tensor", [{"ref": "p0"}] * 60_000)
    numbers = call("p0", "call_method", "size", ROWS)
    yield numbers, call("n", "call_function", "torch.tensor", [[{"ref": "p0"}] * 3_000] * 30)
    deep = [
        call(f"q{index}", "call_method", "mul", {"ref": f"q{index - 1}"} if index else A, 2.0)
        for index in range(3_000)
    ]
    yield *deep, call("n", "call_method", "exp", {"ref": "q2999"})


def general_calls() -> Iterator[tuple[models.CustomLossNode, ...]]:
    """Yield every function and method that a loss may name with arguments that it may take."""
    functions = sorted(set(FUNCTIONS.values()))
    names = {target.rpartition(".")[2] for target in functions}
    yield from (
        (call("n", "call_function", target, *arguments),)
        for target in functions
        for arguments in TRIED
    )
    methods = sorted(METHODS - names)
    yield from (
        (call("n", "call_method", method, *arguments),) for method in methods for arguments in TRIED
    )


def run(engine: ToyEngine, nodes: tuple[models.CustomLossNode, ...], loss: str) -> str:
    """Return how a loss ended: a number, or what was said about it."""
    ends = (
        call("sum", "call_method", "sum", {"ref": loss}),
        call("output", "output", "output", {"tuple": [{"ref": "sum"}, {"dict": {}}]}),
    )
    graph = models.CustomLossGraph(format=1, nodes=[*GIVEN, *nodes, *ends])
    checked = check_graph("evil", [models.CustomLossInput(name="logprobs", rank=1)], graph)
    example = TrainingExample(
        tokens=np.array([1], np.int32), loss_inputs={"target_tokens": np.array([2])}
    )
    try:
        return str(checked.run(engine, "a", [example], backward=True).metrics["loss:sum"])
    except EngineError as error:
        return str(error)


def main() -> None:
    warnings.simplefilter("ignore")
    engine = ToyEngine(vocabulary=8)
    engine.create_adapter("a", AdapterSpec(rank=1))
    run(engine, (), "a")  # what torch imports and keeps
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    tried = [*itertools.islice(general_calls(), 0, None, int(sys.argv[1])), *special_calls()]
    for nodes in tried:
        try:
            said = run(engine, nodes, "n")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            said = f"{type(error).__name__}: {error} allocate"
        if "alloc" in said:
            sys.stdout.write(
                json.dumps([nodes[-1].target, repr(nodes[-1].args)[:120], said[:200]]) + "\n"
            )
        gc.collect(0)
    sys.stdout.write(f"{len(tried)}\n")


if __name__ == "__main__":
    main()
