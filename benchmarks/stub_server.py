"""A server that costs next to nothing: it reads requests, decodes none of the bulk ones and sends
precomputed answers.

Standard library only, one process, HTTP/1.1 with keep-alive. It speaks both wires (protobuf results
where ``Accept`` asks for them, JSON else) and knows every endpoint that a client needs for training
steps and samples. Run it and read its port:

    python benchmarks/stub_server.py --sample-delay 0.2

Every request id says what it is the id of, so the server keeps no state:

    model                              a creation
    optim.<serial>                     an optimizer step
    loss.<serial>.<datums>             a forward_backward of so many datums
    sample.<serial>.<sequences>.<due>  a sample, ready at ``due`` on this process's monotonic clock
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import struct
from array import array
from collections.abc import Callable, Generator
from functools import cache

TOKENS_PER_DATUM = 4096
# int32 inputs, int64 targets, two float32 arrays. The few bytes of framing are less than one datum
# for any chunk below 128.
DATUM_NBYTES = TOKENS_PER_DATUM * (4 + 8 + 4 + 4)
SAMPLED_TOKENS = 128

_JSON, _PROTOBUF = b"application/json", b"application/x-protobuf"
_REQUEST_ID = re.compile(rb'"request_id"\s*:\s*"([^"]*)"')
_NUM_SAMPLES = re.compile(rb'"num_samples"\s*:\s*(\d+)')
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:\s*chunked", re.IGNORECASE)
_PROTOBUF_BODY = re.compile(rb"\r\ncontent-type:\s*application/x-protobuf", re.IGNORECASE)
_WANTS_PROTOBUF = re.compile(rb"\r\naccept:[^\r]*application/x-protobuf", re.IGNORECASE)

_MODEL = "stub-session:train:0"
_SAMPLER = "stub-session:sample:0"
_STATIC: dict[str, object] = {
    "/client/config": {"pjwt_auth_enabled": False},
    "/client/dynamic_config": {},
    "/create_session": {"type": "create_session", "session_id": "stub-session"},
    "/session_heartbeat": {"type": "session_heartbeat"},
    "/create_sampling_session": {
        "type": "create_sampling_session",
        "sampling_session_id": _SAMPLER,
    },
    "/create_model": {"request_id": "model"},
    "/get_info": {
        "type": "get_info",
        "model_id": _MODEL,
        "model_data": {"arch": "stub", "model_name": "stub/model", "tokenizer_id": "stub/model"},
        "is_lora": True,
        "lora_rank": 32,
        "model_name": "stub/model",
    },
    "/get_server_capabilities": {"supported_models": [{"model_name": "stub/model"}]},
    "/telemetry": {"status": "accepted"},
    "/cancel_future": {},
}


# ------------------------------------------------------------------------------ precomputed answers


def _response(body: bytes, media_type: bytes = _JSON, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        status,
        media_type,
        len(body),
        body,
    )


def _json_response(value: object, status: bytes = b"200 OK") -> bytes:
    return _response(json.dumps(value).encode(), status=status)


def _field(number: int, value: bytes) -> bytes:
    """Return a length-delimited protobuf field."""
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def logprob(position: int) -> float:
    """Return the log-probability that this server gives to every token at ``position``; exact in
    float32.
    """
    return -(position % 256) / 256


@cache
def loss_answer(datums: int, protobuf: bool) -> bytes:
    """Return the answer for so many datums of ``TOKENS_PER_DATUM`` tokens each."""
    row = array("f", map(logprob, range(TOKENS_PER_DATUM)))
    if not protobuf:
        output = {
            "logprobs": {"data": row.tolist(), "dtype": "float32", "shape": [TOKENS_PER_DATUM]}
        }
        value = {
            "loss_fn_output_type": "TorchLossReturn",
            "loss_fn_outputs": [output] * datums,
            "metrics": {"loss:sum": float(datums)},
        }
        return _json_response(value)
    offsets = array("q", range(0, (datums + 1) * 4 * TOKENS_PER_DATUM, 4 * TOKENS_PER_DATUM))
    # dtype float32
    tensor = _field(1, row.tobytes() * datums) + _field(2, offsets.tobytes()) + b"\x18\x01"
    record = (
        _field(1, b"TorchLossReturn")
        + _field(2, _field(1, b"logprobs") + _field(2, tensor))
        + b"\x18"
        + _varint(datums)
    )
    metric = _field(1, b"loss:sum") + b"\x11" + struct.pack("<d", datums)
    return _response(
        _field(1, b"TorchLossReturn") + _field(2, record) + _field(3, metric), _PROTOBUF
    )


@cache
def sample_answer(sequences: int, protobuf: bool) -> bytes:
    """Return the answer for so many sequences of ``SAMPLED_TOKENS`` tokens each."""
    tokens, logprobs = (
        array("i", range(SAMPLED_TOKENS)),
        array("f", map(logprob, range(SAMPLED_TOKENS))),
    )
    if not protobuf:
        one = {"stop_reason": "length", "tokens": tokens.tolist(), "logprobs": logprobs.tolist()}
        return _json_response({"type": "sample", "sequences": [one] * sequences})
    # stop reason: length
    sequence = b"\x08\x01" + _field(2, tokens.tobytes()) + _field(3, logprobs.tobytes())
    return _response(_field(1, sequence) * sequences, _PROTOBUF)


# -------------------------------------------------------------------------------------- one request


class Stub:
    """What is answered to which request, and when."""

    def __init__(self, sample_delay: float) -> None:
        self._sample_delay = sample_delay
        self._serial = itertools.count()
        self._now = asyncio.get_running_loop().time
        self._static = {path: _json_response(value) for path, value in _STATIC.items()}
        self._created = _json_response({"type": "create_model", "model_id": _MODEL})
        self._stepped = _json_response({"type": "optim_step", "metrics": {}})
        self._unknown = _json_response(
            {"detail": "the stub does not know this endpoint"}, b"404 Not Found"
        )
        self._submitted: dict[str, Callable[[bytes, int], bytes]] = {
            "/forward_backward": self._loss,
            "/optim_step": lambda _body, _nbytes: b'{"request_id":"optim.%d"}' % next(self._serial),
            "/asample": self._sample,
        }

    def answer(self, path: str, head: bytes, body: bytes, nbytes: int) -> tuple[bytes, float]:
        """Return the whole response, and the time on the loop's clock at which it
        is due (0: now).
        """
        name = path.partition("?")[0].rpartition("/api/v1")[2]
        if name == "/retrieve_future":
            return self._result(body, _WANTS_PROTOBUF.search(head) is not None)
        submitted = self._submitted.get(name)
        if submitted is not None:
            return _response(submitted(body, nbytes)), 0.0
        return self._static.get(name) or self._other(name), 0.0

    def _loss(self, body: bytes, nbytes: int) -> bytes:
        """Datums of a JSON body are counted; those of a protobuf body, which is not kept, follow
        from its size.
        """
        datums = body.count(b'"model_input"') if body else nbytes // DATUM_NBYTES
        return b'{"request_id":"loss.%d.%d"}' % (next(self._serial), datums)

    def _sample(self, body: bytes, _: int) -> bytes:
        serial, wanted = next(self._serial), _NUM_SAMPLES.search(body)
        count = int(wanted[1]) if wanted else 1
        ids = b",".join(b'"seq-%d-%d"' % (serial, index) for index in range(count))
        due = self._now() + self._sample_delay
        return b'{"request_id":"sample.%d.%d.%d","sample_sequence_ids":[%b]}' % (
            serial,
            count,
            int(due * 1e6),
            ids,
        )

    def _result(self, body: bytes, protobuf: bool) -> tuple[bytes, float]:
        found = _REQUEST_ID.search(body)
        kind, *numbers = found[1].split(b".") if found else [b""]
        if kind == b"sample":
            return sample_answer(int(numbers[1]), protobuf), int(numbers[2]) / 1e6
        if kind == b"loss":
            return loss_answer(int(numbers[1]), protobuf), 0.0
        return {b"model": self._created, b"optim": self._stepped}.get(kind, self._unknown), 0.0

    def _other(self, name: str) -> bytes:
        if name.startswith("/samplers/"):
            return _json_response({"sampler_id": _SAMPLER, "base_model": "stub/model"})
        return _json_response({}) if name.endswith("/finish") else self._unknown


# ----------------------------------------------------------------------------------- one connection


class Connection(asyncio.Protocol):
    """One keep-alive connection. Protobuf bodies are counted and dropped as they arrive; others are
    kept for the stub.
    """

    def __init__(self, stub: Stub) -> None:
        self._stub = stub
        self._buffer = bytearray()
        self._dropping = 0
        self._parser = self._parse()
        next(self._parser)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._dropping:
            dropped = min(self._dropping, len(data))
            self._dropping -= dropped
            if self._dropping:
                return
            data = data[dropped:]
        self._buffer += data
        next(self._parser)

    def _parse(self) -> Generator[None, None, None]:
        while True:
            head = yield from self._until(b"\r\n\r\n")
            keep = _PROTOBUF_BODY.search(head) is None
            if _CHUNKED.search(head):
                body, nbytes = yield from self._chunks(keep)
            else:
                length = _CONTENT_LENGTH.search(head)
                nbytes = int(length[1]) if length else 0
                body = yield from self._exactly(nbytes, keep)
            path = head.split(b" ", 2)[1].decode()
            self._send(*self._stub.answer(path, head, body, nbytes))

    def _until(self, end: bytes) -> Generator[None, None, bytes]:
        while (at := self._buffer.find(end)) < 0:
            yield
        found = bytes(self._buffer[:at])
        del self._buffer[: at + len(end)]
        return found

    def _exactly(self, nbytes: int, keep: bool) -> Generator[None, None, bytes]:
        if not keep and len(self._buffer) < nbytes:
            self._dropping = nbytes - len(self._buffer)
            self._buffer.clear()
            while self._dropping:
                yield
            return b""
        while len(self._buffer) < nbytes:
            yield
        found = bytes(self._buffer[:nbytes]) if keep else b""
        del self._buffer[:nbytes]
        return found

    def _chunks(self, keep: bool) -> Generator[None, None, tuple[bytes, int]]:
        pieces: list[bytes] = []
        total = 0
        while True:
            size = int((yield from self._until(b"\r\n")).partition(b";")[0], 16)
            pieces.append((yield from self._exactly(size, keep)))
            yield from self._until(b"\r\n")
            total += size
            if size == 0:
                return b"".join(pieces), total

    def _send(self, response: bytes, due: float) -> None:
        loop = asyncio.get_running_loop()
        if due > loop.time():
            loop.call_at(due, self._write, response)
        else:
            self._write(response)

    def _write(self, response: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(response)


async def _serve(sample_delay: float) -> None:
    stub = Stub(sample_delay)
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(stub), "127.0.0.1", 0, backlog=4096
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve until killed; the first line of output is the port."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sample-delay", type=float, default=0.2, help="seconds between a sample and its result"
    )
    asyncio.run(_serve(parser.parse_args().sample_delay))


if __name__ == "__main__":
    main()
