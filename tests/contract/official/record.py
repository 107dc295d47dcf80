"""Record what the official client sends and reads, in the form of tests/golden:

    python tests/contract/official/record.py FOLDER     # with a Python that has the official
                                                        `tinker`, and nothing of this project

The answers are invented; their protobuf is made with the messages of the official package, so that
names and numbers are theirs.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from decoded import decode

import tinker
from tinker.proto import tinker_public_pb2 as messages

BASE, KEY, API = "Qwen/Qwen3-8B", "tml-test-key", "/api/v1/"
SESSION = "5e551011-0000-4000-8000-000000000001"
MODEL, PROTOBUF = f"{SESSION}:train:0", "application/x-protobuf"
#: What every session asks, and other recordings show.
LEFT_OUT = [
    "client/config",
    "client/dynamic_config",
    "create_session",
    "session_heartbeat",
    "telemetry",
]
LEFT_OUT += ["create_model", "get_info", "create_sampling_session", f"sessions/{SESSION}/finish"]
VOLATILE = {"x-tinker-create-promise-roundtrip-time": "<float seconds>"}
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def floats(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def integers(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


def likeliest() -> Any:
    """Samples of two tokens and of one, and a prompt of four, with candidates for each token."""
    table, rows = messages.TopkLogprobs, (-0.25, -0.5, -0.75, -0.125, -1.5, -2.5)
    sampled = table(
        token_ids=integers(10, 11, 12, 20, 21, 22), logprobs=floats(*rows), k=3, length=2
    )
    short = table(token_ids=integers(30, 31, 32), logprobs=floats(-0.5, -1.0, -2.0), k=3, length=1)
    prompt = table(
        token_ids=integers(0, 0, 7, 8, 5, 6, 3, 4),
        logprobs=floats(*[-99999.0] * 2, *rows),
        k=2,
        length=4,
    )
    stop, length = messages.STOP_REASON_STOP, messages.STOP_REASON_LENGTH
    return messages.SampleResponse(
        sequences=[
            messages.SampledSequence(
                stop_reason=length,
                tokens=integers(10, 20),
                logprobs=floats(-0.25, -0.125),
                topk_sampled_logprobs=sampled,
            ),
            messages.SampledSequence(
                stop_reason=stop,
                tokens=integers(30),
                logprobs=floats(-0.5),
                topk_sampled_logprobs=short,
            ),
        ],
        topk_prompt_logprobs=prompt,
    )


def loss() -> Any:
    """Return the response to a loss over one datum."""
    record = messages.ArrayRecord(type_tag="ArrayRecord", num_datums=1)
    record.fields["logprobs"].dtype = messages.DTYPE_FLOAT32
    record.fields["logprobs"].offsets = np.array([0, 20], "<i8").tobytes()
    record.fields["logprobs"].data = floats(*[-0.5] * 5)
    found = messages.ForwardBackwardOutput(
        loss_fn_output_type="ArrayRecord", loss_fn_outputs=[record]
    )
    found.metrics["loss:sum"] = 1.5
    return found


def topk(service: Any) -> None:
    sampler = service.create_sampling_client(base_model=BASE).result(60)
    params = tinker.SamplingParams(max_tokens=2)
    prompt = tinker.ModelInput.from_ints([1, 2, 3, 4])
    result = sampler.sample(
        prompt, 2, params, topk_prompt_logprobs=2, topk_sample_logprobs=3
    ).result(60)
    rows = result.sequences[0].topk_logprobs
    assert [[token for token, _ in row] for row in rows] == [[10, 11, 12], [20, 21, 22]], rows
    assert len(result.topk_prompt_logprobs) == 4, result.topk_prompt_logprobs


def spans(service: Any) -> None:
    run = service.create_lora_training_client(base_model=BASE).result(60)
    prompt, sampled = tinker.PromptProvenanceSpan, tinker.SampledProvenanceSpan
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints([1, 2, 3, 4, 5]),
        loss_fn_inputs={"target_tokens": [2, 3, 4, 5, 6]},
    ).with_provenance(
        model_input=[
            prompt(sequence_id="req-0009:0", offset=7, length=3),
            sampled(sequence_id="req-0009:0", length=2),
        ],
        loss_fn_inputs=[
            prompt(sequence_id="req-0009:0", offset=8, length=2),
            sampled(sequence_id="req-0009:0", offset=0, length=1),
            sampled(sequence_id="req-0009:1", offset=4, length=2),
        ],
    )
    run.forward_backward([datum], "cross_entropy").result(60)


class Recorder:
    """The given and the next responses of the server."""

    def __init__(self) -> None:
        self.lock, self.lines, self.results, self.ids = (
            threading.Lock(),
            list[Any](),
            dict[str, Any](),
            dict[str, str](),
        )

    def promise(self, result: Any, **more: Any) -> Any:
        request_id = f"req-{len(self.results) + 1:04}"
        self.results[request_id] = result
        return {"request_id": request_id, **more}

    def answer(self, operation: str, body: Any) -> Any:
        if operation == "create_session":
            return {"session_id": SESSION}
        if operation == "create_model":
            return self.promise({"type": "create_model", "model_id": MODEL}, model_id=MODEL)
        if operation == "create_sampling_session":
            return {"sampling_session_id": f"{SESSION}:sample:0"}
        if operation == "get_info":
            return {"model_id": MODEL, "model_data": {"model_name": BASE}}
        if operation == "forward_backward":
            return self.promise(loss())
        if operation == "asample":
            return self.promise(likeliest(), sample_sequence_ids=["seq-1-0", "seq-1-1"])
        return self.results[body["request_id"]] if operation == "retrieve_future" else {}

    def note(self, line: Any) -> None:
        line = {"n": len(self.lines) + 1, **line}
        self.lines.append(json.loads(UUID.sub(self.placeholder, json.dumps(line))))

    def placeholder(self, found: re.Match[str]) -> str:
        return (
            SESSION
            if found[0] == SESSION
            else f"<uuid-{self.ids.setdefault(found[0], str(len(self.lines) + 1))}>"
        )


def body_of(kind: str, content: bytes) -> Any:
    if not content:
        return None
    if not kind:
        return {"json": json.loads(content)}
    message = getattr(messages, kind).FromString(content)
    raw = {"raw_base64": base64.b64encode(content).decode(), "raw_len": len(content)}
    return {"protobuf": f"tinker_public.{kind}", "decoded": decode(message), **raw}


class Handler(BaseHTTPRequestHandler):
    """Answers one request, and records both."""

    protocol_version = "HTTP/1.1"
    recorder: Recorder

    def reply(self) -> None:
        content = self.rfile.read(int(self.headers.get("content-length") or 0))
        path, _, query = self.path.partition("?")
        operation, is_proto = path.removeprefix(API), self.headers.get("content-type") == PROTOBUF
        with self.recorder.lock:
            answer = self.recorder.answer(
                operation, {} if is_proto or not content else json.loads(content)
            )
            made = hasattr(answer, "SerializeToString")
            out = (
                answer.SerializeToString(deterministic=True)
                if made
                else json.dumps(answer).encode()
            )
            media_type = PROTOBUF if made else "application/json"
            if operation not in LEFT_OUT:
                kept = {key.lower(): value for key, value in self.headers.items()}
                for name in ("host", "connection", "content-length"):
                    kept.pop(name, None)
                request = {
                    "method": self.command,
                    "path": path,
                    "query": query,
                    "http_version": "1.1",
                }
                request |= {
                    "headers": kept | {name: to for name, to in VOLATILE.items() if name in kept}
                }
                request["body"] = body_of("ForwardBackwardRequest" if is_proto else "", content)
                response = {"status": 200, "headers": {"content-type": media_type}}
                response["body"] = body_of(type(answer).__name__ if made else "", out)
                self.recorder.note({"t_s": 0.0, "request": request, "response": response})
        self.send_response(200)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)

    do_GET = do_POST = do_PUT = do_DELETE = reply

    def log_message(self, *_: object) -> None:
        pass


def record(name: str, calls: Any, folder: Path) -> None:
    recorder = Recorder()
    handler = type("BoundHandler", (Handler,), {"recorder": recorder})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        calls(tinker.ServiceClient(base_url=f"http://127.0.0.1:{server.server_port}", api_key=KEY))
        # each exchange is noted before its answer goes out, and the calls have waited for every
        # result
        server.shutdown()
    lines = "".join(json.dumps(line) + "\n" for line in recorder.lines)
    (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    for name, calls in {"spans": spans, "topk": topk}.items():
        record(name, calls, Path(sys.argv[1]))
