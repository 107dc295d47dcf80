"""The requests of one loss computation: data cut into chunks, encoded, numbered, sent, and their
results put together.

Used on the loop only, by the request whose turn it is.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

import attrs
import msgspec
from msgspec import structs
from tinker_wire import models
from tinker_wire.api import training as training_api
from tinker_wire.runtime import Binary, Request

from tinker._http import (
    FormAttempt,
    Holding,
    PreparedRequest,
    Purpose,
    Reply,
    Transport,
    Variant,
    WireFormat,
)
from tinker._loop import run_together
from tinker._session import NotRunError, SessionContext, loss_output, meter, training_use
from tinker._training.combine import combine
from tinker._training.numbers import Numbers, RunTarget
from tinker._wire import BUFFERS, datum_nbytes, json, proto, slices
from tinker.futures import APIFuture
from tinker.observing import TokensUsed
from tinker.types.datum import Datum
from tinker.types.results import ForwardBackwardOutput
from tinker.types.tensor_data import TensorData, dimensions

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
        return any(
            tensor.is_sparse for datum in self.data for tensor in datum.loss_fn_inputs.values()
        )

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
        model_id, known = target.model_id, target.known_failure
        if job.forward_only:
            forward = models.ForwardRequest(forward_input=inputs, model_id=model_id, seq_id=number)
            return training_api.forward(forward, x_tinker_known_failure=known)
        both = models.ForwardBackwardRequest(
            forward_backward_input=inputs, model_id=model_id, seq_id=number
        )
        return training_api.forward_backward(both, x_tinker_known_failure=known)


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
            self._note_accepted(error, len(accepted))
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

    def _note_accepted(self, error: BaseException, count: int) -> None:
        if count and not self.job.forward_only:
            error.add_note(
                f"The server accepted {count} of the {len(self.chunks)} requests of this batch; "
                "the next optimizer step "
                "includes their gradients."
            )

    def _report_unconfirmed_use(self, accepted: Sequence[_Chunk], future: APIFuture[Any]) -> None:
        """Report to observers the possible usage of requests that were accepted, but whose results
        are lost.
        """
        if accepted and (observers := self.transport.observers):
            observers.notify(
                structs.replace(_use(future, accepted), is_confirmed=False), future.progress
            )

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
        kind = "Forward" if self.job.forward_only else "ForwardBackward"
        expected = loss_output(kind, partial(self._find_fault, chunk))
        result = self.context.results.wait(accepted, expected, future)
        if not (observers := self.transport.observers):
            return result
        use = _use(future, [chunk])
        return meter(observers, future, use, lambda _: use, result)

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
        encode = partial(self._encode, chunk, target)
        forms = FormAttempt(self.context.wire, chunk.has_sparse)
        first = Variant(number, forms.form)
        prepared = {first: await encode(first)}
        # used only now, so that a body that cannot be written leaves no hole
        if numbers is not None:
            first = Variant(next(numbers), forms.form)
        held = Holding(self.context.limits.training_nbytes, chunk.nbytes)
        reply = await self.transport.send_variant(
            first,
            prepared,
            encode,
            models.UntypedAPIFuture,
            numbers=numbers,
            forms=forms,
            admit=held,
        )
        accepted.append(chunk)
        chunk.release(at_once=reply.was_sent_once)
        return reply

    async def _encode(self, chunk: _Chunk, target: RunTarget, send: Variant) -> PreparedRequest:
        job, form, transport = self.job, send.form, self.transport
        assert form is not None
        written = chunk.in_format(form)
        if form.media == "proto":
            head = proto.forward_backward_head(
                target.model_id, send.number, job.loss_fn, job.config, forward_only=job.forward_only
            )
            body = Binary(proto.MEDIA_TYPE, [*head, *slices(await written.encode())])
            request = training_api.forward_backward(
                body, x_tinker_known_failure=target.known_failure
            )
        else:
            request = written.json_request(job, target, send.number)
        compress = self.context.config.proto_compress_fwdbwd and form.media == "proto"
        if written.nbytes > _LARGE_NBYTES and (compress or form.media != "proto"):
            return await asyncio.to_thread(
                transport.prepare, request, Purpose.UPLOAD, compress=compress
            )
        return transport.prepare(request, Purpose.UPLOAD, compress=compress)


def _use(future: APIFuture[Any], chunks: Iterable[_Chunk]) -> TokensUsed:
    return training_use(future, (datum.model_input for chunk in chunks for datum in chunk.data))


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
