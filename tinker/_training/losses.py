"""Losses: their requests in chunks and results put together, and losses of the user's."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import inspect
import itertools
import math
import operator
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, cast

import attrs
import msgspec
from tinker_wire import limits, models, runs
from tinker_wire.api import training as training_api
from tinker_wire.models import CustomLossGraph, CustomLossInput, CustomLossNode
from tinker_wire.runtime import Binary, Request

from tinker._basics.events import CustomLossEvaluated, CustomLossStarted, Event
from tinker._http.limits import Holding
from tinker._http.messages import PreparedRequest, Purpose
from tinker._http.submission import FormAttempt, Variant, WireFormat
from tinker._http.transport import Reply, Transport
from tinker._loop import LoopThread, run_together
from tinker._runtime import Runtime
from tinker._session import SessionContext
from tinker._session.results import NotRunError, json_only, loss_output
from tinker._training.order import Numbers, RunTarget
from tinker._validate import check_data
from tinker._wire import BUFFERS, datum_nbytes, json, proto, slices
from tinker.custom_loss import CustomLossFn, LossHandle, LossWithGradients, PerDatumLossFn
from tinker.futures import APIFuture
from tinker.types._values import np
from tinker.types.model_input import Datum, ModelInput
from tinker.types.results import ForwardBackwardOutput
from tinker.types.tensor_data import TensorData, dimensions, is_torch

if TYPE_CHECKING:
    import torch
    import torch.fx
    from numpy.typing import NDArray

    Node: TypeAlias = torch.fx.Node

Values = Sequence[float]
Weights = Sequence[int]

_HASH_MODULUS = 1 << 64


def _mean(values: Values, weights: Weights) -> float:
    """Return the mean, weighted by the number of outputs; the plain mean where no chunk has any."""
    total = sum(weights)
    if total == 0:
        return sum(values) / len(values)
    return sum(w * x for w, x in zip(weights, values, strict=True)) / total


def _hash2(values: Values, _: Weights) -> float:
    return sum(int(x) % _HASH_MODULUS for x in values) % _HASH_MODULUS


def _hash_in_order(values: Values, _: Weights) -> float:
    """Return the official client's hash up to 0.7, for comparison; the hash of a tuple of integers
    has no salt.
    """
    return hash(tuple(sorted(int(x) for x in values)))


REDUCTIONS: dict[str, Callable[[Values, Weights], float]] = {
    "sum": lambda values, _: sum(values),
    "mean": _mean,
    "min": lambda values, _: min(values),
    "max": lambda values, _: max(values),
    "slack": lambda values, weights: max(values) - _mean(values, weights),
    "hash2": _hash2,
    "hash_unordered": _hash_in_order,  # of older servers
}


def combine(results: Sequence[ForwardBackwardOutput]) -> ForwardBackwardOutput:
    """Return one result: outputs concatenated in order, metrics reduced.

    ``sum``, ``mean`` (weighted by outputs), ``min``, ``max``, ``slack`` (largest minus mean),
    ``hash2`` (sum modulo 2^64), ``hash_unordered`` (the hash of the sorted values), and ``unique``
    (the chunks' values under ``key``, ``key_1``, ``key_2`` ...). Of several chunks, a metric that
    one of them lacks or whose reduction is not known is left out; of one chunk every metric is
    kept.
    """
    first = results[0]
    weights = [len(result.loss_fn_outputs) for result in results]
    metrics: dict[str, float] = {}
    for key, own in first.metrics.items():
        values = [result.metrics[key] for result in results if key in result.metrics]
        if len(values) == len(results):
            metrics.update(_reduce(key, own, values, weights))
    outputs = [output for result in results for output in result.loss_fn_outputs]
    return ForwardBackwardOutput(first.loss_fn_output_type, outputs, metrics)


def _reduce(key: str, own: float, values: Values, weights: Weights) -> dict[str, float]:
    suffix = key.rpartition(":")[2]
    if suffix == "unique":
        return {
            key if index == 0 else f"{key}_{index}": value for index, value in enumerate(values)
        }
    reduce = REDUCTIONS.get(suffix)
    if reduce is not None:
        return {key: reduce(values, weights)}
    return {key: own} if len(values) == 1 else {}


# Bodies beyond this are encoded off the loop thread.
_LARGE_NBYTES = 1 << 20

SubmitReply: TypeAlias = Reply[models.UntypedAPIFuture]
"""What the server promised for one chunk."""


class LossJob(msgspec.Struct, frozen=True):
    """The loss and its settings, shared by all chunks. With ``needs_logprobs``, a result must have
    one for each target.
    """

    loss_fn: str
    config: dict[str, float | str] | None
    forward_only: bool
    needs_logprobs: bool = False


class _Chunk(msgspec.Struct):
    """Datums of one request, and their protobuf form once it is made."""

    data: Sequence[Datum]
    nbytes: int
    is_doubted: bool = False  # its result lacked what others have, and was asked for again
    _encoded: memoryview | None = None
    _densified: _Chunk | None = None

    @property
    def has_sparse(self) -> bool:
        """Return whether a tensor is sparse."""
        tensors = (one for datum in self.data for one in datum.loss_fn_inputs.values())
        return any(tensor.sparse_crow_indices is not None for tensor in tensors)

    def in_format(self, form: WireFormat) -> _Chunk:
        """Return the chunk as this form writes it: itself, or, where sparse tensors are not read,
        one that has none.
        """
        if form.sparse or not self.has_sparse:
            return self
        if self._densified is None:
            data = [_dense(datum) for datum in self.data]
            self._densified = _Chunk(data, sum(map(datum_nbytes, data)))
        return self._densified

    async def encode(self) -> memoryview:
        """Return the protobuf form without its head; made once, off the loop thread when large."""
        if self._encoded is None:
            large = self.nbytes > _LARGE_NBYTES
            self._encoded = await asyncio.to_thread(self._join) if large else self._join()
        return self._encoded

    def _join(self) -> memoryview:
        parts = proto.encode_data(self.data)
        return BUFFERS.join(parts) if self.nbytes > _LARGE_NBYTES else memoryview(b"".join(parts))

    def release(self, *, at_once: bool) -> None:
        """Release the memory, as the server has the chunk: ``at_once`` if no broken attempt can be
        sending it still.
        """
        if self._encoded is not None and at_once:
            BUFFERS.release(self._encoded)
        self._encoded = self._densified = None

    def json_request(
        self, job: LossJob, target: RunTarget, number: int
    ) -> Request[models.UntypedAPIFuture]:
        """Return the JSON request; forward only is a separate operation there."""
        inputs = models.ForwardBackwardInput(
            data=json.wire_data(self.data), loss_fn=job.loss_fn, loss_fn_config=job.config
        )
        request = (
            runs.forward(forward_input=inputs)
            if job.forward_only
            else runs.forward_backward(forward_backward_input=inputs)
        )
        return request.fill(target.model_id, number, target.known_failure)


class LossRequests(msgspec.Struct, frozen=True):
    """One computation, cut and encoded as the server of this session wants it; ready to be numbered
    and sent.
    """

    transport: Transport
    context: SessionContext
    job: LossJob
    chunks: list[_Chunk]

    async def submit(
        self, numbers: Numbers, target: RunTarget, future: APIFuture[Any]
    ) -> list[SubmitReply]:
        """Number and send every chunk; only whose turn it is may call this."""
        accepted: list[_Chunk] = []
        submissions: list[SubmitReply] = []
        try:
            if len(self.chunks) > 1 and self.context.config.parallel_fwdbwd_chunks:
                submissions = await self._submit_together(numbers, target, accepted)
            else:
                for chunk in self.chunks:
                    submissions.append(
                        await self._send_chunk(chunk, target, accepted, numbers.next, numbers)
                    )
        except Exception as error:
            if accepted and not self.job.forward_only:
                error.add_note(
                    f"The server accepted {len(accepted)} of the {len(self.chunks)} requests of "
                    "this batch; the next optimizer step includes their gradients."
                )
            self._report_unconfirmed_use(accepted, future)
            raise
        if future.cancelled():  # the results will not be awaited
            self._report_unconfirmed_use(accepted, future)
        return submissions

    async def _submit_together(
        self, numbers: Numbers, target: RunTarget, accepted: list[_Chunk]
    ) -> list[SubmitReply]:
        """Submit the first chunk last: the server starts when it has that one, and the others are
        there by then.
        """
        first = numbers.take(len(self.chunks))
        head, *rest = (
            partial(self._send_chunk, chunk, target, accepted, first + i)
            for i, chunk in enumerate(self.chunks)
        )
        later = await asyncio.gather(*(send() for send in rest), return_exceptions=True)
        outcomes: list[SubmitReply | BaseException | None] = [None, *later]
        if not any(isinstance(one, BaseException) for one in later):
            outcomes[:1] = await asyncio.gather(head(), return_exceptions=True)
        failed = next((one for one in outcomes if isinstance(one, BaseException)), None)
        if failed is None:
            return cast("list[SubmitReply]", outcomes)
        numbers.abandon(first, outcomes)
        raise failed

    def _report_unconfirmed_use(self, accepted: Sequence[_Chunk], future: APIFuture[Any]) -> None:
        """Report to observers the possible usage of requests that were accepted, but whose results
        are lost.
        """
        if accepted and (meter := future.progress.meter) is not None:
            meter.note(_model_inputs(accepted), is_confirmed=False)

    def again(self, data: Sequence[Datum], job: LossJob) -> LossRequests:
        """Return another computation over as many datums, cut in the same places."""
        ends = list(itertools.accumulate(len(chunk.data) for chunk in self.chunks))
        pieces = [data[start:end] for start, end in zip([0, *ends], ends)]
        chunks = [_Chunk(piece, sum(map(datum_nbytes, piece))) for piece in pieces]
        return msgspec.structs.replace(self, job=job, chunks=chunks)

    async def encode(self) -> None:
        """Encode protobuf bodies now, so that the request's turn is short."""
        form = self.context.wire.form
        if form.media == "proto":
            for chunk in self.chunks:
                await chunk.in_format(form).encode()

    async def result(
        self, accepted: Sequence[SubmitReply], future: APIFuture[Any]
    ) -> ForwardBackwardOutput:
        """Wait for the chunks and put their results together."""
        if len(accepted) == 1:
            return combine([await self._result(self.chunks[0], accepted[0], future)])
        pairs = enumerate(zip(self.chunks, accepted, strict=True))
        results = await run_together(
            {index: self._result_or_stop(chunk, one, future) for index, (chunk, one) in pairs}
        )
        outputs = [one for one in results.values() if not isinstance(one, NotRunError)]
        if len(outputs) < len(results):
            raise next(one for one in results.values() if isinstance(one, NotRunError))
        return combine(outputs)

    async def _result_or_stop(
        self, chunk: _Chunk, accepted: SubmitReply, future: APIFuture[Any]
    ) -> ForwardBackwardOutput | NotRunError:
        """Return the error of a chunk that was not run because of another, whose own failure says
        more.
        """
        try:
            return await self._result(chunk, accepted, future)
        except NotRunError as error:
            return error

    def _result(
        self, chunk: _Chunk, accepted: SubmitReply, future: APIFuture[Any]
    ) -> Awaitable[ForwardBackwardOutput]:
        promised = runs.FORWARD if self.job.forward_only else runs.FORWARD_BACKWARD
        expected = loss_output(promised, partial(self._find_fault, chunk))
        result = self.context.results.wait(accepted, expected, future)
        meter = future.progress.meter
        return result if meter is None else meter.follow(_model_inputs([chunk]), result)

    def _find_fault(self, chunk: _Chunk, output: ForwardBackwardOutput) -> str | None:
        """Return why an output is not the whole result of a chunk."""
        if (count := len(output.loss_fn_outputs)) != len(chunk.data):
            return f"{count} outputs for {len(chunk.data)} datums"
        if (
            self.job.needs_logprobs
            and (fault := self._find_missing_logprobs(chunk, output)) is not None
        ):
            return fault
        return self._find_missing_names(chunk, output)

    def _find_missing_names(self, chunk: _Chunk, output: ForwardBackwardOutput) -> str | None:
        """Return which metrics or fields of outputs are missing that other results have. Missing
        twice, they do not exist.
        """
        fields = [frozenset(one) for one in output.loss_fn_outputs]
        names = fields[0].intersection(*fields).union(output.metrics)
        kind = self.job.loss_fn, self.job.forward_only
        usual = self.context.result_names.get(kind, names)
        if (missing := sorted(usual.union(*fields) - names)) and not chunk.is_doubted:
            chunk.is_doubted = True
            return f"no {', '.join(missing)}, which other results of this loss have"
        self.context.result_names[kind] = usual & names
        return None

    def _find_missing_logprobs(self, chunk: _Chunk, output: ForwardBackwardOutput) -> str | None:
        before = itertools.takewhile(lambda one: one is not chunk, self.chunks)
        first = sum(len(one.data) for one in before)
        for index, (datum, fields) in enumerate(
            zip(chunk.data, output.loss_fn_outputs, strict=True), first
        ):
            shape = dimensions(datum.loss_fn_inputs["target_tokens"])
            if "logprobs" not in fields:
                return (
                    f"the server's {self.job.loss_fn} returned no logprobs (data[{index}]: "
                    f"{', '.join(fields) or 'empty'})"
                )
            if (count := fields["logprobs"].values.size) != math.prod(shape):
                return f"data[{index}]: {count} logprobs for targets of shape {shape}"
        return None

    async def _send_chunk(
        self,
        chunk: _Chunk,
        target: RunTarget,
        accepted: list[_Chunk],
        number: int,
        numbers: Numbers | None = None,
    ) -> SubmitReply:
        """Submit one chunk under a number, or another one of ``numbers``, and in the form that the
        server reads.
        """
        body = _ChunkBody(self, chunk, target)
        forms = FormAttempt(self.context.wire, chunk.has_sparse)
        first = Variant(number, forms.form)
        written = {first: await body.write(first)}
        # used only now, so that a body that cannot be written leaves no hole
        if numbers is not None:
            first = Variant(next(numbers), forms.form)
        held = Holding(self.context.limits.training_nbytes, chunk.nbytes)
        reply = await self.transport.send_variant(
            first,
            written,
            body,
            models.UntypedAPIFuture,
            numbers=numbers,
            forms=forms,
            admit=held,
        )
        accepted.append(chunk)
        chunk.release(at_once=reply.was_sent_once)
        return reply


class _ChunkBody(msgspec.Struct, frozen=True):
    """The body of one chunk for a model, under each number and in each form."""

    requests: LossRequests
    chunk: _Chunk
    target: RunTarget

    async def write(self, variant: Variant) -> PreparedRequest:
        job, form, transport = self.requests.job, variant.form, self.requests.transport
        model_id, known = self.target.model_id, self.target.known_failure
        assert form is not None
        chunk = self.chunk.in_format(form)
        if form.media == "proto":
            head = proto.forward_backward_head(
                model_id, variant.number, job.loss_fn, job.config, forward_only=job.forward_only
            )
            body = Binary(proto.MEDIA_TYPE, [*head, *slices(await chunk.encode())])
            request = training_api.forward_backward(body, x_tinker_known_failure=known)
        else:
            request = chunk.json_request(job, self.target, variant.number)
        compress = self.requests.context.config.proto_compress_fwdbwd and form.media == "proto"
        if chunk.nbytes > _LARGE_NBYTES and (compress or form.media != "proto"):
            return await asyncio.to_thread(
                transport.prepare, request, Purpose.UPLOAD, compress=compress
            )
        return transport.prepare(request, Purpose.UPLOAD, compress=compress)


def _model_inputs(chunks: Iterable[_Chunk]) -> Iterator[ModelInput]:
    return (datum.model_input for chunk in chunks for datum in chunk.data)


def _dense(datum: Datum) -> Datum:
    inputs = {
        name: TensorData.from_numpy(tensor.to_numpy()) if tensor.is_sparse else tensor
        for name, tensor in datum.loss_fn_inputs.items()
    }
    return attrs.evolve(datum, loss_fn_inputs=inputs)


async def prepare_loss_requests(
    transport: Transport, context: SessionContext, data: Sequence[Datum], job: LossJob
) -> LossRequests:
    """Split ``data`` by the server's limits; protobuf bodies are encoded now, ahead of the turn."""
    limits = context.config
    pieces = split(data, limits.fwdbwd_max_chunk_len, limits.fwdbwd_max_chunk_bytes_count)
    requests = LossRequests(
        transport, context, job, [_Chunk(piece, nbytes) for piece, nbytes in pieces]
    )
    await requests.encode()
    return requests


def split(
    data: Sequence[Datum], max_datums: int, max_nbytes: int
) -> list[tuple[Sequence[Datum], int]]:
    """Return chunks of at most ``max_datums`` datums and ``max_nbytes`` estimated bytes, with their
    estimates.

    A datum larger than ``max_nbytes`` makes a chunk of its own.
    """
    chunks: list[tuple[Sequence[Datum], int]] = []
    start = nbytes = 0
    for index, datum in enumerate(data):
        size = datum_nbytes(datum)
        if index > start and (nbytes + size > max_nbytes or index - start >= max_datums):
            chunks.append((data[start:index], nbytes))
            start, nbytes = index, 0
        nbytes += size
    chunks.append((data[start:], nbytes))
    return chunks


# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# (torch.fx is typed in part only)


LOGPROBS = "logprobs"
MAX_INPUTS = limits.CREATE_CUSTOM_LOSS_REQUEST_INPUTS_MAX_ITEMS
RANKS = range(limits.CUSTOM_LOSS_INPUT_RANK_MINIMUM, limits.CUSTOM_LOSS_INPUT_RANK_MAXIMUM + 1)
_INPUT_NAME = re.compile(limits.CUSTOM_LOSS_INPUT_NAME_PATTERN)
_METRIC_NAME = re.compile(limits.CUSTOM_LOSS_GRAPH_METRIC_NAME_PATTERN)
# These leave the graph: they need values, which a trace has none of, or run a backward pass of
# their own.
_FORBIDDEN_METHODS = frozenset(
    {"backward", "item", "numpy", "tolist", "requires_grad_", "register_hook", "retain_grad"}
)


class TracedLoss(msgspec.Struct, frozen=True):
    """A loss that can be run here, as ``module``, and uploaded, as ``graph``."""

    name: str
    inputs: tuple[CustomLossInput, ...]
    module: torch.fx.GraphModule
    graph: CustomLossGraph


def trace(fn: PerDatumLossFn, input_ranks: Mapping[str, int]) -> TracedLoss:
    """Trace a loss per datum. ValueError naming the part that cannot be traced or uploaded,
    ImportError without torch.
    """
    try:
        from torch import fx
    except ImportError:
        from tinker._basics.installation import install_command

        raise ImportError(
            f"PyTorch is not installed; create_custom_loss needs it: {install_command('torch')}"
        ) from None
    inputs = _inputs(fn, input_ranks)
    name = getattr(fn, "__name__", type(fn).__name__)
    try:
        graph = fx.Tracer().trace(cast("Callable[..., Any]", fn))
    except Exception as error:
        raise _refusal(f"{name} cannot be traced: {error}") from error
    for node in graph.nodes:
        node.type = None  # annotations may be text, which a module cannot be pickled with
    nodes = [_wire_node(node) for node in graph.nodes]
    return TracedLoss(name, inputs, fx.GraphModule({}, graph), CustomLossGraph(nodes=nodes))


def _refusal(message: str) -> ValueError:
    return ValueError(f"create_custom_loss: {message}")


def _inputs(fn: PerDatumLossFn, input_ranks: Mapping[str, int]) -> tuple[CustomLossInput, ...]:
    parameters = list(inspect.signature(fn).parameters.values())
    names = [parameter.name for parameter in parameters]
    if not names or names[0] != LOGPROBS:
        raise _refusal(
            f"the first parameter must be named {LOGPROBS}, got "
            f"{', '.join(names) or 'no parameters'}"
        )
    if len(names) > MAX_INPUTS:
        raise _refusal(f"a loss can have at most {MAX_INPUTS} parameters, got {len(names)}")
    for parameter in parameters:
        plain = (
            parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            and parameter.default is parameter.empty
        )
        if not plain or not _INPUT_NAME.fullmatch(parameter.name):
            raise _refusal(
                f"the parameter {parameter} must have a lower-case name and no default, * or /"
            )
    if set(input_ranks) != set(names):
        raise _refusal(
            f"input_ranks must name the parameters {', '.join(names)}, got {', '.join(input_ranks)}"
        )
    return tuple(CustomLossInput(name=name, rank=_rank(name, input_ranks[name])) for name in names)


def _rank(name: str, rank: int) -> int:
    if isinstance(rank, bool) or rank not in RANKS or (name == LOGPROBS and rank == 0):
        raise _refusal(
            f"the rank of {name} must "
            f"be {'1 or 2' if name == LOGPROBS else '0, 1 or 2'}, got {rank!r}"
        )
    return rank


# ------------------------------------------------------------------------------------ graph -> wire


def _wire_node(node: Node) -> CustomLossNode:
    target = _target(node)
    if node.op == "output":
        _check_output(node)
    return CustomLossNode(
        op=cast("Any", node.op),
        name=node.name,
        target=target,
        args=[_wire_argument(argument) for argument in node.args],
        kwargs={name: _wire_argument(argument) for name, argument in node.kwargs.items()},
    )


def _target(node: Node) -> str:
    if node.op == "get_attr":
        raise _refusal("the loss contains a tensor; make it a parameter or a number")
    if node.op == "call_module":
        raise _refusal("the loss calls a module; use only functions of tensors")
    if node.op == "call_function":
        return _function_name(cast("Callable[..., object]", node.target))
    target = str(node.target)
    if node.op == "call_method" and not _is_tensor_method(target):
        raise _refusal(f"the loss calls .{target}(), which a traced loss does not support")
    return target


def _is_tensor_method(name: str) -> bool:
    import torch

    known = callable(getattr(torch.Tensor, name, None)) and not name.startswith("_")
    return known and name not in _FORBIDDEN_METHODS


def _function_name(function: Callable[..., object]) -> str:
    name = _public_names().get(id(function))
    if name is None:
        shown = getattr(function, "__name__", function)
        raise _refusal(
            f"the loss calls {shown!r}, which is not a function of torch, math or operator"
        )
    return name


@functools.cache
def _public_names() -> dict[int, str]:
    """Return the name of every function that a loss may call, by its identity; some call themselves
    otherwise.
    """
    import torch

    homes = {
        "operator": operator,
        "math": math,
        "torch": torch,
        "torch.nn.functional": torch.nn.functional,
        "torch.linalg": torch.linalg,
        "torch.special": torch.special,
        "torch.fft": torch.fft,
    }
    names = {id(getattr): "getattr"}
    for prefix, module in homes.items():
        for name, value in vars(module).items():
            if not name.startswith("_") and callable(value):
                names.setdefault(id(value), f"{prefix}.{name}")
    return names


def _check_output(node: Node) -> None:
    from torch.fx import Node

    (value,) = node.args
    if (
        not isinstance(value, tuple)
        or len(value) != 2
        or not isinstance(value[0], Node)
        or not isinstance(value[1], dict)
    ):
        raise _refusal("the loss must return a tensor and a dict of metrics")
    for name, metric in cast("dict[object, object]", value[1]).items():
        if not isinstance(name, str) or not _METRIC_NAME.fullmatch(name):
            raise _refusal(
                f"the metric {name!r} must be named custom/<name>:sum "
                "or custom/<name>:mean, in lower case"
            )
        if not isinstance(metric, Node):
            raise _refusal(f"the metric {name!r} must be a tensor")


def _wire_argument(argument: object) -> Any:
    """Convert an argument: JSON scalars and lists stay unchanged; anything else is an object with
    one key.
    """
    from torch.fx import Node

    if isinstance(argument, Node):
        return {"ref": argument.name}
    if argument is None or isinstance(argument, bool | int | str):
        return argument
    if isinstance(argument, float):
        return argument if math.isfinite(argument) else {"float": str(argument)}
    if isinstance(argument, tuple):
        return {"tuple": [_wire_argument(item) for item in cast("tuple[object, ...]", argument)]}
    if isinstance(argument, list):
        return [_wire_argument(item) for item in cast("list[object]", argument)]
    if isinstance(argument, dict):
        return {
            "dict": {
                str(name): _wire_argument(item)
                for name, item in cast("dict[object, object]", argument).items()
            }
        }
    if isinstance(argument, slice):
        return {
            "slice": [
                _wire_argument(part) for part in (argument.start, argument.stop, argument.step)
            ]
        }
    return {"ellipsis": True} if argument is ... else _wire_constant(argument)


def _wire_constant(argument: object) -> dict[str, str]:
    import torch

    kinds = {
        "dtype": torch.dtype,
        "device": torch.device,
        "layout": torch.layout,
        "memory_format": torch.memory_format,
    }
    for name, kind in kinds.items():
        if isinstance(argument, kind):
            return {name: str(argument).removeprefix("torch.")}
    raise _refusal(f"{argument!r} cannot be an argument of a traced operation")


# ------------------------------------------------------------------------------ the user's function

Logprobs: TypeAlias = list["NDArray[np.float32]"]


class Evaluated(msgspec.Struct, frozen=True):
    """The result of the user's function: the loss, its gradient by the log-probabilities of each
    datum, and metrics.
    """

    loss: float
    gradients: Logprobs
    metrics: Mapping[str, float]


Evaluate: TypeAlias = Callable[[list[Datum], Logprobs], Evaluated]


def evaluator(loss_fn: CustomLossFn | LossWithGradients | LossHandle) -> Evaluate:
    """Choose how to evaluate a loss. ImportError when torch is needed and missing, TypeError for
    other objects.
    """
    if isinstance(loss_fn, LossWithGradients):
        return partial(_with_gradients, loss_fn)
    function = partial(_sum_losses, loss_fn) if isinstance(loss_fn, LossHandle) else loss_fn
    if not callable(function):
        raise TypeError(
            "loss_fn must be a function, with_gradients(function) or a LossHandle, got "
            f"{type(loss_fn).__name__}"
        )
    _check_parameters(function)
    require_torch()
    return partial(_by_torch, function)


def _check_parameters(function: Callable[..., object]) -> None:
    """Raise TypeError for a function that cannot be called with the data and the
    log-probabilities.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin that does not say
        return
    try:
        signature.bind((), ())
    except TypeError as error:
        raise TypeError(
            "a custom loss is called as loss_fn(data, logprobs), but "
            f"this function takes {signature}"
        ) from error


def require_torch() -> None:
    """Raise ImportError when torch is not installed, which says what to do without it."""
    if importlib.util.find_spec("torch") is None:
        from tinker._basics.installation import install_command

        raise ImportError(
            f"PyTorch is not installed; a custom loss needs it: {install_command('torch')}, "
            "or let the loss compute its gradient: tinker.with_gradients(loss_fn)"
        )


def _with_gradients(loss_fn: LossWithGradients, data: list[Datum], logprobs: Logprobs) -> Evaluated:
    __tracebackhide__ = True
    return read_gradients(loss_fn.fn(data, logprobs), logprobs)


def read_gradients(returned: object, logprobs: Logprobs) -> Evaluated:
    """Read the result of a loss that computes its gradient; ValueError unless it fits the
    log-probabilities.
    """
    if not is_tuple(returned, 2, 3):
        raise ValueError(
            "the custom loss must return (loss, gradients) or (loss, gradients, metrics)"
        )
    loss = read_number("the custom loss", returned[0])
    gradients = [np.asarray(gradient, np.float32) for gradient in returned[1]]
    metrics = read_metrics(returned[2] if len(returned) == 3 else {})
    return check_evaluation(Evaluated(loss, gradients, metrics), logprobs)


def is_tuple(value: object, *lengths: int) -> TypeGuard[tuple[Any, ...]]:
    """Return whether the value is a tuple of one of these lengths."""
    return isinstance(value, tuple) and len(cast("Sequence[object]", value)) in lengths


def make_leaves(logprobs: Logprobs) -> list[torch.Tensor]:
    """Return the log-probabilities as tensors by which torch can differentiate; the memory is
    shared.
    """
    import torch

    return [torch.from_numpy(part).requires_grad_() for part in logprobs]  # pyright: ignore[reportUnknownMemberType]


def _by_torch(loss_fn: CustomLossFn, data: list[Datum], logprobs: Logprobs) -> Evaluated:
    import torch

    __tracebackhide__ = True
    leaves = make_leaves(logprobs)
    with torch.enable_grad():
        returned: Any = loss_fn(data, leaves)
        if not is_tuple(returned, 2):
            advice = ": return loss, {}" if isinstance(returned, torch.Tensor) else ""
            raise ValueError(
                "the custom loss must return (loss, metrics), got "
                f"{type(returned).__name__}{advice}"
            )
        loss, metrics = cast("tuple[torch.Tensor, Mapping[str, float]]", returned)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                "the custom loss must return the loss as a tensor with one value, got "
                f"{describe_value(loss)}"
            )
        if not loss.requires_grad:
            raise ValueError(
                "the custom loss does not depend on the log-probabilities, or "
                "was detached from them"
            )
        loss.backward()  # type: ignore[no-untyped-call]
    gradients = [_gradient(index, leaf) for index, leaf in enumerate(leaves)]
    return check_evaluation(
        Evaluated(read_number("the custom loss", loss), gradients, read_metrics(metrics)), logprobs
    )


def _gradient(index: int, leaf: torch.Tensor) -> NDArray[np.float32]:
    if leaf.grad is None:
        raise ValueError(
            f"the custom loss does not depend on logprobs[{index}], so it has no gradient there; "
            f"leave out data[{index}], "
            f"or add 0 * logprobs[{index}].sum()"
        )
    return leaf.grad.numpy()


def check_evaluation(evaluated: Evaluated, logprobs: Logprobs) -> Evaluated:
    """Return the evaluation; ValueError unless its gradients are finite and have the shapes of the
    log-probabilities.
    """
    if len(evaluated.gradients) != len(logprobs):
        raise ValueError(
            f"the custom loss returned {len(evaluated.gradients)} "
            f"gradients for {len(logprobs)} datums"
        )
    for index, (gradient, part) in enumerate(zip(evaluated.gradients, logprobs, strict=True)):
        if gradient.shape != part.shape:
            raise ValueError(
                f"the gradient of the custom loss for data[{index}] has shape "
                f"{list(gradient.shape)}, but the log-probabilities have {list(part.shape)}"
            )
        if not np.isfinite(gradient).all():
            raise ValueError(
                f"the gradient of the custom loss for data[{index}] contains NaN or infinity"
            )
    return evaluated


def read_metrics(metrics: object) -> dict[str, float]:
    """Read the metrics of a loss; ValueError unless they are a mapping of names to numbers."""
    if not isinstance(metrics, Mapping):
        raise ValueError(
            f"the metrics of the custom loss must be a mapping, got {type(metrics).__name__}"
        )
    return {
        str(name): read_number(f"metrics[{name!r}] of the custom loss", value)
        for name, value in cast("Mapping[str, Any]", metrics).items()
    }


def read_number(what: str, value: Any) -> float:
    """Return a number, also of a tensor with one value; ValueError for anything else."""
    try:
        return float(value.detach() if is_torch(value) else value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{what} must be a number, got {describe_value(value)}") from None


def describe_value(value: object) -> str:
    """Describe a value: the shape of a tensor, with how to make it one number,
    otherwise the type.
    """
    if not is_torch(value):
        return type(value).__name__ + (": leave out .item()" if isinstance(value, float) else "")
    return f"a tensor of shape {list(value.shape)}" + (
        ": use .sum() or .mean()" if value.numel() > 1 else ""
    )


def _sum_losses(
    handle: LossHandle, data: list[Datum], logprobs: list[torch.Tensor]
) -> tuple[torch.Tensor, dict[str, float]]:
    """Return a loss per datum over all of them: losses added up, metrics as their names say."""
    import torch

    losses: list[torch.Tensor] = []
    totals: dict[str, float] = {}
    for datum, leaf in zip(data, logprobs, strict=True):
        inputs = [datum.loss_fn_inputs[name].to_torch() for name in handle.input_names]
        loss, metrics = handle.graph(leaf, *inputs)
        losses.append(loss)
        for name, value in metrics.items():
            totals[name] = totals.get(name, 0.0) + read_number(
                f"metrics[{name!r}] of the custom loss", value
            )
    means = {name: total / len(data) for name, total in totals.items() if name.endswith(":mean")}
    return torch.stack(losses).sum(), {**totals, **means}


# ----------------------------------------------------------------------------- reports to observers

_reports: ContextVar[list[Event] | None] = ContextVar("reports of a loss", default=None)


def report(event: Event) -> None:
    """Keep an event for the observers of the client for which a loss is being evaluated; without
    any, forget it.
    """
    if (reports := _reports.get()) is not None:
        reports.append(event)


def evaluate_with_reports(
    reports: list[Event], evaluate: Evaluate, data: list[Datum], logprobs: Logprobs
) -> Evaluated:
    """Evaluate a loss; its reports are in ``reports`` afterwards, also when it fails."""
    token = _reports.set(reports)
    try:
        return evaluate(data, logprobs)
    finally:
        _reports.reset(token)


# ------------------------------------------------------------------------- losses that were created

_FORWARD = LossJob("cross_entropy", None, forward_only=True, needs_logprobs=True)
_BACKWARD = LossJob("cross_entropy", None, forward_only=False)
_LOSS, _SURROGATE = "loss:sum", "surrogate_loss:sum"


def check_handle(handle: LossHandle, data: Sequence[Datum], session_id: str | None) -> None:
    """Raise ValueError unless the loss is of this session and each datum, which is named, has the
    inputs it was traced for.
    """
    if handle.session_id != session_id:
        raise ValueError(
            f"the loss {handle.name!r} belongs to another session; create it "
            "with this client's ServiceClient"
        )
    for index, datum in enumerate(data):
        for one in handle.inputs:
            name = "target_tokens" if one.name == LOGPROBS else one.name
            tensor = datum.loss_fn_inputs.get(name)
            if tensor is None:
                raise ValueError(
                    f"datum[{index}].loss_fn_inputs is missing {name}, which the loss "
                    f"{handle.name!r} needs"
                )
            if len(dimensions(tensor)) != one.rank:
                raise ValueError(
                    f"datum[{index}]: {name} has shape {dimensions(tensor)}, but {handle.name!r} "
                    f"takes {one.rank} dimensions"
                )


async def create_handle(
    future: APIFuture[LossHandle], runtime: Runtime, traced: TracedLoss
) -> LossHandle:
    """Upload a traced loss where the server asks for losses, and return its handle. ValueError when
    the session has it.
    """
    session = runtime.session
    context = await session.ensure_started()
    handle = LossHandle(traced.name, traced.inputs, context.session_id, traced.module)
    if handle.key in session.loss_keys:
        raise ValueError(
            f"this session already created the loss {traced.name!r}; reuse its LossHandle"
        )
    session.loss_keys.add(handle.key)
    if not context.config.custom_loss_server_side:
        return handle
    body = models.CreateCustomLossRequest(
        session_id=context.session_id,
        custom_loss_seq_id=next(session.loss_numbers),
        name=traced.name,
        inputs=traced.inputs,
        graph=traced.graph,
    )
    try:
        created = await context.submit(
            training_api.create_custom_loss(body), json_only(runs.CREATE_CUSTOM_LOSS), future
        )
    except BaseException:
        session.loss_keys.discard(handle.key)
        raise
    return replace(handle, loss_id=created.loss_id)


# ----------------------------------------------------------------------------------------- the step


class PreparedLoss(msgspec.Struct, frozen=True):
    """A step whose arguments are checked: the user's datums, those of the forward pass, and the
    loss.
    """

    data: list[Datum]
    reduced: list[Datum]
    evaluate: Evaluate

    async def forward(self, transport: Transport, context: SessionContext) -> LossRequests:
        """Cut and encode the forward pass."""
        return await prepare_loss_requests(transport, context, self.reduced, _FORWARD)


def prepare_loss(
    data: Sequence[Datum], loss_fn: CustomLossFn | LossWithGradients | LossHandle
) -> PreparedLoss:
    """Check the arguments of a step; errors as of :func:`evaluator` and ``forward_backward``."""
    evaluate = evaluator(loss_fn)
    reduced = [_to_cross_entropy(datum) for datum in data]
    check_data(reduced, "cross_entropy")
    if isinstance(loss_fn, LossWithGradients) and loss_fn.check is not None:
        loss_fn.check(list(data))
    return PreparedLoss(list(data), reduced, evaluate)


def _to_cross_entropy(datum: Datum) -> Datum:
    """Return the datum as cross entropy takes it; the weights do not matter to the
    log-probabilities.
    """
    if not isinstance(datum, Datum):  # pyright: ignore[reportUnnecessaryIsInstance]
        return datum  # refused with its index
    inputs = datum.loss_fn_inputs
    kept: dict[str, object] = {
        name: inputs[name] for name in ("target_tokens", "weights") if name in inputs
    }
    if "weights" not in kept and "target_tokens" in kept:
        kept["weights"] = np.zeros(dimensions(inputs["target_tokens"]), np.float32)
    return attrs.evolve(datum, loss_fn_inputs=kept)


class CustomStep(msgspec.Struct, frozen=True):
    """One step, ready for its turn."""

    thread: LoopThread
    prepared: PreparedLoss
    forward: LossRequests
    future: APIFuture[ForwardBackwardOutput]

    async def submit(self, numbers: Numbers, target: RunTarget) -> SubmittedStep:
        """Do everything but waiting for the last results; holds the turn meanwhile."""
        output = await self.forward.result(
            await self.forward.submit(numbers, target, self.future), self.future
        )
        evaluated = await self._evaluate(_logprobs(self.prepared.reduced, output))
        weighted = [
            _set_weights(*pair)
            for pair in zip(self.prepared.reduced, evaluated.gradients, strict=True)
        ]
        backward = self.forward.again(weighted, _BACKWARD)
        await backward.encode()
        return SubmittedStep(
            evaluated, backward, await backward.submit(numbers, target, self.future)
        )

    async def _evaluate(self, logprobs: Logprobs) -> Evaluated:
        """Call the user's function on a separate thread; observers get its start, its reports and
        its end.
        """
        observers, operation = self.forward.transport.observers, self.future.operation
        if not observers:
            return await self.thread.run_in_user_thread(
                partial(self.prepared.evaluate, self.prepared.data, logprobs)
            )
        began, reports = observers.clock.monotonic(), list[Event]()
        observers.notify(
            CustomLossStarted(operation=operation, datum_count=len(self.prepared.data))
        )
        evaluate = partial(
            evaluate_with_reports, reports, self.prepared.evaluate, self.prepared.data, logprobs
        )
        ended = partial(CustomLossEvaluated, operation=operation)
        try:
            evaluated = await self.thread.run_in_user_thread(evaluate)
            ended = partial(ended, loss=evaluated.loss, metrics=evaluated.metrics)
            return evaluated
        except BaseException as error:
            ended = partial(ended, error=error)
            raise
        finally:
            for event in reports:
                observers.notify(event)
            observers.notify(ended(seconds=observers.clock.monotonic() - began))

    async def result(self, submitted: SubmittedStep) -> ForwardBackwardOutput:
        """Return the result of the backward pass, with the user's loss and metrics in it."""
        output = await submitted.backward.result(submitted.accepted, self.future)
        return attrs.evolve(output, metrics=_merge_metrics(output.metrics, submitted.evaluated))


class SubmittedStep(msgspec.Struct, frozen=True):
    """A step whose backward pass the server has accepted."""

    evaluated: Evaluated
    backward: LossRequests
    accepted: list[SubmitReply]


def _logprobs(data: Sequence[Datum], output: ForwardBackwardOutput) -> Logprobs:
    """Return the log-probabilities of each datum, writable and in the shape of its targets."""
    shapes = (dimensions(datum.loss_fn_inputs["target_tokens"]) for datum in data)
    return [
        np.array(fields["logprobs"].to_numpy(), np.float32).reshape(shape)
        for fields, shape in zip(output.loss_fn_outputs, shapes, strict=True)
    ]


def _set_weights(datum: Datum, gradient: NDArray[np.float32]) -> Datum:
    sparse = datum.loss_fn_inputs["target_tokens"].is_sparse
    weights = (
        TensorData.from_numpy_sparse(-gradient) if sparse else TensorData.from_numpy(-gradient)
    )
    return attrs.evolve(datum, loss_fn_inputs={**datum.loss_fn_inputs, "weights": weights})


def _merge_metrics(server: Mapping[str, float], evaluated: Evaluated) -> dict[str, float]:
    metrics = {(_SURROGATE if name == _LOSS else name): value for name, value in server.items()}
    return {**metrics, **evaluated.metrics, _LOSS: evaluated.loss}
