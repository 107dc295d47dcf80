"""Encoding and decoding of large bodies: this client, the official 0.38.0 and the floor (numpy and
join), in turn.

    python benchmarks/codec.py --ours PYTHON --official PYTHON [--rounds 5] [--markdown]

The same bodies are encoded and decoded in each environment. CPU milliseconds, medians over all
rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

DATUMS, TOKENS, SEQUENCES, SAMPLED = 128, 4096, 1000, 256
REPETITIONS = 7
ROWS = (
    "encode forward_backward, protobuf",
    "decode its result, protobuf",
    "decode sample answer, protobuf",
    "encode forward_backward, JSON",
    "decode its result, JSON",
    "decode sample answer, JSON",
)


def cpu_ms(work: Callable[[], object]) -> float:
    """Return the least CPU of a few calls, after one that is not counted."""
    work()
    best = float("inf")
    for _ in range(REPETITIONS):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return best * 1e3


def arrays() -> list[tuple[Any, Any, Any]]:
    """Tokens, targets and weights of every datum."""
    import numpy as np

    rng = np.random.default_rng(0)
    tokens = [rng.integers(0, 100_000, TOKENS) for _ in range(DATUMS)]
    return [(one, one, rng.random(TOKENS).astype(np.float32)) for one in tokens]


def data() -> list[Any]:
    """Return the datums, made of arrays."""
    import tinker

    return [
        tinker.Datum(
            model_input=tinker.ModelInput.from_ints(tokens.tolist()),
            loss_fn_inputs={
                "target_tokens": tinker.TensorData.from_numpy(targets),
                "weights": tinker.TensorData.from_numpy(weights),
                "advantages": tinker.TensorData.from_numpy(weights),
            },
        )
        for tokens, targets, weights in arrays()
    ]


def ours(bodies: dict[str, bytes]) -> dict[str, float]:
    """Return the rows with this client's codec."""
    from tinker_wire import models

    from tinker._wire import BUFFERS, proto
    from tinker._wire import json as wire_json

    batch = data()

    def encoded() -> None:
        """As for a request, whose memory is used again once it is sent."""
        head = proto.forward_backward_head("model", 1, "cross_entropy", None, forward_only=False)
        BUFFERS.release(BUFFERS.join([*head, *proto.encode_data(batch)]))

    def as_json() -> bytes:
        inputs = models.ForwardBackwardInput(
            data=wire_json.wire_data(batch), loss_fn="cross_entropy"
        )
        return wire_json.encode(
            models.ForwardBackwardRequest(forward_backward_input=inputs, model_id="model", seq_id=1)
        )

    def output_of_json() -> object:
        return wire_json.public_loss_output(
            wire_json.decode(bodies["output.json"], models.ForwardBackwardOutput)
        )

    def sample_of_json() -> object:
        return wire_json.public_sample(
            wire_json.decode(bodies["sample.json"], models.SampleResponse)
        )

    works = (
        encoded,
        lambda: proto.decode_loss_output(bodies["output"]),
        lambda: proto.decode_sample(bodies["sample"]),
        as_json,
        output_of_json,
        sample_of_json,
    )
    return {row: cpu_ms(work) for row, work in zip(ROWS, works, strict=True)}


def official(bodies: dict[str, bytes]) -> dict[str, float]:
    """Return the rows with the official 0.38.0, which has no JSON form of these."""
    from tinker import types
    from tinker.proto import request_conv, response_conv

    inputs = types.ForwardBackwardInput(data=data(), loss_fn="cross_entropy")
    request = types.ForwardBackwardRequest(
        forward_backward_input=inputs, model_id="model", seq_id=1
    )
    works = (
        lambda: request_conv.forward_backward_request_to_proto(request).SerializeToString(),
        lambda: response_conv.deserialize_forward_backward_output(bodies["output"]),
        lambda: response_conv.deserialize_sample_response(bodies["sample"]),
    )
    return {row: cpu_ms(work) for row, work in zip(ROWS, works, strict=False)}


def floor(bodies: dict[str, bytes]) -> dict[str, float]:
    """Return what moving the bytes alone costs: arrays joined, bytes viewed as arrays, JSON by the
    standard library.
    """
    import numpy as np

    batch = [(tokens.astype(np.int32), targets, weights) for tokens, targets, weights in arrays()]
    size = TOKENS * 4
    output, sample = bodies["output"], bodies["sample"]
    step = len(sample) // SEQUENCES

    def joined() -> bytes:
        return b"".join(
            part
            for tokens, targets, weights in batch
            for part in (tokens, targets, weights, weights)
        )

    def sliced() -> list[Any]:
        return [np.frombuffer(output, np.float32, TOKENS, index * size) for index in range(DATUMS)]

    def split() -> list[Any]:
        return [
            np.frombuffer(sample, np.int32, SAMPLED, index * step + half * SAMPLED * 4)
            for index in range(SEQUENCES)
            for half in (0, 1)
        ]

    def dumped() -> str:
        return json.dumps([[part.tolist() for part in (*datum, datum[2])] for datum in batch])

    works = (
        joined,
        sliced,
        split,
        dumped,
        lambda: json.loads(bodies["output.json"]),
        lambda: json.loads(bodies["sample.json"]),
    )
    return {row: cpu_ms(work) for row, work in zip(ROWS, works, strict=True)}


def make_bodies() -> dict[str, bytes]:
    """Return the answers to decode, encoded by this client."""
    import numpy as np

    from tinker import types
    from tinker._wire import json as wire_json
    from tinker._wire import proto

    rng = np.random.default_rng(1)
    outputs = [
        {"logprobs": types.TensorData.from_numpy(rng.random(TOKENS).astype(np.float32))}
        for _ in range(DATUMS)
    ]
    output = types.ForwardBackwardOutput("scalar", outputs, {"loss:sum": 1.0})
    sequences = [
        types.SampledSequence(
            stop_reason="length",
            tokens=rng.integers(0, 100_000, SAMPLED),
            logprobs=rng.random(SAMPLED).astype(np.float32),
        )
        for _ in range(SEQUENCES)
    ]
    sample = types.SampleResponse(sequences=sequences)
    return {
        "output": proto.encode_loss_output(output),
        "sample": proto.encode_sample(sample),
        "output.json": wire_json.encode(wire_json.wire_loss_output(output)),
        "sample.json": wire_json.encode(wire_json.wire_sample(sample)),
    }


WORKERS = {"ours": ours, "official": official, "floor": floor}


def work(kind: str, folder: str) -> None:
    """One measurement in this environment, printed as JSON."""
    from pathlib import Path

    if kind == "bodies":
        for name, body in make_bodies().items():
            Path(folder, name).write_bytes(body)
        return
    bodies = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    print(json.dumps(WORKERS[kind](bodies)))


def main() -> int:
    """Measure in turn and print the table; 1 when ours is behind the official client in any row."""
    import tempfile

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ours")
    parser.add_argument("--official")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--worker", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(*options.worker)
        return 0
    pythons = {"ours": options.ours, "official": options.official, "floor": options.ours}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([options.ours, __file__, "--worker", "bodies", folder], check=True)
        rounds: dict[str, list[dict[str, float]]] = {kind: [] for kind in pythons}
        for _ in range(options.rounds):
            for kind, python in pythons.items():
                command = [python, __file__, "--worker", kind, folder]
                rounds[kind].append(
                    json.loads(subprocess.check_output(command, text=True, env=environment(kind)))
                )
    return report(rounds, markdown=options.markdown)


def environment(kind: str) -> dict[str, str]:
    """The official client must not find ours on a path."""
    return {
        name: value
        for name, value in os.environ.items()
        if kind != "official" or name != "PYTHONPATH"
    }


def report(rounds: dict[str, list[dict[str, float]]], *, markdown: bool) -> int:
    """Print medians and ratios of the same run."""
    behind = 0
    line = (
        "| {:<34} | {:>8} | {:>8} | {:>8} | {:>15} |"
        if markdown
        else "{:<36}{:>9}{:>10}{:>9}{:>17}"
    )
    print(line.format("CPU ms", "ours", "official", "floor", "official / ours"))
    if markdown:
        print("|---|--:|--:|--:|--:|")
    for row in ROWS:
        found = {kind: [one[row] for one in rounds[kind] if row in one] for kind in rounds}
        middle = {
            kind: statistics.median(values) if values else None for kind, values in found.items()
        }
        ratio = (
            middle["official"] / middle["ours"] if middle["official"] and middle["ours"] else None
        )
        behind += ratio is not None and ratio < 1
        shown = [
            "-" if value is None else f"{value:.2f}"
            for value in (middle["ours"], middle["official"], middle["floor"])
        ]
        print(line.format(row, *shown, "-" if ratio is None else f"{ratio:.1f}x"))
    return 1 if behind else 0


if __name__ == "__main__":
    sys.exit(main())
