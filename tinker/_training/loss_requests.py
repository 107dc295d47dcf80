"""The requests of one loss computation: data cut into chunks, encoded, numbered, sent, and their results put together.

Used on the loop only. Whose turn it is, is the sequencer's business.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias, cast

import attrs
from tinker_wire import models
from tinker_wire.api import training as training_api
from tinker_wire.runtime import Binary, Request

from tinker._http import SUBMIT, Call, Purpose, Transport
from tinker._session import Form, Started, Trial, loss_output
from tinker._training.chunks import datum_nbytes, split
from tinker._training.combine import combine
from tinker._training.numbers import Numbers
from tinker._wire import json, proto
from tinker._wire.bodies import BUFFERS, slices
from tinker.futures import APIFuture
from tinker.types.datum import Datum
from tinker.types.results import ForwardBackwardOutput
from tinker.types.tensor_data import TensorData

# Bodies beyond this are encoded off the loop thread.
_LARGE_NBYTES = 1 << 20

Accepted: TypeAlias = tuple[models.UntypedAPIFuture, float]
"""What the server promised for one chunk, and how many seconds it took to promise it."""


@attrs.frozen
class LossJob:
    """What to compute, the same for every chunk."""

    loss_fn: str
    config: dict[str, float | str] | None
    forward_only: bool


@attrs.define
class _Chunk:
    """Datums of one request, and their protobuf form once it is made."""

    data: Sequence[Datum]
    nbytes: int
    _encoded: memoryview | None = None
    _densified: _Chunk | None = None

    @property
    def has_sparse(self) -> bool:
        """Whether a tensor is sparse."""
        return any(tensor.is_sparse for datum in self.data for tensor in datum.loss_fn_inputs.values())

    def written(self, form: Form) -> _Chunk:
        """The chunk as this form writes it: itself, or, where sparse tensors are not read, one that has none."""
        if form.sparse or not self.has_sparse:
            return self
        if self._densified is None:
            data = [_dense(datum) for datum in self.data]
            self._densified = _Chunk(data, sum(map(datum_nbytes, data)))
        return self._densified

    async def encode(self) -> memoryview:
        """The protobuf form without its head; made once, off the loop thread when large."""
        if self._encoded is None:
            large = self.nbytes > _LARGE_NBYTES
            self._encoded = await asyncio.to_thread(self._joined) if large else self._joined()
        return self._encoded

    def _joined(self) -> memoryview:
        parts = proto.encode_data(self.data)
        return BUFFERS.joined(parts) if self.nbytes > _LARGE_NBYTES else memoryview(b"".join(parts))

    def sent(self, *, at_once: bool) -> None:
        """The server has it. Its memory may be used again if no broken attempt can be sending it still."""
        if self._encoded is not None and at_once:
            BUFFERS.give(self._encoded)
        self._encoded = None

    def json_request(self, job: LossJob, model_id: str, number: int) -> Request[models.UntypedAPIFuture]:
        """The JSON request; forward only is an operation of its own there."""
        inputs = models.ForwardBackwardInput(data=json.wire_data(self.data), loss_fn=job.loss_fn, loss_fn_config=job.config)
        if job.forward_only:
            return training_api.forward(models.ForwardRequest(forward_input=inputs, model_id=model_id, seq_id=number))
        return training_api.forward_backward(
            models.ForwardBackwardRequest(forward_backward_input=inputs, model_id=model_id, seq_id=number)
        )


@attrs.frozen
class LossRequests:
    """One computation, cut and encoded as the server of this session wants it; ready to be numbered and sent."""

    transport: Transport
    started: Started
    job: LossJob
    chunks: list[_Chunk]

    async def submit(self, numbers: Numbers, model_id: str) -> list[Accepted]:
        """Number and send every chunk; only whose turn it is may call this."""
        if len(self.chunks) == 1 or not self.started.config.parallel_fwdbwd_chunks:
            return await self._submit_in_turn(numbers, model_id)
        return await self._submit_together(numbers, model_id)

    async def _submit_in_turn(self, numbers: Numbers, model_id: str) -> list[Accepted]:
        accepted: list[Accepted] = []
        for chunk in self.chunks:
            try:
                accepted.append(await numbers.send(partial(self._send_chunk, chunk, model_id)))
            except Exception as error:
                self._note_accepted(error, len(accepted))
                raise
        return accepted

    async def _submit_together(self, numbers: Numbers, model_id: str) -> list[Accepted]:
        """The server starts when it has the first chunk, so that one goes last and the others are there by then."""
        first = numbers.take(len(self.chunks))
        head, *rest = (partial(self._send_chunk, chunk, model_id, first + i) for i, chunk in enumerate(self.chunks))
        later = await asyncio.gather(*(send() for send in rest), return_exceptions=True)
        outcomes: list[Accepted | BaseException | None] = [None, *later]
        if not any(isinstance(one, BaseException) for one in later):
            outcomes[:1] = await asyncio.gather(head(), return_exceptions=True)
        failed = next((one for one in outcomes if isinstance(one, BaseException)), None)
        if failed is None:
            return cast("list[Accepted]", outcomes)
        numbers.abandon(first, outcomes)
        self._note_accepted(failed, sum(isinstance(one, tuple) for one in outcomes))
        raise failed

    def _note_accepted(self, error: BaseException, count: int) -> None:
        if count and not self.job.forward_only:
            error.add_note(
                f"{count} of the {len(self.chunks)} requests of this batch had been accepted; their gradients count in the "
                "next optimizer step."
            )

    def again(self, data: Sequence[Datum], job: LossJob) -> LossRequests:
        """Another computation over as many datums, cut in the same places."""
        ends = list(itertools.accumulate(len(chunk.data) for chunk in self.chunks))
        pieces = [data[start:end] for start, end in zip([0, *ends], ends)]
        chunks = [_Chunk(piece, sum(map(datum_nbytes, piece))) for piece in pieces]
        return attrs.evolve(self, job=job, chunks=chunks)

    async def encode(self) -> None:
        """Encode what is sent as protobuf now, so that its turn is short."""
        form = self.started.wire.form
        if form.media == "proto":
            for chunk in self.chunks:
                await chunk.written(form).encode()

    async def result(self, accepted: Sequence[Accepted], future: APIFuture[Any]) -> ForwardBackwardOutput:
        """Wait for the chunks and put their results together."""
        expected = loss_output("Forward" if self.job.forward_only else "ForwardBackward")
        wait = self.started.poller.result
        if len(accepted) == 1:
            return combine([await wait(accepted[0][0], expected, future, accepted[0][1])])
        waits = (wait(promise, expected, future, roundtrip) for promise, roundtrip in accepted)
        return combine(await asyncio.gather(*waits))

    async def _send_chunk(self, chunk: _Chunk, model_id: str, number: int) -> Accepted:
        """Submit one chunk; one that is refused is tried in the other forms the server may read, under the same number."""
        clock = self.transport.clock
        async with self.started.limits.training_nbytes.take(chunk.nbytes):
            began = clock.monotonic()
            send = self._send if self.started.wire.is_settled else self._send_in_forms
            return await send(chunk, model_id, number), clock.monotonic() - began

    async def _send(self, chunk: _Chunk, model_id: str, number: int) -> models.UntypedAPIFuture:
        """Submit in the form that is known to be read; sparse tensors may still turn out not to be."""

        async def post(form: Form) -> models.UntypedAPIFuture:
            submission = await self._prepared(chunk, form, model_id, number)
            promise = await self.transport.tried(SUBMIT, submission.once, submission.operation)
            submission.chunk.sent(at_once=submission.failures == 0)
            return promise

        return await Trial(self.started.wire, post, has_sparse=chunk.has_sparse).once()

    async def _send_in_forms(self, chunk: _Chunk, model_id: str, number: int) -> models.UntypedAPIFuture:
        """Submit while it is not known what the server reads: every try is made in each form that it may read."""
        submissions: dict[Form, _Submission] = {}

        async def post(form: Form) -> models.UntypedAPIFuture:
            if form not in submissions:
                submissions[form] = await self._prepared(chunk, form, model_id, number)
            return await submissions[form].once()

        trial = Trial(self.started.wire, post, has_sparse=chunk.has_sparse)
        promise = await self.transport.tried(SUBMIT, trial.once, "forward_backward")
        for submission in submissions.values():
            submission.chunk.sent(at_once=submission.failures == 0)
        return promise

    async def _prepared(self, chunk: _Chunk, form: Form, model_id: str, number: int) -> _Submission:
        """The chunk as it is sent in this form; every attempt of it is the same call."""
        transport, job, written = self.transport, self.job, chunk.written(form)
        if form.media == "proto":
            head = proto.forward_backward_head(model_id, number, job.loss_fn, job.config, forward_only=job.forward_only)
            body = Binary(proto.MEDIA_TYPE, [*head, *slices(await written.encode())])
            request = training_api.forward_backward(body)
        else:
            request = written.json_request(job, model_id, number)
        compress = self.started.config.proto_compress_fwdbwd and form.media == "proto"
        prepare = partial(transport.prepare, request, Purpose.UPLOAD, compress=compress)
        long = written.nbytes > _LARGE_NBYTES and (compress or form.media != "proto")
        call = await asyncio.to_thread(prepare) if long else prepare()
        return _Submission(transport, written, request, call)


@attrs.define
class _Submission:
    """One chunk in one form, ready to be sent. ``failures`` counts the attempts that failed."""

    transport: Transport
    chunk: _Chunk
    request: Request[models.UntypedAPIFuture]
    call: Call
    failures: int = 0

    @property
    def operation(self) -> str:
        """Its operation: forward only is one of its own in JSON."""
        return self.request.operation

    async def once(self) -> models.UntypedAPIFuture:
        """One attempt."""
        try:
            answer = await self.transport.perform(self.call, self.operation)
            return self.transport.decode(self.request, self.call, answer)
        except BaseException:
            self.failures += 1
            raise


def _dense(datum: Datum) -> Datum:
    inputs = {
        name: TensorData.from_numpy(tensor.to_numpy()) if tensor.is_sparse else tensor
        for name, tensor in datum.loss_fn_inputs.items()
    }
    return attrs.evolve(datum, loss_fn_inputs=inputs)


async def prepare_loss_requests(transport: Transport, started: Started, data: Sequence[Datum], job: LossJob) -> LossRequests:
    """Cut ``data`` by the server's limits; what is sent as protobuf is encoded now, ahead of the turn."""
    limits = started.config
    pieces = split(data, limits.fwdbwd_max_chunk_len, limits.fwdbwd_max_chunk_bytes_count)
    requests = LossRequests(transport, started, job, [_Chunk(piece, nbytes) for piece, nbytes in pieces])
    await requests.encode()
    return requests
