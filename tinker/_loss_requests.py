"""The requests of one loss computation: data cut into chunks, encoded, numbered, sent, and their results put together.

Used on the loop only. Whose turn it is, is the sequencer's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias, cast

import attrs
from tinker_wire import models
from tinker_wire.api import training as training_api
from tinker_wire.runtime import Binary, Request

from tinker._chunking import split
from tinker._combine import combine
from tinker._polling import loss_output
from tinker._pools import Purpose, coalesced
from tinker._retry import SUBMIT, run
from tinker._sequencer import Sequencer
from tinker._session import Started
from tinker._transport import Transport
from tinker._wire import json, proto
from tinker.errors import APIStatusError
from tinker.futures import APIFuture
from tinker.types.datum import Datum
from tinker.types.results import ForwardBackwardOutput

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
    _encoded: list[bytes] | None = None

    async def encode(self) -> list[bytes]:
        """The protobuf form without its head, in blocks; made once, off the loop thread when large."""
        if self._encoded is None:
            large = self.nbytes > _LARGE_NBYTES
            self._encoded = await asyncio.to_thread(self._blocks) if large else self._blocks()
        return self._encoded

    def _blocks(self) -> list[bytes]:
        return coalesced(proto.encode_data(self.data))

    async def json_request(self, job: LossJob, model_id: str, number: int) -> Request[models.UntypedAPIFuture]:
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

    async def submit(self, sequencer: Sequencer, model_id: str) -> list[Accepted]:
        """Number and send every chunk; only whose turn it is may call this."""
        first = sequencer.next_number
        sequencer.use(len(self.chunks))
        numbered = [self._send_chunk(chunk, model_id, first + i) for i, chunk in enumerate(self.chunks)]
        if len(numbered) == 1 or not self.started.config.parallel_fwdbwd_chunks:
            return [await one for one in numbered]
        # The server starts when it has the first chunk, so it goes last and the others are there by then.
        head, *rest = numbered
        later = await asyncio.gather(*rest, return_exceptions=True)
        failed = next((one for one in later if isinstance(one, BaseException)), None)
        if failed is not None:
            head.close()
            raise failed
        return [await head, *cast("list[Accepted]", later)]

    async def result(self, accepted: Sequence[Accepted], future: APIFuture[Any]) -> ForwardBackwardOutput:
        """Wait for the chunks and put their results together."""
        expected = loss_output("Forward" if self.job.forward_only else "ForwardBackward")
        wait = self.started.poller.result
        if len(accepted) == 1:
            return combine([await wait(accepted[0][0], expected, future, accepted[0][1])])
        waits = (wait(promise, expected, future, roundtrip) for promise, roundtrip in accepted)
        return combine(await asyncio.gather(*waits))

    async def _send_chunk(self, chunk: _Chunk, model_id: str, number: int) -> Accepted:
        """Submit one chunk in the form the server reads; a refused form is switched once, under the same number."""
        clock = self.transport.clock
        wire = self.started.wire
        async with self.started.limits.training_nbytes.take(chunk.nbytes):
            began = clock.monotonic()
            try:
                promise = await self._post(chunk, model_id, number)
            except APIStatusError as error:
                if not wire.switched(error):
                    raise
                promise = await self._post(chunk, model_id, number)
            wire.succeeded()
            return promise, clock.monotonic() - began

    async def _post(self, chunk: _Chunk, model_id: str, number: int) -> models.UntypedAPIFuture:
        transport, job = self.transport, self.job
        proto_form = self.started.wire.form == "proto"
        if proto_form:
            head = proto.forward_backward_head(model_id, number, job.loss_fn, job.config, forward_only=job.forward_only)
            body = Binary(proto.MEDIA_TYPE, [*head, *await chunk.encode()])
            request = training_api.forward_backward(body)
        else:
            request = await chunk.json_request(job, model_id, number)
        compress = self.started.config.proto_compress_fwdbwd and proto_form
        prepare = partial(transport.prepare, request, Purpose.UPLOAD, compress=compress)
        call = await asyncio.to_thread(prepare) if chunk.nbytes > _LARGE_NBYTES else prepare()
        answer = await run(
            SUBMIT, lambda _: transport.perform(call, request.operation), transport.clock, what=request.operation
        )
        return transport.decode(request, call, answer)


async def loss_requests(transport: Transport, started: Started, data: Sequence[Datum], job: LossJob) -> LossRequests:
    """Cut ``data`` by the server's limits; what is sent as protobuf is encoded now, ahead of the turn."""
    limits = started.config
    pieces = split(data, limits.fwdbwd_max_chunk_len, limits.fwdbwd_max_chunk_bytes_count)
    chunks = [_Chunk(piece, nbytes) for piece, nbytes in pieces]
    if started.wire.form == "proto":
        for chunk in chunks:
            await chunk.encode()
    return LossRequests(transport, started, job, chunks)
